"""How the vocabularies of each kind are made: the second half of the table in schemas/vocabulary_kinds.py.

A row names functions, which lie where their work is done: words are cut in pipeline/words, tokens learned in train.py,
files made in tokenizer_files.py, and tokens to add found in extend.py. Users of the table name no kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from pipeline.vocab import extend, tokenizer_files, train
from pipeline.vocab.counted_words import UnigramRules
from pipeline.vocab.extend import Finder
from pipeline.vocab.train import TrainedVocabulary, Trainer
from pipeline.words import cut, rules
from pipeline.words.arrow import Bools, Bytes, Ints
from pipeline.words.cut import CutStrings, is_unprintable
from schemas.vocabulary_kinds import Model, kind_of


@dataclass(frozen=True, kw_only=True)
class Maker:
    """How the vocabularies of one kind are made.

    whose_rules: by which words are cut, for errors.
    count_steps: returns the steps that normalize text before words are cut, lowercased or not, with accents or not.
    pre_tokenizer: returns what then cuts runs of non-spaces into words.
    cut: an array operation with the same result, for runs without a strange byte.
    is_strange: returns (B,) bool, true for the strange bytes of a text. All characters beyond ASCII have some.
    is_unknown: the same for a `cut` that knows others, too.
    isolates_ideographs: whether each ideograph is a word, whatever is next to it.
    train: learns tokens from words. find_new: finds those to extend a vocabulary with. files: writes them.
    learning_bytes: the maximum memory for learning: at least, and per character of a distinct word (see memory.py).
    """

    whose_rules: str
    count_steps: Callable[[bool, bool], list[Normalizer]]
    pre_tokenizer: Callable[[], PreTokenizer]
    cut: Callable[[Bytes, Ints], CutStrings]
    is_strange: Callable[[Bytes], Bools] = is_unprintable
    is_unknown: Callable[[Bytes], Bools] | None = None
    isolates_ideographs: bool = False
    train: Trainer
    find_new: Finder
    files: Callable[[TrainedVocabulary, UnigramRules], dict[str, bytes]]
    learning_bytes: tuple[int, int]


MAKERS: dict[Model, Maker] = {
    "wordpiece": Maker(
        whose_rules="BERT's",
        count_steps=lambda lowercase, keep_accents: [rules.normalizer(lowercase, keep_accents)],
        pre_tokenizer=rules.bert_pre_tokenizer,
        cut=cut.cut_like_bert,
        isolates_ideographs=True,
        train=train.train_wordpiece,
        find_new=extend.new_words,
        files=tokenizer_files.wordpiece_files,
        # Measured with one million and four million distinct words of 16 characters: 311 and 283 bytes per word.
        learning_bytes=(300 << 20, 19),
    ),
    "bytebpe": Maker(
        whose_rules="GPT-2's",
        count_steps=lambda lowercase, keep_accents: [],
        pre_tokenizer=rules.gpt2_pre_tokenizer,
        cut=cut.cut_like_gpt2,
        is_unknown=cut.is_of_unknown_class,
        train=train.train_bytebpe,
        find_new=extend.new_merges,
        files=tokenizer_files.bytebpe_files,
        learning_bytes=(300 << 20, 19),  # as in wordpiece
    ),
    "unigram": Maker(
        whose_rules="ALBERT's",
        count_steps=lambda lowercase, keep_accents: rules.count_steps(),
        pre_tokenizer=rules.sentencepiece_pre_tokenizer,
        cut=cut.mark_runs,
        is_strange=cut.is_unprintable_or_quoted,
        train=train.train_unigram,
        find_new=extend.new_parts,
        files=tokenizer_files.unigram_files,
        # Measured with 100,000 and 300,000 distinct words of 17 characters: 357 MB and 99 bytes per character, starting
        # with 305,000 of the maximum of one million substrings.
        learning_bytes=(700 << 20, 120),
    ),
}


def maker_of(model: Model) -> Maker:
    """Return how a model's vocabularies are made. Raises ValueError if there is no such kind."""
    kind_of(model)
    return MAKERS[model]
