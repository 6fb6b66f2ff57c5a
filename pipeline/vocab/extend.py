"""Extends a published vocabulary with the tokens that save the most tokens in the text of a domain.

New tokens are tokens of the tokenizer's model like the old ones, with ids after them. None of the old ones changes, and
a text without a new token keeps its ids:

    wordpiece   whole words. A word is cut by repeatedly taking the longest token from its start, so only words that
                begin with a new token are cut differently
    bytebpe     merges, learned from where the old ones end. Old merges come first, so a word is cut as before until
                they are used up, and then new ones apply
    unigram     parts of words in one script (see counted_words.py), each with the score of its best segmentation, so
                that nothing else becomes more likely

Each new token comes with the old ids of its spelling; a model initializes its embedding with the mean of theirs.

Shape suffixes: N distinct words, T tokens of all words.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pipeline.vocab.bpe import BPETrainer, join_bytes
from pipeline.vocab.counted_words import CODE_POINTS, Words, cut_parts
from pipeline.vocab.report import encode_words, word_tokenizer
from pipeline.vocab.symbol_array import WordSymbols
from pipeline.vocab.train import MAX_WORD_CHARACTERS, long_words
from pipeline.words.rules import text_cutter
from schemas.errors import DataError
from schemas.vocabulary import EXTENSION_FILE, TOKENIZER_FILE, Extension, Vocabulary, parse_vocabulary
from schemas.vocabulary_kinds import SENTENCEPIECE_SPACE

SCORE_MARGIN = 1e-3
"""How much the score of a new Unigram token exceeds that of its best segmentation, so that the token is preferred."""

REWRITTEN = ("vocab.txt", "vocab.json", "merges.txt")
"""Files that list the tokens again, if the folder has them."""

COPIED = ("tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True)
class NewToken:
    """A token to add.

    spelling, old_ids: its spelling, and the old ids that it replaces. saved: number of tokens it saves; 0 if unknown.
    merge: the two tokens that byte-level BPE joins. score: in Unigram, the log probability.
    """

    spelling: str
    old_ids: list[int]
    saved: int
    merge: tuple[str, str] | None = None
    score: float = 0.0


Finder = Callable[[Words, bytes, Vocabulary, int, int], list[NewToken]]
"""Finds tokens to add, from a maximum number, a minimum count, words, a tokenizer.json and its vocabulary."""


@dataclass(frozen=True)
class ExtendedVocabulary:
    """The files of an extended vocabulary by name, its new tokens, and the text's number of tokens before and after.

    long_words: as in TrainedVocabulary.
    """

    files: dict[str, bytes]
    new_tokens: list[NewToken]
    tokens_before: int
    tokens_after: int
    long_words: tuple[int, int] = (0, 0)


def extend_vocabulary(
    words: Words, files: dict[str, bytes], find: Finder, add: int, min_frequency: int
) -> ExtendedVocabulary:
    """Add at most `add` tokens to the vocabulary in `files`, the files of a tokenizer's folder by name.

    words: the words of the domain, by the vocabulary's rules (Unigram's with case and accents). Candidates that occur
    less often than `min_frequency` are not added.

    Raises DataError if some ids of the vocabulary are not in its model.
    """
    tokenizer_json = files[TOKENIZER_FILE]
    vocabulary = parse_vocabulary(tokenizer_json, TOKENIZER_FILE)
    check_extendable(tokenizer_json, vocabulary, TOKENIZER_FILE)
    words = _by_spelling(words)

    new_tokens = find(words, tokenizer_json, vocabulary, add, min_frequency)
    extended = dict(files)
    extended[TOKENIZER_FILE] = _extended_json(tokenizer_json, vocabulary, new_tokens)
    extended |= _extended_lists(files, vocabulary, new_tokens)
    extended[EXTENSION_FILE] = _extension_json(vocabulary, new_tokens)
    kept = {TOKENIZER_FILE, EXTENSION_FILE, *REWRITTEN, *COPIED}
    return ExtendedVocabulary(
        files={name: data for name, data in extended.items() if name in kept},
        new_tokens=new_tokens,
        tokens_before=_count_tokens(words, tokenizer_json),
        tokens_after=_count_tokens(words, extended[TOKENIZER_FILE]),
        long_words=long_words(words, json.loads(tokenizer_json)["model"].get("max_input_chars_per_word")),
    )


def check_extendable(tokenizer_json: bytes, vocabulary: Vocabulary, path: str) -> None:
    """Raise DataError if tokens were added outside of the tokenizer's model, so that new ones could not follow it."""
    in_model = len(json.loads(tokenizer_json)["model"]["vocab"])
    if in_model != vocabulary.size:
        raise DataError(
            f"{path} has {vocabulary.size - in_model:,} added tokens with ids after the {in_model:,} of its model, and "
            "new pieces of the model cannot come after those. Extend the vocabulary before such tokens are added."
        )


def _by_spelling(words: Words) -> Words:
    """Add up equal words and sort them. Their order depends on the size of the text."""
    counts: Counter[str] = Counter()
    for word, count in zip(words.strings(), words.counts_N.tolist(), strict=True):
        counts[word] += count
    return Words.of_counts(dict(sorted(counts.items())))


def _count_tokens(words: Words, tokenizer_json: bytes) -> int:
    tokenizer, spell = word_tokenizer(tokenizer_json)
    _, tokens_N = encode_words(tokenizer, [spell(word) for word in words.strings()])
    return int(tokens_N @ words.counts_N)


def new_words(
    words: Words, tokenizer_json: bytes, vocabulary: Vocabulary, add: int, min_frequency: int
) -> list[NewToken]:
    """Return the words (by BERT's rules) that save the most tokens; ties go to the first by spelling."""
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    found = _saving(words, tokenizer, min_frequency)
    return _most_saving((token for token in found if len(token.spelling) <= MAX_WORD_CHARACTERS), vocabulary, add)


def new_parts(
    words: Words, tokenizer_json: bytes, vocabulary: Vocabulary, add: int, min_frequency: int
) -> list[NewToken]:
    """Return the parts of Unigram's words that save the most tokens."""
    tokenizer: Any = Tokenizer.from_str(tokenizer_json.decode())
    cut = text_cutter(tokenizer)
    folded: Counter[str] = Counter()
    for word, count in zip(words.strings(), words.counts_N.tolist(), strict=True):
        for spelling in cut(word.removeprefix(SENTENCEPIECE_SPACE)):
            folded[spelling] += count

    scores = [score for _, score in json.loads(tokenizer_json)["model"]["vocab"]]
    lowest = min(scores)  # with a lower score, the cost of unknown characters would change
    unknown = vocabulary.special_id("unk")
    parts = cut_parts(Words.of_counts(folded), np.ones(CODE_POINTS, dtype=bool))

    def with_score(token: NewToken) -> NewToken:
        score = max(lowest, sum(scores[i] for i in token.old_ids) + SCORE_MARGIN)
        return replace(token, score=min(score, 0.0))

    found = _saving(parts, tokenizer, min_frequency)
    return _most_saving((with_score(token) for token in found if unknown not in token.old_ids), vocabulary, add)


def _saving(words: Words, tokenizer: Any, min_frequency: int) -> Iterator[NewToken]:
    """Yield the words that occur often enough and consist of several tokens."""
    tokenize = tokenizer.model.tokenize  # read only once: each access to `model` makes a new object
    for word, count in zip(words.strings(), words.counts_N.tolist(), strict=True):
        if count >= min_frequency:
            old_ids = [token.id for token in tokenize(word)]
            if len(old_ids) > 1:
                yield NewToken(word, old_ids, (len(old_ids) - 1) * count)


def _most_saving(found: Iterable[NewToken], vocabulary: Vocabulary, add: int) -> list[NewToken]:
    known = set(vocabulary.tokens)
    new = [token for token in found if token.spelling not in known]
    return sorted(new, key=lambda token: (-token.saved, token.spelling))[:add]


def new_merges(
    words: Words, tokenizer_json: bytes, vocabulary: Vocabulary, add: int, min_frequency: int
) -> list[NewToken]:
    """Return the most frequent new merges, in the order in which byte-level BPE learns them."""
    model = Tokenizer(Tokenizer.from_str(tokenizer_json.decode()).model)
    ids_T, tokens_N = encode_words(model, words.strings())

    # A merge into an old token would change texts without a new token.
    symbols = WordSymbols(ids_T.astype(np.int32), tokens_N, words.counts_N)
    trainer = BPETrainer(symbols, vocabulary.tokens, join_bytes, forbidden=frozenset(vocabulary.tokens))
    trainer.train(vocabulary.size + add, min_frequency)

    old_ids = {token: [i] for i, token in enumerate(vocabulary.tokens)}
    found = []
    for left, right in trainer.merges:
        spelling = join_bytes(left, right)
        old_ids[spelling] = old_ids[left] + old_ids[right]
        found.append(NewToken(spelling, old_ids[spelling], 0, merge=(left, right)))
    return found


def _extended_json(tokenizer_json: bytes, vocabulary: Vocabulary, new_tokens: list[NewToken]) -> bytes:
    content = json.loads(tokenizer_json)
    model = content["model"]
    if vocabulary.kind.has_scores:
        model["vocab"] += [[token.spelling, token.score] for token in new_tokens]
    else:
        model["vocab"] |= {token.spelling: vocabulary.size + i for i, token in enumerate(new_tokens)}

    if "merges" in model:
        # Older files join the two sides by a space.
        are_joined = bool(model["merges"]) and isinstance(model["merges"][0], str)
        merges = [token.merge for token in new_tokens if token.merge is not None]
        model["merges"] += [" ".join(merge) if are_joined else list(merge) for merge in merges]
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()


def _extended_lists(files: dict[str, bytes], vocabulary: Vocabulary, new_tokens: list[NewToken]) -> dict[str, bytes]:
    """Return the extended versions of those files in the folder that also list the tokens."""
    tokens = _all_tokens(vocabulary, new_tokens)
    lists = {}
    if "vocab.txt" in files:
        lists["vocab.txt"] = "".join(f"{token}\n" for token in tokens).encode()
    if "vocab.json" in files:
        ids = {token: i for i, token in enumerate(tokens)}
        lists["vocab.json"] = json.dumps(ids, ensure_ascii=False).encode()
    if "merges.txt" in files:
        merges = [" ".join(token.merge) for token in new_tokens if token.merge is not None]
        old = files["merges.txt"].decode().rstrip("\n")
        lists["merges.txt"] = "".join(f"{line}\n" for line in [old, *merges]).encode()
    return lists


def _extension_json(vocabulary: Vocabulary, new_tokens: list[NewToken]) -> bytes:
    rows = {vocabulary.size + i: tuple(token.old_ids) for i, token in enumerate(new_tokens)}
    extension = Extension(vocabulary.size, vocabulary.fingerprint, rows)
    return extension.to_json(_all_tokens(vocabulary, new_tokens))


def _all_tokens(vocabulary: Vocabulary, new_tokens: list[NewToken]) -> list[str]:
    return [*vocabulary.tokens, *(token.spelling for token in new_tokens)]
