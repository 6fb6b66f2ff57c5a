"""Train a vocabulary from word counts. The result is its tokens in the order of their ids.

    wordpiece   [PAD] [UNK] [CLS] [SEP] [MASK], the sorted alphabet, then merges in the order learned
    bytebpe     <s> <pad> </s> <unk>, the 256 bytes, merges, and <mask> last, as in RoBERTa

Shape suffixes: N distinct words, T characters of all words, C code points (all of Unicode).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from pipeline.vocab.bpe import BPETrainer, join_bytes, join_wordpieces
from pipeline.vocab.symbol_array import WordSymbols
from pipeline.vocab.words import CODE_POINTS, WORDS_AT_ONCE, Words, common_characters, look_up
from schemas.errors import DataError
from schemas.ragged import offsets_of
from schemas.vocabulary import BERT_SPECIALS, Model

MAX_CUT = 0.005  # share of the text's characters that the default alphabet may leave out
MAX_WORD_CHARACTERS = 100  # characters; tokenizers encodes a longer word as [UNK] (in Google's code the limit is 200)
BYTEBPE_FIRST = ["<s>", "<pad>", "</s>", "<unk>"]
BYTEBPE_LAST = ["<mask>"]


@dataclass(frozen=True)
class TrainedVocabulary:
    """`tokens[i]` has id i. `cut_characters` were too rare for the alphabet: words with one of them become [UNK]."""

    tokens: list[str]
    merges: list[tuple[str, str]]
    cut_characters: dict[str, int]


@dataclass(frozen=True)
class VocabularyOptions:
    """What decides a vocabulary besides the word counts.

    size: the most tokens it may have. min_frequency: how often two tokens must meet to be merged. max_alphabet: most
    characters of a WordPiece alphabet, by default half of `size`. pad_to_multiple: [unusedN] tokens fill the vocabulary
    up to a multiple of this number.
    """

    model: Model
    size: int
    min_frequency: int
    max_alphabet: int | None = None
    pad_to_multiple: int = 1


def train_vocabulary(counts: pa.Table, options: VocabularyOptions) -> TrainedVocabulary:
    """Train a vocabulary from word counts (shards.COUNTS_SCHEMA).

    Raises DataError if `options.size` cannot hold the special tokens and the alphabet.
    """
    words = Words.of(counts)
    if options.model == "wordpiece":
        trained = train_wordpiece(words, options.size, options.min_frequency, options.max_alphabet)
        last: list[str] = []
    else:
        trained = train_bytebpe(words, options.size, options.min_frequency)
        last = BYTEBPE_LAST

    missing = -len(trained.tokens) % options.pad_to_multiple
    unused = [f"[unused{i}]" for i in range(missing)]
    others = trained.tokens[: len(trained.tokens) - len(last)]
    return replace(trained, tokens=[*others, *unused, *last])


def train_wordpiece(words: Words, size: int, min_frequency: int, max_alphabet: int | None) -> TrainedVocabulary:
    """Train a WordPiece vocabulary.

    The alphabet holds `max_alphabet` characters, by default half the vocabulary. Words with a rarer character are left
    out as a whole: without it, their remaining pieces would be joined to tokens that no text holds.

    Raises DataError if `size` is too small.
    """
    specials = list(BERT_SPECIALS.values())
    alphabet_limit = max_alphabet or max(1, size // 2 - len(specials))
    is_kept_C, cut = common_characters(words.count_characters(), alphabet_limit)
    if max_alphabet is None:
        check_coverage(words, cut, size)

    # Of each large array only one version is alive: the characters take as much memory as any array of the trainer.
    words = trainable_words(words, is_kept_C)
    symbols, alphabet = wordpiece_symbols(words)
    del words

    needed = len(specials) + len(alphabet)
    if needed > size:
        raise DataError(
            f"--size {size} cannot hold {len(specials)} special tokens and an alphabet of {len(alphabet)} characters. "
            f"Give at least {needed}."
        )

    trainer = BPETrainer(symbols, alphabet, join_wordpieces)
    del symbols
    trainer.train(size - len(specials), min_frequency)
    return TrainedVocabulary(specials + trainer.tokens, trainer.merges, cut)


def trainable_words(words: Words, is_kept_C: NDArray[np.bool_]) -> Words:
    """Return the words that a tokenizer would encode: not too long, and without a character that is not kept."""
    is_kept_T = look_up(is_kept_C, words.characters_T)
    all_kept_N = np.logical_and.reduceat(is_kept_T, offsets_of(words.lengths_N)[:-1])
    return words.select(all_kept_N & (words.lengths_N <= MAX_WORD_CHARACTERS))


def check_coverage(words: Words, cut: dict[str, int], size: int) -> None:
    """Raise DataError if the characters cut from the alphabet are not rare: their words would all become [UNK]."""
    cut_count = sum(cut.values())
    total = words.count_occurrences()
    if cut_count > MAX_CUT * total:
        raise DataError(
            f"--size {size} cannot hold the alphabet: half of it would leave out {len(cut)} characters that make up "
            f"{cut_count / total:.1%} of the text. Give at least {2 * (size // 2 + len(cut))}."
        )


def wordpiece_symbols(words: Words) -> tuple[WordSymbols, list[str]]:
    """Return the words as indices into an alphabet, and the alphabet.

    A character has two forms: `x` at the beginning of a word and `##x` inside one. Only forms that occur are included.
    """
    word_starts_N = offsets_of(words.lengths_N)[:-1]
    initial_C = np.bincount(words.characters_T[word_starts_N], minlength=CODE_POINTS)
    inner_C = _count_distinct_words_characters(words) - initial_C

    code_points = {chr(point): point for point in np.flatnonzero(initial_C).tolist()}
    inner_code_points = {f"##{chr(point)}": point for point in np.flatnonzero(inner_C).tolist()}
    alphabet = sorted([*code_points, *inner_code_points])

    initial_symbol_C = np.zeros(CODE_POINTS, dtype=np.int32)
    inner_symbol_C = np.zeros(CODE_POINTS, dtype=np.int32)
    for symbol, token in enumerate(alphabet):
        if token in code_points:
            initial_symbol_C[code_points[token]] = symbol
        else:
            inner_symbol_C[inner_code_points[token]] = symbol

    symbols_T = look_up(inner_symbol_C, words.characters_T)
    symbols_T[word_starts_N] = initial_symbol_C[words.characters_T[word_starts_N]]
    return WordSymbols(symbols_T, words.lengths_N, words.counts_N), alphabet


def _count_distinct_words_characters(words: Words) -> NDArray[np.int64]:
    """Return (C,) how often each character occurs when every distinct word counts once."""
    counts_C = np.zeros(CODE_POINTS, dtype=np.int64)
    for start in range(0, len(words.characters_T), WORDS_AT_ONCE):
        counts_C += np.bincount(words.characters_T[start : start + WORDS_AT_ONCE], minlength=CODE_POINTS)
    return counts_C


def train_bytebpe(words: Words, size: int, min_frequency: int) -> TrainedVocabulary:
    """Train a byte-level BPE vocabulary. Every byte has a token, so no word is ever unknown.

    Raises DataError if `size` is too small.
    """
    specials = len(BYTEBPE_FIRST) + len(BYTEBPE_LAST)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    needed = specials + len(alphabet)
    if needed > size:
        raise DataError(f"--size {size} cannot hold {specials} special tokens and 256 bytes. Give at least {needed}.")

    symbols = WordSymbols(byte_symbols(words, alphabet), words.lengths_N, words.counts_N)
    trainer = BPETrainer(symbols, alphabet, join_bytes)
    trainer.train(size - specials, min_frequency)
    return TrainedVocabulary(BYTEBPE_FIRST + trainer.tokens + BYTEBPE_LAST, trainer.merges, {})


def byte_symbols(words: Words, alphabet: Sequence[str]) -> NDArray[np.int32]:
    """Return (T,) each character as an index into the alphabet of bytes, whose characters are all below U+0200."""
    symbol_of_code_point = np.zeros(0x200, dtype=np.int32)
    code_points = [ord(character) for character in alphabet]
    symbol_of_code_point[code_points] = np.arange(len(alphabet))
    return look_up(symbol_of_code_point, words.characters_T)
