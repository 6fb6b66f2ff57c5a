"""Cuts pieces into words by a vocabulary's rules, many at once.

Printable ASCII, most of most European text, is cut by a table of byte classes: BERT's words are runs of letters and
digits, and every other character alone; GPT-2's are runs of letters, of digits or of other characters, and English
contractions; sentencepiece's are whole pieces, unless they contain two equal quotation marks in a row, which ALBERT and
XLNet replace. All other pieces go through the tokenizer's own rules one by one. When a cutter is made, it compares the
two on every pair of ASCII characters, and uses the table only if they agree.

Shape suffixes: P pieces, W words, T bytes. P1 has one element more than P.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipeline.pairs.pieces import SPACE_BYTE, Bools, Bytes, Ints, bytes_of, string_array
from pipeline.vocab.pretokenize import cutter_of
from schemas.vocabulary import SENTENCEPIECE_SPACE, SPACE, Model

_PRINTABLE = [chr(code) for code in range(0x21, 0x7F)]
_PROBES = ["".join(left + right for left in _PRINTABLE for right in _PRINTABLE), "'s't're've'm'll'd", "a'sb'rec'lld'x"]
"""Every pair of printable ASCII characters, and contractions. They show any difference between two sets of rules."""

_UNIGRAM_PROBES = [
    "".join(left + right for right in _PRINTABLE if left + right not in ("``", "''")) for left in _PRINTABLE
]

_LETTER = 1
_DIGIT = 2
_OTHER = 3
_APOSTROPHE = ord("'")
_GRAVE = ord("`")


def _byte_classes() -> NDArray[np.uint8]:
    classes = np.full(256, _OTHER, dtype=np.uint8)
    for code in range(128):
        character = chr(code)
        if character.isalpha():
            classes[code] = _LETTER
        elif character.isdigit():
            classes[code] = _DIGIT
    classes[SPACE_BYTE] = 0
    classes.setflags(write=False)
    return classes


_CLASSES = _byte_classes()


class Words(NamedTuple):
    """The words of P pieces: W strings end to end, and (P,) the number of words in each piece."""

    strings: pa.Array
    counts_P: Ints


class WordCutter:
    """The word rules of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, model: Model):
        self._cut = cutter_of(tokenizer, model)
        self._model = model
        self._keeps_spaces = model == "bytebpe"
        self._lowercases = False
        self._has_ascii_rules = self._find_ascii_rules(_UNIGRAM_PROBES if model == "unigram" else _PROBES)

    def is_plain(self, pieces: pa.Array) -> Bools:
        """Return (P,) bool: true for the pieces that `cut_plain` can cut. Pieces are not empty."""
        text, offsets_P1 = bytes_of(pieces)
        if not self._has_ascii_rules or len(pieces) == 0:
            return np.zeros(len(pieces), dtype=bool)

        # Below the space are control characters; 0x7F is another one, and higher bytes are UTF-8 outside of ASCII.
        is_plain_T = (text >= SPACE_BYTE) & (text < 0x7F)
        if self._keeps_spaces:
            # A space inside a piece means that the piece is a whole sentence (see pieces.py), whose white space belongs
            # to words.
            is_plain_T &= text != SPACE_BYTE
            is_plain_T[offsets_P1[:-1]] |= text[offsets_P1[:-1]] == SPACE_BYTE
        if self._model == "unigram":
            is_quote_T = (text == _APOSTROPHE) | (text == _GRAVE)
            is_plain_T[1:] &= ~(is_quote_T[1:] & (text[1:] == text[:-1]))
        return np.logical_and.reduceat(is_plain_T, offsets_P1[:-1])

    def cut_plain(self, pieces: pa.Array) -> Words:
        """Cut pieces of printable ASCII."""
        runs = pc.utf8_trim(pieces, characters=" ")  # type: ignore[attr-defined]
        if self._keeps_spaces:
            return _cut_like_gpt2(runs)

        if self._lowercases:
            runs = pc.ascii_lower(runs)  # type: ignore[attr-defined]
        return _cut_like_sentencepiece(runs) if self._model == "unigram" else _cut_like_bert(runs)

    def cut_any(self, pieces: list[str]) -> list[list[str]]:
        """Cut pieces of any characters, one by one."""
        return [self._cut(piece) for piece in self.runs_of(pieces)]

    def runs_of(self, pieces: list[str]) -> list[str]:
        """Return the pieces without the spaces that do not belong to a word."""
        if self._keeps_spaces:
            return pieces
        return [piece.strip(" ") for piece in pieces]

    def _find_ascii_rules(self, probes: list[str]) -> bool:
        """Return whether the table gives the tokenizer's own words, and set whether it must convert to lower case."""
        expected = list(chain.from_iterable(self._cut(probe) for probe in probes))
        for lowercases in (False, True):
            self._lowercases = lowercases
            if self.cut_plain(pa.array(probes)).strings.to_pylist() == expected:
                return True
        return False


def _cut_like_bert(runs: pa.Array) -> Words:
    """Cut runs of printable ASCII without spaces into BERT's words."""
    text, offsets_P1 = bytes_of(runs)
    is_other_T = _CLASSES[text] == _OTHER

    begins_T = is_other_T.copy()
    begins_T[1:] |= is_other_T[:-1]
    return _words(text, begins_T, offsets_P1)


def _cut_like_sentencepiece(runs: pa.Array) -> Words:
    """Return each run of printable ASCII without spaces as a word. An empty run (a lone space) has no word."""
    marked = pc.binary_join_element_wise(SENTENCEPIECE_SPACE, runs, "")  # type: ignore[attr-defined]
    is_word_P = pc.greater(pc.binary_length(runs), 0)  # type: ignore[attr-defined]
    return Words(marked.filter(is_word_P), is_word_P.to_numpy(zero_copy_only=False).astype(np.int64))


def _cut_like_gpt2(runs: pa.Array) -> Words:
    """Cut runs of printable ASCII without spaces into GPT-2's words; the first of each run includes a space."""
    spaced = pc.binary_join_element_wise("", runs, " ")  # type: ignore[attr-defined]
    text, offsets_P1 = bytes_of(spaced)
    class_T = _CLASSES[text]

    begins_T = np.zeros(len(text), dtype=bool)
    begins_T[1:] = (class_T[1:] != class_T[:-1]) & (class_T[:-1] != 0)
    _join_contractions(text, begins_T)

    words = _words(text, begins_T, offsets_P1)
    spelled = pc.replace_substring(words.strings, " ", SPACE)  # type: ignore[attr-defined]
    return Words(spelled, words.counts_P)


def _join_contractions(text: Bytes, begins_T: Bools) -> None:
    """Make 's 't 'm 'd 're 've 'll words where an apostrophe begins a word; what follows them begins another word."""
    # Pad with two bytes that no contraction has, so that two bytes follow every apostrophe.
    padded = np.append(text, np.zeros(2, dtype=np.uint8))
    places = np.flatnonzero(begins_T & (text == _APOSTROPHE))
    first = padded[places + 1]
    second = padded[places + 2]

    is_short = np.isin(first, np.frombuffer(b"stmd", dtype=np.uint8))
    is_re_or_ve = np.isin(first, np.frombuffer(b"rv", dtype=np.uint8)) & (second == ord("e"))
    is_long = is_re_or_ve | ((first == ord("l")) & (second == ord("l")))

    begins_T[places[is_short | is_long] + 1] = False
    ends = np.concatenate([places[is_short] + 2, places[is_long] + 3])
    begins_T[ends[ends < len(text)]] = True


def _words(text: Bytes, begins_T: Bools, offsets_P1: Ints) -> Words:
    """Return the words that begin where `begins_T` is true and at the start of each piece."""
    begins_T[offsets_P1[offsets_P1 < len(text)]] = True
    places_W = np.flatnonzero(begins_T)
    counts_P = np.diff(np.searchsorted(places_W, offsets_P1))
    return Words(string_array(text, places_W), counts_P)
