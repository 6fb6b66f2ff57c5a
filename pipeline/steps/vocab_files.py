"""Makes the files of a vocabulary, learned from words or extended from another vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.commit.reports import Report
from pipeline.options import VocabJob
from pipeline.pairs.published_tokenizer import without_dropout
from pipeline.vocab.counted_words import UnigramRules, Words
from pipeline.vocab.extend import extend_vocabulary
from pipeline.vocab.tokenizer_files import vocabulary_files
from pipeline.vocab.train import VocabularyOptions, train_with_all_places
from schemas import storage
from schemas.vocabulary import TOKENIZER_FILE, TOKENIZER_FILES


@dataclass(frozen=True)
class MadeVocabulary:
    """The files of a vocabulary by name, and the facts about it for the report."""

    files: dict[str, bytes]
    facts: Report


def learn_files(job: VocabJob, read_words: Callable[[], Words]) -> MadeVocabulary:
    """Learn a vocabulary with the job's options from the words that `read_words` returns."""
    rules = UnigramRules(job.special_tokens, job.lowercase, job.keep_accents)
    options = VocabularyOptions(
        model=job.model,
        size=job.size,
        min_frequency=job.min_frequency,
        max_alphabet=job.max_alphabet,
        pad_to_multiple=job.pad_to_multiple,
        rules=rules,
        text=storage.printable(str(job.text or job.counts)),
    )
    trained = train_with_all_places(read_words, options)
    cut_characters = trained.left_out.cut_characters
    facts = {
        "tokens": len(trained.tokens),
        "merges": len(trained.merges),
        "cut_characters": [len(cut_characters), sum(cut_characters.values())],
        "long_words": trained.left_out.long_words,
    }
    return MadeVocabulary(vocabulary_files(trained, job.model, rules), facts)


def extend_files(job: VocabJob, read_words: Callable[[], Words]) -> MadeVocabulary:
    """Read the vocabulary in job.extend and extend it, with counts of the text's tokens before and after."""
    folder = str(job.extend)
    files = {
        name: storage.read(storage.join(folder, name))
        for name in sorted(TOKENIZER_FILES)
        if storage.exists(storage.join(folder, name))
    }
    files[TOKENIZER_FILE], _ = without_dropout(files[TOKENIZER_FILE], folder)
    extended = extend_vocabulary(read_words(), files, int(job.add or 0), job.min_frequency)

    tokens = job.size - int(job.add or 0) + len(extended.new_tokens)
    extension = {
        "new_tokens": len(extended.new_tokens),
        "tokens_before": extended.tokens_before,
        "tokens_after": extended.tokens_after,
    }
    merges = sum(token.merge is not None for token in extended.new_tokens)
    facts = {
        "tokens": tokens,
        "merges": merges,
        "cut_characters": [0, 0],
        "long_words": extended.long_words,
        "extension": extension,
    }
    return MadeVocabulary(extended.files, facts)
