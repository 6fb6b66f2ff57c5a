"""Cutting many distinct runs into words at once, by the rules in `pretokenize`.

Runs of printable ASCII are cut by array operations: words end where the class of characters changes. All other runs
are cut by the tokenizers library, one at a time. A property test checks that both follow the same rules.

Shape suffixes: R runs, K words of all runs, B bytes of all runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.vocab.pretokenize import Cut, library_cutter
from pipeline.vocab.runs import bytes_of_strings, offsets_of_strings, strings_of
from schemas.ragged import offsets_of
from schemas.vocabulary import SPACE, Model

LETTER = 1
DIGIT = 2
OTHER = 3

CONTRACTIONS = (b"s", b"t", b"re", b"ve", b"m", b"ll", b"d")
"""What may follow an apostrophe in GPT-2's pattern to make a word of the two."""

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
    is_plain_R = _are_printable_ascii(runs)
    plain_runs = np.flatnonzero(is_plain_R)
    other_runs = np.flatnonzero(~is_plain_R)

    plain = _cut_ascii(runs.take(pa.array(plain_runs)), rules)
    others = _cut_by_library(runs.take(pa.array(other_runs)).to_pylist(), library_cutter(rules.model, rules.lowercase))
    return CutRuns(
        pa.concat_arrays([plain.words_K, others.words_K]),
        np.concatenate([plain_runs[plain.run_K], other_runs[others.run_K]]),
    )


def _are_printable_ascii(runs: pa.StringArray) -> NDArray[np.bool_]:
    """Return (R,) whether all bytes of a run are printable ASCII."""
    text_B = bytes_of_strings(runs)
    offsets = offsets_of_strings(runs)
    is_strange_B = (text_B <= 0x20) | (text_B >= 0x7F)
    strange_before = offsets_of(is_strange_B)[offsets - offsets[0]]
    return np.diff(strange_before) == 0


def _cut_by_library(runs: Sequence[str], cut: Cut) -> CutRuns:
    words_of_run = [cut(run) for run in runs]
    words = pa.array(chain.from_iterable(words_of_run), pa.string())
    words_in_run = np.fromiter(map(len, words_of_run), np.int64, len(words_of_run))
    return CutRuns(words, np.repeat(np.arange(len(runs)), words_in_run))


def _cut_ascii(runs: pa.StringArray, rules: Rules) -> CutRuns:
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
    word_lengths_K = np.diff(word_starts_K, append=len(text_B))
    if rules.model == "bytebpe":
        text_B = _with_spaces(text_B, starts_R)
        word_lengths_K += np.where(np.diff(run_K, prepend=-1) > 0, len(_SPACE), 0)

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
    class_B = CLASSES[text_B]
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


def _with_spaces(text_B: NDArray[np.uint8], starts_R: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Put the space that begins each run, as the byte alphabet spells it, before the run."""
    spelled = np.empty(len(text_B) + len(_SPACE) * len(starts_R), dtype=np.uint8)
    is_text = np.ones(len(spelled), dtype=bool)

    new_starts_R = starts_R + len(_SPACE) * np.arange(len(starts_R))
    for place, byte in enumerate(_SPACE.tolist()):
        spelled[new_starts_R + place] = byte
        is_text[new_starts_R + place] = False

    spelled[is_text] = text_B
    return spelled


def _classes() -> NDArray[np.uint8]:
    classes = np.full(256, OTHER, dtype=np.uint8)
    for code in range(256):
        character = chr(code)
        if character.isascii() and character.isalpha():
            classes[code] = LETTER
        elif character.isascii() and character.isdigit():
            classes[code] = DIGIT
    return classes


CLASSES = _classes()
LOWERED = np.frombuffer(bytes(range(256)).lower(), np.uint8)
