"""How a vocabulary encodes the text that it was trained on, and how two vocabularies differ.

Both work on word counts instead of text, so all numbers are exact.

Shape suffixes: N distinct words, K tokens of these words end to end, R rows of a count table, V the vocabulary, S the
sources.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, normalizers

from pipeline.words.arrow import Ints
from pipeline.words.rules import case_of, literal_tokenizer
from schemas.vocabulary import TOKENIZER_FILE, Vocabulary, parse_vocabulary
from schemas.vocabulary_kinds import Model, kind_of

MAX_LISTED = 20  # tokens or words of each kind that a report names
ENCODED_AT_ONCE = 100_000  # given to the tokenizer in one call

WordCounts = Iterable[tuple[str, int]]


@dataclass
class Usage:
    """How a vocabulary encodes the words of a corpus. The counts grow as tables of word counts are added."""

    words_S: Ints
    tokens_S: Ints
    unknown_S: Ints
    """Words that become [UNK] at least in part."""
    used_V: Ints
    """How often each token occurs in the corpus."""
    too_long_words: int = 0
    """The unknown words that have more characters than WordPiece takes."""
    characters: int = 0
    unknown_characters: int = 0
    """Characters of all words, and of the unknown ones."""

    @classmethod
    def empty(cls, sources: int, vocabulary_size: int) -> Usage:
        words_S, tokens_S, unknown_S = np.zeros((3, sources), dtype=np.int64)
        return cls(words_S, tokens_S, unknown_S, np.zeros(vocabulary_size, dtype=np.int64))

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both. A Usage without sources is empty, and its vocabulary size does not matter."""
        if len(self.words_S) == 0:
            return other
        if len(other.words_S) == 0:
            return self
        names = [field.name for field in fields(Usage)]
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in names})


class VocabularyUse:
    """Encodes tables of word counts with one vocabulary."""

    def __init__(self, tokenizer_json: bytes, sources: int):
        """Read a tokenizer.json. `sources`: the number of sources that the counts distinguish."""
        self._vocabulary = parse_vocabulary(tokenizer_json, TOKENIZER_FILE)
        self._tokenizer, self._spell = word_tokenizer(tokenizer_json)
        self._longest_word = json.loads(tokenizer_json)["model"].get("max_input_chars_per_word")
        self.usage = Usage.empty(sources, self._vocabulary.size)

    def add(self, by_source: pa.Table) -> None:
        """Encode each distinct word of a table (shards.COUNTS_BY_SOURCE_SCHEMA) once, and add its counts to `usage`."""
        usage = self.usage
        encoded = by_source["word"].combine_chunks().dictionary_encode()
        words = [self._spell(word) for word in encoded.dictionary.to_pylist()]
        ids_K, tokens_N = encode_words(self._tokenizer, words)

        word_of_token_K = np.repeat(np.arange(len(tokens_N)), tokens_N)
        is_unknown_N = np.zeros(len(tokens_N), dtype=bool)
        is_unknown_N[word_of_token_K[ids_K == self._vocabulary.special_id("unk")]] = True

        word_R = encoded.indices.to_numpy()
        source_R = by_source["source"].to_numpy()
        count_R = by_source["count"].to_numpy()

        # add.at sums 64-bit integers; bincount with weights would round to floats.
        np.add.at(usage.words_S, source_R, count_R)
        np.add.at(usage.tokens_S, source_R, count_R * tokens_N[word_R])
        np.add.at(usage.unknown_S, source_R, count_R * is_unknown_N[word_R])

        count_N = np.zeros(len(tokens_N), dtype=np.int64)
        np.add.at(count_N, word_R, count_R)
        np.add.at(usage.used_V, ids_K, np.repeat(count_N, tokens_N))

        length_N = np.fromiter(map(len, words), np.int64, len(words))
        usage.characters += int(length_N @ count_N)
        usage.unknown_characters += int(length_N[is_unknown_N] @ count_N[is_unknown_N])
        if self._longest_word is not None:
            usage.too_long_words += int(count_N[is_unknown_N & (length_N > self._longest_word)].sum())


def describe_usage(vocabulary: Vocabulary, usage: Usage, sources: Sequence[str]) -> dict[str, Any]:
    """Return the manifest's statistics: tokens per word and coverage, also by source, and notable tokens."""
    rows = zip(sources, usage.words_S.tolist(), usage.tokens_S.tolist(), usage.unknown_S.tolist(), strict=True)
    by_source = {name: {"words": words, **shares(words, tokens, unknown)} for name, words, tokens, unknown in rows}

    words = int(usage.words_S.sum())
    tokens = int(usage.tokens_S.sum())
    unknown = int(usage.unknown_S.sum())
    unknown_tokens = int(usage.used_V[vocabulary.special_id("unk")])
    return {
        **shares(words, tokens, unknown),
        "too_long_words": usage.too_long_words,
        "unknown_character_share": round(usage.unknown_characters / max(usage.characters, 1), 6),
        "unknown_tokens": unknown_tokens,
        "unknown_token_share": round(unknown_tokens / max(tokens, 1), 6),
        "by_source": by_source,
        **describe_tokens(vocabulary, usage.used_V),
    }


def shares(words: int, tokens: int, unknown: int) -> dict[str, Any]:
    """Return tokens per word, and how many words are known, from counts."""
    return {
        "tokens_per_word": round(tokens / max(words, 1), 4),
        "unknown_words": unknown,
        "coverage": round(1 - unknown / max(words, 1), 6),
    }


def describe_tokens(vocabulary: Vocabulary, used_V: Ints) -> dict[str, Any]:
    """Return notable ordinary tokens. `used_V`: how often each token occurs in the text."""
    tokens = vocabulary.tokens
    ordinary = vocabulary.ordinary_ids.tolist()
    lengths = {i: len(tokens[i].removeprefix("##")) for i in ordinary}

    longest_first = sorted(ordinary, key=lambda i: (-lengths[i], tokens[i]))
    rarest_first = sorted(ordinary, key=lambda i: (used_V[i], tokens[i]))
    used_rarest_first = [i for i in rarest_first if used_V[i] > 0]
    return {
        "single_characters": sum(length == 1 for length in lengths.values()),
        "never_used": int((used_V[vocabulary.ordinary_ids] == 0).sum()),
        "longest": [vocabulary.shown(i) for i in longest_first[:MAX_LISTED]],
        "rarest": [vocabulary.shown(i) for i in used_rarest_first[:MAX_LISTED]],
    }


def encode_words(model_alone: Tokenizer, words: Sequence[str]) -> tuple[Ints, Ints]:
    """Return (ids_K of all words end to end, tokens_N: the number of tokens of each word), both int64."""
    ids = [np.zeros(0, dtype=np.int64)]
    lengths = [np.zeros(0, dtype=np.int64)]

    for start in range(0, len(words), ENCODED_AT_ONCE):
        encodings = model_alone.encode_batch_fast(words[start : start + ENCODED_AT_ONCE], add_special_tokens=False)
        ids_of_word = [encoding.ids for encoding in encodings]
        ids.append(np.fromiter(chain.from_iterable(ids_of_word), np.int64))
        lengths.append(np.fromiter(map(len, ids_of_word), np.int64, len(ids_of_word)))

    return np.concatenate(ids), np.concatenate(lengths)


def word_tokenizer(tokenizer_json: bytes) -> tuple[Tokenizer, Callable[[str], str]]:
    """Return a tokenizer of single words, and a function that spells a word of the count table for it.

    Such words are already spelled as the model expects them, so the model encodes them without normalizing or cutting.
    Unigram's have case and accents, so they go through all rules, without the mark that they begin with.
    """
    tokenizer = literal_tokenizer(tokenizer_json)
    kind = parse_vocabulary(tokenizer_json, TOKENIZER_FILE).kind
    if not kind.rules_vary:
        # Words are counted with case if it goes without the accents.
        lowers = case_of(json.loads(tokenizer_json)) == (True, True)
        return Tokenizer(tokenizer.model), normalizers.Lowercase().normalize_str if lowers else str
    return tokenizer, lambda word: word.removeprefix(kind.word_start)


def compare_vocabularies(jsons: tuple[bytes, bytes], names: tuple[str, str], counts: WordCounts) -> Iterator[str]:
    """Yield lines that say what two vocabularies, A and B, share, and how each cuts the same words.

    jsons: the two tokenizer.json. names: their names in errors. counts: the words of A, most frequent first.
    """
    parsed = [parse_vocabulary(data, name) for data, name in zip(jsons, names, strict=True)]
    spelt_by = parsed[0].model
    is_plain = parsed[1].model != spelt_by
    a, b = (_Compared.of(data, vocabulary, spelt_by, is_plain) for data, vocabulary in zip(jsons, parsed, strict=True))

    in_a = set(a.compared.values())
    in_b = set(b.compared.values())
    shared = len(in_a & in_b)
    yield f"shared      {shared:,} tokens: {shared / parsed[0].size:.1%} of A, {shared / parsed[1].size:.1%} of B"
    yield "only in A   " + " ".join(a.first_missing(in_b))
    yield "only in B   " + " ".join(b.first_missing(in_a))
    yield from _compare_cuts(a, b, counts, kind_of(spelt_by).shown)


def _compare_cuts(a: _Compared, b: _Compared, counts: WordCounts, show_word: Callable[[str], str]) -> Iterator[str]:
    occurrences = 0
    tokens_in_a = 0
    tokens_in_b = 0
    different: list[str] = []
    for word, count in counts:
        cut_by_a = a.cut(word)
        cut_by_b = b.cut(word)
        occurrences += count
        tokens_in_a += count * len(cut_by_a)
        tokens_in_b += count * len(cut_by_b)

        is_different = [a.compared[token] for token in cut_by_a] != [b.compared[token] for token in cut_by_b]
        if is_different and len(different) < MAX_LISTED:
            different.append(f"    {show_word(word)}: {a.show(cut_by_a)}   |   {b.show(cut_by_b)}")

    per_word = f"{tokens_in_a / max(occurrences, 1):.4f} tokens in A, {tokens_in_b / max(occurrences, 1):.4f} in B"
    yield f"per word    {per_word}, over {occurrences:,} words"
    yield "cut differently, most frequent first (A | B):" if different else "all words are cut alike"
    yield from different


@dataclass(frozen=True)
class _Compared:
    """A vocabulary that is compared: its cut of a word, and how each token is shown and compared.

    Tokens of another model mark spaces and the insides of words differently, so only their text is compared then.
    """

    cut: Callable[[str], list[str]]
    shown: dict[str, str]
    compared: dict[str, str]

    @classmethod
    def of(cls, tokenizer_json: bytes, vocabulary: Vocabulary, spelt_by: Model, is_plain: bool) -> _Compared:
        """Words are spelled as in the count table of a `spelt_by` vocabulary, which may be of another model."""
        ids = range(vocabulary.size)
        shown = {vocabulary.tokens[i]: vocabulary.shown(i) for i in ids}
        compared = {vocabulary.tokens[i]: vocabulary.readable(i) for i in ids} if is_plain else shown
        cut = _cutter_by_spelling(tokenizer_json, vocabulary.model, spelt_by)
        unknown = vocabulary.tokens[vocabulary.special_id("unk")]  # Unigram's library returns the text in its place

        def cut_known(word: str) -> list[str]:
            return [token if token in shown else unknown for token in cut(word)]

        return cls(cut_known, shown, compared)

    def show(self, tokens: list[str]) -> str:
        """Return the tokens of a word as a line shows them."""
        return " ".join(self.shown[token] for token in tokens)

    def first_missing(self, others: set[str]) -> list[str]:
        """Return the first tokens that are not among those of the other vocabulary."""
        missing = (self.shown[token] for token, compared in self.compared.items() if compared not in others)
        return list(islice(missing, MAX_LISTED))


def _cutter_by_spelling(tokenizer_json: bytes, model: Model, spelt_by: Model) -> Callable[[str], list[str]]:
    """Return a function from a word to the tokens of a vocabulary."""
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    kind = kind_of(spelt_by)
    if model == spelt_by and not kind.rules_vary:
        _, spell = word_tokenizer(tokenizer_json)
        return lambda word: [token.value for token in tokenizer.model.tokenize(spell(word))]
    return lambda word: tokenizer.encode(kind.readable(word).strip(), add_special_tokens=False).tokens
