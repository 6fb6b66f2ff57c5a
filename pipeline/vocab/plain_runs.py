"""Cuts plain runs into words by array operations: a word ends where the class of characters changes.

Which runs are plain depends on the rules:

    BERT's rules    runs of printable ASCII
    GPT-2's rules   runs of characters whose class char_classes.py knows, which are those of most languages
    sentencepiece's runs of printable ASCII without two equal quotation marks in a row, which are replaced

The bytes of all runs are end to end in one array, and a boolean for each byte says whether a word begins there.

Shape suffixes: R runs, B bytes of all runs, B1 one more, for the end of the last byte, K words of all runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.vocab.arrow_strings import bytes_of_strings, offsets_of_strings, slices_of_strings, strings_of
from pipeline.vocab.char_classes import BYTE_SPELLINGS, CLASSES, LOWERED, OTHER, UNKNOWN, classes_of
from schemas.ragged import offsets_of
from schemas.vocabulary import SENTENCEPIECE_SPACE, SPACE, Model

CONTRACTIONS = (b"s", b"t", b"re", b"ve", b"m", b"ll", b"d")
"""Letters that form a word with an apostrophe before them, in GPT-2's pattern."""

CUT_AT_ONCE = 8 << 20  # bytes of runs

_FIRST_PRINTABLE = ord("!")
_LAST_PRINTABLE = ord("~")
_FIRST_BYTE_BEYOND_ASCII = 0x80

_SPACE = np.frombuffer(SPACE.encode(), np.uint8)
_APOSTROPHE = ord("'")
_GRAVE = ord("`")


@dataclass(frozen=True)
class CutRuns:
    """`words_K[k]` is a word of run `run_K[k]`. The order of words has no meaning."""

    words_K: pa.Array
    run_K: NDArray[np.int64]


def are_plain(runs: pa.StringArray, model: Model) -> NDArray[np.bool_]:
    """Return (R,) bool: whether array operations can cut each run."""
    if len(runs) == 0:
        return np.zeros(0, dtype=bool)

    text_B = bytes_of_strings(runs)
    if model != "bytebpe":
        is_strange_B = (text_B < _FIRST_PRINTABLE) | (text_B > _LAST_PRINTABLE)
        if model == "unigram":
            # This also compares the end of one run with the start of the next, which only sends two more runs to the
            # library.
            is_strange_B[1:] |= ((text_B[1:] == _APOSTROPHE) | (text_B[1:] == _GRAVE)) & (text_B[1:] == text_B[:-1])
    else:
        is_strange_B = classes_of(text_B) == UNKNOWN

    offsets = offsets_of_strings(runs)
    starts_R = offsets[:-1] - offsets[0]
    is_strange_R = np.logical_or.reduceat(is_strange_B, starts_R)
    return ~is_strange_R


def cut_plain_runs(runs: pa.StringArray, model: Model, lowercase: bool) -> CutRuns:
    """Cut plain runs, a few megabytes at a time: all at once would take ten times their memory."""
    words = [pa.array([], pa.string())]
    run_of_words = [np.zeros(0, np.int64)]

    for start, stop in slices_of_strings(runs, CUT_AT_ONCE):
        cut = _cut_slice(runs.slice(start, stop - start), model, lowercase)
        words.append(cut.words_K)
        run_of_words.append(cut.run_K + start)

    return CutRuns(pa.concat_arrays(words), np.concatenate(run_of_words))


def _cut_slice(runs: pa.StringArray, model: Model, lowercase: bool) -> CutRuns:
    text_B = bytes_of_strings(runs)
    lengths_R = np.diff(offsets_of_strings(runs))
    starts_R = offsets_of(lengths_R)[:-1]

    if model == "unigram":
        words_K = pc.binary_join_element_wise(SENTENCEPIECE_SPACE, runs, "")  # type: ignore[attr-defined]
        return CutRuns(words_K, np.arange(len(runs)))

    if model == "wordpiece":
        if lowercase:
            text_B = LOWERED[text_B]
        begins_word_B = _begins_bert_word(text_B, starts_R)
    else:
        begins_word_B = _begins_gpt2_word(text_B, starts_R)

    word_starts_K = np.flatnonzero(begins_word_B)
    run_K = np.searchsorted(starts_R, word_starts_K, side="right") - 1

    if model == "bytebpe":
        # Spelling the bytes out moves the starts of words.
        spelled = _spell_bytes(text_B, starts_R)
        text_B = spelled.text
        word_starts_K = spelled.start_of_byte_B1[word_starts_K]

    word_lengths_K = np.diff(word_starts_K, append=len(text_B))
    return CutRuns(strings_of(text_B, word_lengths_K), run_K)


def _begins_bert_word(text_B: NDArray[np.uint8], starts_R: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (B,) bool: where BERT's words begin.

    A word is a run of letters and digits, or any other character alone.
    """
    is_other_B = CLASSES[text_B] == OTHER

    # A word begins at any other character, right after one, and at the start of a run.
    begins_B = is_other_B.copy()
    begins_B[1:] |= is_other_B[:-1]
    begins_B[starts_R] = True
    return begins_B


def _begins_gpt2_word(text_B: NDArray[np.uint8], starts_R: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (B,) bool: where GPT-2's words begin.

    A word is a run of letters, of digits or of other characters, or a contraction ("'s").
    """
    class_B = classes_of(text_B)
    begins_run_B = np.zeros(len(text_B), dtype=bool)
    begins_run_B[starts_R] = True

    begins_B = begins_run_B.copy()
    begins_B[1:] |= class_B[1:] != class_B[:-1]

    # A contraction begins where a word would begin, except at the start of a run, where a space comes before it.
    can_begin_contraction_B = (text_B == _APOSTROPHE) & begins_B & ~begins_run_B
    apostrophes = np.flatnonzero(can_begin_contraction_B)

    for letters in CONTRACTIONS:
        are_followed = _are_followed_by(text_B, apostrophes, letters, begins_run_B)
        found = apostrophes[are_followed]

        # The letters belong to the apostrophe's word, and another word begins after them.
        begins_B[found + 1] = False
        ends = found + 1 + len(letters)
        ends_within_text = ends[ends < len(text_B)]
        begins_B[ends_within_text] = True

    return begins_B


def _are_followed_by(
    text_B: NDArray[np.uint8],
    positions: NDArray[np.int64],
    letters: bytes,
    begins_run_B: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return whether these letters follow each position in the same run."""
    last = len(text_B) - 1
    are_there = positions + len(letters) <= last

    for place, letter in enumerate(letters, start=1):
        # Positions too close to the end are already excluded; the minimum only keeps their index valid.
        following = np.minimum(positions + place, last)
        are_there &= text_B[following] == letter
        are_there &= ~begins_run_B[following]

    return are_there


@dataclass(frozen=True)
class _SpelledBytes:
    """Bytes as byte-level BPE spells them.

    start_of_byte_B1: where the spelling of each byte begins in the text.
    """

    text: NDArray[np.uint8]
    start_of_byte_B1: NDArray[np.int64]


def _spell_bytes(text_B: NDArray[np.uint8], starts_R: NDArray[np.int64]) -> _SpelledBytes:
    """Spell bytes as byte-level BPE does, including the space that begins each run.

    The spelling of a run's first byte includes the space.
    """
    # Known ASCII characters spell themselves; any other byte becomes a character of two bytes.
    has_two_B = text_B >= _FIRST_BYTE_BEYOND_ASCII
    lengths_B = 1 + has_two_B
    lengths_B[starts_R] += len(_SPACE)
    start_of_byte_B1 = offsets_of(lengths_B)

    spelled = np.empty(start_of_byte_B1[-1], dtype=np.uint8)
    for place, byte in enumerate(_SPACE.tolist()):
        spelled[start_of_byte_B1[starts_R] + place] = byte

    # Write the last byte of each spelling, and the first byte of those with two.
    ends_B = start_of_byte_B1[1:]
    spelled[ends_B - 1] = BYTE_SPELLINGS[text_B, 1]
    spelled[ends_B[has_two_B] - 2] = BYTE_SPELLINGS[text_B[has_two_B], 0]
    return _SpelledBytes(spelled, start_of_byte_B1)
