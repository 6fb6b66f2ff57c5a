"""Cutting many distinct runs into words at once, by the rules in `pretokenize`.

Most runs are cut by array operations: words end where the class of characters changes. These are

    BERT's rules    runs of printable ASCII
    GPT-2's rules   runs of characters whose class char_classes.py knows, which are those of most languages

All other runs are cut by the tokenizers library, one at a time. In Chinese they would be whole clauses, hardly one of
them twice, and BERT's rules make every ideograph a word. So they are cut there first, and the library gets each
distinct piece once. A property test checks that all ways follow the same rules.

Shape suffixes: R runs, P pieces of all runs, D distinct pieces, K words of all runs, B bytes of all runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.vocab.char_classes import BYTE_SPELLINGS, CLASSES, LOWERED, OTHER, UNKNOWN, classes_of, ideographs_of
from pipeline.vocab.pretokenize import library_cutter
from pipeline.vocab.runs import bytes_of_strings, offsets_of_strings, slices_of_strings, strings_of
from schemas.ragged import offsets_of, places_of_ranges
from schemas.vocabulary import SPACE, Model

CONTRACTIONS = (b"s", b"t", b"re", b"ve", b"m", b"ll", b"d")
"""What may follow an apostrophe in GPT-2's pattern to make a word of the two."""

CUT_AT_ONCE = 8 << 20  # bytes of runs

_SPACE = np.frombuffer(SPACE.encode(), np.uint8)
_APOSTROPHE = ord("'")


@dataclass(frozen=True)
class Rules:
    """What decides how text is cut into words. Vocabularies with equal rules can be learned from the same counts."""

    model: Model
    lowercase: bool

    @property
    def name(self) -> str:
        """As the files of counts are named."""
        if self.model == "bytebpe":
            return "bytebpe"
        return "wordpiece_uncased" if self.lowercase else "wordpiece_cased"


ALL_RULES = (Rules("wordpiece", lowercase=True), Rules("wordpiece", lowercase=False), Rules("bytebpe", lowercase=False))


@dataclass(frozen=True)
class CutRuns:
    """`words_K[k]` is a word of run `run_K[k]`. The order of words says nothing."""

    words_K: pa.Array
    run_K: NDArray[np.int64]


def cut_runs(runs: pa.StringArray, rules: Rules) -> CutRuns:
    """Cut runs, which are not empty and hold no space, into words."""
    is_plain_R = _are_plain(runs, rules)
    plain_runs = np.flatnonzero(is_plain_R)
    other_runs = np.flatnonzero(~is_plain_R)

    plain = _cut_in_slices(runs.take(pa.array(plain_runs)), rules)
    others = _cut_by_library(runs.take(pa.array(other_runs)), rules)
    return CutRuns(
        pa.concat_arrays([plain.words_K, others.words_K]),
        np.concatenate([plain_runs[plain.run_K], other_runs[others.run_K]]),
    )


def _cut_in_slices(runs: pa.StringArray, rules: Rules) -> CutRuns:
    """Cut plain runs, some megabytes of them at a time: all at once would take ten times their memory."""
    slices = [CutRuns(pa.array([], pa.string()), np.zeros(0, np.int64))]
    for start, stop in slices_of_strings(runs, CUT_AT_ONCE):
        cut = _cut_plain(runs.slice(start, stop - start), rules)
        slices.append(CutRuns(cut.words_K, cut.run_K + start))

    return CutRuns(
        pa.concat_arrays([cut.words_K for cut in slices]),
        np.concatenate([cut.run_K for cut in slices]),
    )


def _are_plain(runs: pa.StringArray, rules: Rules) -> NDArray[np.bool_]:
    """Return (R,) whether array operations can cut a run."""
    text_B = bytes_of_strings(runs)
    offsets = offsets_of_strings(runs)
    if rules.model == "wordpiece":
        is_strange_B = (text_B <= 0x20) | (text_B >= 0x7F)
    else:
        is_strange_B = classes_of(text_B) == UNKNOWN

    if len(runs) == 0:
        return np.zeros(0, dtype=bool)
    starts_R = offsets[:-1] - offsets[0]
    return ~np.logical_or.reduceat(is_strange_B, starts_R)


def _cut_by_library(runs: pa.StringArray, rules: Rules) -> CutRuns:
    pieces_P, run_P = _cut_at_ideographs(runs) if rules.model == "wordpiece" else (runs, np.arange(len(runs)))
    encoded = pieces_P.dictionary_encode()
    cut = library_cutter(rules.model, rules.lowercase)
    words_of_piece = [cut(piece) for piece in encoded.dictionary.to_pylist()]
    words = pa.array(chain.from_iterable(words_of_piece), pa.string())

    words_in_D = np.fromiter(map(len, words_of_piece), np.int64, len(words_of_piece))
    first_in_D = offsets_of(words_in_D)[:-1]
    piece_P = encoded.indices.to_numpy()
    places = places_of_ranges(first_in_D[piece_P], words_in_D[piece_P])
    return CutRuns(words.take(pa.array(places)), np.repeat(run_P, words_in_D[piece_P]))


def _cut_at_ideographs(runs: pa.StringArray) -> tuple[pa.StringArray, NDArray[np.int64]]:
    """Return pieces of runs, and the run of each. Common ideographs are pieces by themselves.

    BERT's normalizer sets them apart by spaces before it does anything that looks at neighbors.
    """
    text_B = bytes_of_strings(runs)
    starts_R = offsets_of(np.diff(offsets_of_strings(runs)))[:-1]
    leads = ideographs_of(text_B)

    begins_B1 = np.zeros(len(text_B) + 1, dtype=bool)
    begins_B1[starts_R] = True
    begins_B1[leads] = True
    begins_B1[leads + 3] = True

    starts_P = np.flatnonzero(begins_B1[:-1])
    run_P = np.searchsorted(starts_R, starts_P, side="right") - 1
    return strings_of(text_B, np.diff(starts_P, append=len(text_B))), run_P


def _cut_plain(runs: pa.StringArray, rules: Rules) -> CutRuns:
    text_B = bytes_of_strings(runs)
    lengths_R = np.diff(offsets_of_strings(runs))
    starts_R = offsets_of(lengths_R)[:-1]

    if rules.model == "wordpiece":
        text_B = LOWERED[text_B] if rules.lowercase else text_B
        begins_word_B = _begins_bert_word(text_B, starts_R)
    else:
        begins_word_B = _begins_gpt2_word(text_B, starts_R)

    word_starts_K = np.flatnonzero(begins_word_B)
    run_K = np.searchsorted(starts_R, word_starts_K, side="right") - 1
    if rules.model == "bytebpe":
        text_B, spelled_at_B1 = _spell_bytes(text_B, starts_R)
        word_starts_K = spelled_at_B1[word_starts_K]

    word_lengths_K = np.diff(word_starts_K, append=len(text_B))
    return CutRuns(strings_of(text_B, word_lengths_K), run_K)


def _begins_bert_word(text_B: NDArray[np.uint8], starts_R: NDArray[np.int64]) -> NDArray[np.bool_]:
    """BERT's words are letters and digits without anything between them, and every other character by itself."""
    is_other_B = CLASSES[text_B] == OTHER
    begins_B = is_other_B.copy()
    begins_B[1:] |= is_other_B[:-1]
    begins_B[starts_R] = True
    return begins_B


def _begins_gpt2_word(text_B: NDArray[np.uint8], starts_R: NDArray[np.int64]) -> NDArray[np.bool_]:
    """GPT-2's words are letters, digits or others without a change of class, and contractions ("'s")."""
    class_B = classes_of(text_B)
    begins_B = np.ones(len(text_B), dtype=bool)
    begins_B[1:] = class_B[1:] != class_B[:-1]
    begins_run_B = np.zeros(len(text_B), dtype=bool)
    begins_run_B[starts_R] = True
    begins_B |= begins_run_B

    # A contraction begins where a word would begin, but not at the start of a run, where a space comes before it.
    apostrophes = np.flatnonzero((text_B == _APOSTROPHE) & begins_B & ~begins_run_B)
    for letters in CONTRACTIONS:
        found = apostrophes[_are_followed_by(text_B, apostrophes, letters, begins_run_B)]
        begins_B[found + 1] = False
        ends = found + 1 + len(letters)
        begins_B[ends[ends < len(text_B)]] = True
    return begins_B


def _are_followed_by(
    text_B: NDArray[np.uint8], positions: NDArray[np.int64], letters: bytes, begins_run_B: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return whether these letters follow each position in the same run."""
    last = len(text_B) - 1
    are_there = positions + len(letters) <= last
    for place, letter in enumerate(letters, start=1):
        following = np.minimum(positions + place, last)
        are_there &= (text_B[following] == letter) & ~begins_run_B[following]
    return are_there


def _spell_bytes(text_B: NDArray[np.uint8], starts_R: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Spell bytes as byte-level BPE does, with the space that begins each run.

    Returns the text, and (B + 1,) where the spelling of each byte begins in it. That of a run's first byte begins with
    the space.
    """
    lengths_B = 1 + (text_B >= 0x80)
    lengths_B[starts_R] += len(_SPACE)
    spelled_at_B1 = offsets_of(lengths_B)

    spelled = np.empty(spelled_at_B1[-1], dtype=np.uint8)
    for place, byte in enumerate(_SPACE.tolist()):
        spelled[spelled_at_B1[starts_R] + place] = byte

    # Written from the end: the last byte of each spelling, and the first of those of two.
    ends_B = spelled_at_B1[1:]
    spelled[ends_B - 1] = BYTE_SPELLINGS[text_B, 1]
    has_two_B = text_B >= 0x80
    spelled[ends_B[has_two_B] - 2] = BYTE_SPELLINGS[text_B[has_two_B], 0]
    return spelled, spelled_at_B1
