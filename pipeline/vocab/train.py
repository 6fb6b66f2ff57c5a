"""From word counts to the tokens of a vocabulary, in the order of their ids.

wordpiece   [PAD] [UNK] [CLS] [SEP] [MASK], the alphabet sorted, then merges in the order learnt
bytebpe     <s> <pad> </s> <unk>, the 256 bytes, merges, and <mask> last, as in RoBERTa

Letters: T characters of all different words, N words, C code points (all of Unicode).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from pipeline.vocab.bpe import BPETrainer, join_bytes, join_wordpieces
from schemas.errors import DataError
from schemas.ragged import offsets_of
from schemas.vocabulary import BERT_SPECIALS, Model

MOST_CUT = 0.005  # share of the text's characters that the alphabet may leave out
MAX_WORD = 100  # characters; a longer word becomes [UNK] when encoded (tokenizers' limit; Google's was 200)
CODE_POINTS = 0x110000
AT_ONCE = 100_000  # words or characters in one array operation, where numpy makes large copies


@dataclass(frozen=True)
class Words:
    """Different words end to end: word i, the next `lengths_N[i]` of `characters_T`, occurs `counts_N[i]` times."""

    characters_T: NDArray[np.uint32]
    lengths_N: NDArray[np.int64]
    counts_N: NDArray[np.int64]

    @classmethod
    def of(cls, counts: pa.Table) -> Words:
        """From a table of word counts."""
        lengths_N = pc.utf8_length(counts["word"]).to_numpy().astype(np.int64)  # type: ignore[attr-defined]
        return cls(
            np.frombuffer(_text_of(counts).encode("utf-32-le"), np.uint32), lengths_N, counts["count"].to_numpy()
        )

    def count_characters(self) -> NDArray[np.int64]:
        """(C,) how often each character occurs in the text, exactly."""
        counts_C = np.zeros(CODE_POINTS, dtype=np.int64)
        begins_N1 = offsets_of(self.lengths_N)
        for first in range(0, len(self.counts_N), AT_ONCE):
            last = min(first + AT_ONCE, len(self.counts_N))
            characters = self.characters_T[begins_N1[first] : begins_N1[last]]
            np.add.at(counts_C, characters, np.repeat(self.counts_N[first:last], self.lengths_N[first:last]))
        return counts_C

    def only(self, kept_N: NDArray[np.bool_]) -> Words:
        kept_T = np.repeat(kept_N, self.lengths_N)
        return Words(self.characters_T[kept_T], self.lengths_N[kept_N], self.counts_N[kept_N])


def _text_of(counts: pa.Table) -> str:
    """All words end to end, out of Arrow's memory: as Python's strings they would take six times as much."""
    words = counts["word"].combine_chunks()
    _, offsets, text = words.buffers()
    if len(words) == 0 or text is None:
        return ""
    begin, *_, end = np.frombuffer(offsets, np.int32)[words.offset :][: len(words) + 1]
    return text[int(begin) : int(end)].to_pybytes().decode()


@dataclass(frozen=True)
class TrainedVocabulary:
    """`tokens[i]` has id i. `cut_characters` were too rare for the alphabet: words that hold one become [UNK]."""

    tokens: list[str]
    merges: list[tuple[str, str]]
    cut_characters: dict[str, int]


def train_vocabulary(
    counts: pa.Table,
    model: Model,
    size: int,
    min_frequency: int,
    max_alphabet: int | None = None,
    pad_to_multiple: int = 1,
) -> TrainedVocabulary:
    """Learn a vocabulary of at most `size` tokens, filled up to a multiple with [unusedN] when asked.

    `counts` are shards.COUNTS.

    Raises DataError when `size` cannot hold the special tokens and the alphabet.
    """
    if model == "wordpiece":
        learnt = train_wordpiece(Words.of(counts), size, min_frequency, max_alphabet)
    else:
        learnt = train_bytebpe(Words.of(counts), size, min_frequency)
    unused = [f"[unused{i}]" for i in range(-len(learnt.tokens) % pad_to_multiple)]
    last = ["<mask>"] if model == "bytebpe" else []  # stays last, as in RoBERTa
    ordinary = learnt.tokens[: len(learnt.tokens) - len(last)]
    return replace(learnt, tokens=[*ordinary, *unused, *last])


def train_wordpiece(words: Words, size: int, min_frequency: int, max_alphabet: int | None) -> TrainedVocabulary:
    """At most `max_alphabet` characters, by default half the vocabulary; a word with a rarer one is left out."""
    specials = list(BERT_SPECIALS.values())
    kept_C, cut = common_characters(words.count_characters(), max_alphabet or max(1, size // 2 - len(specials)))
    if max_alphabet is None:
        check_coverage(words, cut, size)
    whole_N = np.logical_and.reduceat(look_up(kept_C, words.characters_T), offsets_of(words.lengths_N)[:-1])
    words = words.only(whole_N & (words.lengths_N <= MAX_WORD))
    symbols_T, alphabet = wordpiece_symbols(words)
    lengths_N, counts_N = words.lengths_N, words.counts_N
    del words  # its characters are as large as any array of the learner
    if len(specials) + len(alphabet) > size:
        raise DataError(
            f"--size {size} cannot hold {len(specials)} special tokens and an alphabet of {len(alphabet)} characters. "
            f"Give at least {len(specials) + len(alphabet)}."
        )
    learner = BPETrainer(symbols_T, lengths_N, counts_N, alphabet, join_wordpieces)
    del symbols_T
    learner.train(size - len(specials), min_frequency)
    return TrainedVocabulary(specials + learner.tokens, learner.merges, cut)


def wordpiece_symbols(words: Words) -> tuple[NDArray[np.int32], list[str]]:
    """(each character's place in the alphabet, the alphabet: `x` to begin a word with, `##x` to go on with)."""
    begins_N = offsets_of(words.lengths_N)[:-1]
    begun_C = np.bincount(words.characters_T[begins_N], minlength=CODE_POINTS)
    found_C = sum(
        np.bincount(words.characters_T[first : first + AT_ONCE], minlength=CODE_POINTS)
        for first in range(0, len(words.characters_T), AT_ONCE)
    )
    forms = {chr(point): (0, point) for point in np.flatnonzero(begun_C).tolist()}
    forms |= {f"##{chr(point)}": (1, point) for point in np.flatnonzero(found_C - begun_C).tolist()}
    alphabet = sorted(forms)
    places_2C = np.zeros((2, CODE_POINTS), dtype=np.int32)
    for i, token in enumerate(alphabet):
        places_2C[forms[token]] = i
    symbols_T = look_up(places_2C[1], words.characters_T)
    symbols_T[begins_N] = places_2C[0][words.characters_T[begins_N]]
    return symbols_T, alphabet


def look_up(table: NDArray[Any], places_T: NDArray[Any]) -> NDArray[Any]:
    """`table[places_T]`, a part at a time: numpy makes a copy of the places in 64 bits."""
    found_T = np.empty(len(places_T), dtype=table.dtype)
    for first in range(0, len(places_T), AT_ONCE):
        found_T[first : first + AT_ONCE] = table[places_T[first : first + AT_ONCE]]
    return found_T


def check_coverage(words: Words, cut: dict[str, int], size: int) -> None:
    """Raises DataError when the characters cut are not rare ones: their words would all be [UNK]."""
    characters = int(words.lengths_N @ words.counts_N)
    if sum(cut.values()) > MOST_CUT * characters:
        raise DataError(
            f"--size {size} cannot hold the alphabet: half of it would leave out {len(cut)} characters that make up "
            f"{sum(cut.values()) / characters:.1%} of the text. Give at least {2 * (size // 2 + len(cut))}."
        )


def train_bytebpe(words: Words, size: int, min_frequency: int) -> TrainedVocabulary:
    """Every byte has a token, so nothing is ever unknown."""
    first, last = ["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fixed = len(first) + len(alphabet) + len(last)
    if fixed > size:
        raise DataError(f"--size {size} cannot hold {fixed - 256} special tokens and 256 bytes. Give at least {fixed}.")
    symbols_T = byte_symbols(words, alphabet)
    learner = BPETrainer(symbols_T, words.lengths_N, words.counts_N, alphabet, join_bytes)
    learner.train(size - len(first) - len(last), min_frequency)
    return TrainedVocabulary(first + learner.tokens + last, learner.merges, {})


def byte_symbols(words: Words, alphabet: Sequence[str]) -> NDArray[np.int32]:
    """Each character's place in the alphabet of bytes, whose characters all lie below U+0200."""
    places = np.zeros(0x200, dtype=np.int32)
    places[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    return look_up(places, words.characters_T)


def common_characters(counts_C: NDArray[np.int64], at_most: int) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """((C,) true for the commonest characters, the others with their counts); ties go to the lower code point."""
    found = np.flatnonzero(counts_C)
    ranked = found[np.argsort(-counts_C[found], kind="stable")]
    kept_C = np.zeros(CODE_POINTS, dtype=bool)
    kept_C[ranked[:at_most]] = True
    return kept_C, {chr(point): int(counts_C[point]) for point in ranked[at_most:].tolist()}
