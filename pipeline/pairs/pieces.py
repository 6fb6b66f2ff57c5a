"""Cuts sentences into pieces, the strings that an encoder looks up, and pieces into words, many at once.

A piece begins at the start of a sentence and at every space, so it is a run of non-spaces with the space before it:
"the cat" is "the" and " cat". Pieces are adjacent in the text, so cutting copies nothing.

Two rules depend on the vocabulary:

    ideographs   BERT makes each one a word, so each can be a separate piece. Chinese text, which has no spaces and
                 hardly ever the same run twice, then has a few thousand distinct pieces
    white space  in byte-level BPE, white space other than single spaces between runs belongs to words. A sentence that
                 contains some is one piece

Shape suffixes: N sentences, P pieces, T bytes. N1 has one element more than N.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from pipeline.words.arrow import SPACE_BYTE, Bools, Bytes, Ints, bytes_of, strings_of
from pipeline.words.cut import CutStrings, are_plain, cut_plain, cut_where, isolate_ideographs
from pipeline.words.rules import Rules, cutter_of
from schemas.ragged import offsets_of
from schemas.vocabulary import Model

_FIRST_PRINTABLE = 0x20

_WHITE_SPACE = tuple(
    character.encode()
    for character in "\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""White space outside of ASCII, as UTF-8."""

_PRINTABLE = [chr(code) for code in range(0x21, 0x7F)]


def cut_into_pieces(sentences: pa.Array, isolates_ideographs: bool, keeps_white_space: bool) -> CutStrings:
    """Cut N sentences, which may be a slice of a longer column. The two rules are those at the top of this file."""
    text, starts_N1 = bytes_of(sentences)
    begins_T = text == SPACE_BYTE
    if keeps_white_space:
        begins_T &= ~_in_irregular_sentences(text, starts_N1)
    if isolates_ideographs:
        isolate_ideographs(begins_T, text)
    return cut_where(begins_T, text, starts_N1)


class WordCutter:
    """Cuts pieces into words by the rules of one tokenizer.

    Pieces of printable ASCII, most of most European text, are cut by array operations (pipeline/words/cut.py), if these
    cut every pair of ASCII characters as the tokenizer does. All others go through its own rules one by one.
    """

    def __init__(self, tokenizer: Tokenizer, model: Model):
        self._cut = cutter_of(tokenizer, model)
        self._model: Model = model
        self._array_rules = self._find_array_rules()

    def is_plain(self, pieces: pa.Array) -> Bools:
        """Return (P,) bool: true for the pieces that `cut_plain` can cut. Pieces are not empty."""
        if self._array_rules is None:
            return np.zeros(len(pieces), dtype=bool)
        # A space inside a piece means that the piece is a whole sentence, whose white space belongs to words.
        return are_plain(_without_first_space(pieces), self._model, only_ascii=True)

    def cut_plain(self, pieces: pa.Array) -> CutStrings:
        """Cut plain pieces."""
        assert self._array_rules is not None
        return cut_plain(_without_first_space(pieces), self._array_rules)

    def cut_any(self, pieces: list[str]) -> list[list[str]]:
        """Cut pieces of any characters, one by one."""
        return [self._cut(run) for run in self.runs_of(pieces)]

    def runs_of(self, pieces: list[str]) -> list[str]:
        """Return the pieces without the spaces that do not belong to a word."""
        if self._model == "bytebpe":
            return pieces
        return [piece.strip(" ") for piece in pieces]

    def _find_array_rules(self) -> Rules | None:
        """Return the rules with which array operations cut as the tokenizer does, if there are any."""
        # Every pair of printable ASCII characters, and contractions, show any difference between two sets of rules.
        # Array operations do not cut two equal quotation marks in a row by the rules of Unigram.
        pairs = (left + right for left in _PRINTABLE for right in _PRINTABLE)
        tested = "".join(pair for pair in pairs if self._model != "unigram" or pair not in ("``", "''"))
        probes = [tested, "'s't're've'm'll'd", "a'sb'rec'lld'x"]
        expected = list(chain.from_iterable(map(self._cut, probes)))
        for rules in (Rules(self._model, lowercase=False), Rules(self._model, lowercase=True)):
            if cut_plain(pa.array(probes), rules).parts.to_pylist() == expected:
                return rules
        return None


def _without_first_space(pieces: pa.Array) -> pa.StringArray:
    """Return pieces, which are not empty, without the space that may begin each."""
    text, starts_P1 = bytes_of(pieces)
    starts_P = starts_P1[:-1]
    has_space_P = text[starts_P] == SPACE_BYTE

    is_kept_T = np.ones(len(text), dtype=bool)
    is_kept_T[starts_P[has_space_P]] = False
    return strings_of(text[is_kept_T], starts_P1 - offsets_of(has_space_P))


def _in_irregular_sentences(text: Bytes, starts_N1: Ints) -> Bools:
    """Return (T,) bool: whether each byte is in a sentence with white space other than single spaces between runs.

    A single space at the start of a sentence is regular too, because the first run would get one anyway.
    """
    is_space_T = text == SPACE_BYTE
    irregular = [np.flatnonzero(text < _FIRST_PRINTABLE), _other_white_space(text)]
    irregular.append(np.flatnonzero(is_space_T[1:] & is_space_T[:-1]))

    # A space as the last byte of a sentence.
    ends = starts_N1[1:][np.diff(starts_N1) > 0] - 1
    irregular.append(ends[is_space_T[ends]])

    places = np.concatenate(irregular)
    if len(places) == 0:
        return np.zeros(len(text), dtype=bool)

    lengths_N = np.diff(starts_N1)
    is_irregular_N = np.zeros(len(lengths_N), dtype=bool)
    is_irregular_N[np.searchsorted(starts_N1, places, side="right") - 1] = True
    return np.repeat(is_irregular_N, lengths_N)


def _other_white_space(text: Bytes) -> Ints:
    """Return the byte offsets at which white space outside of ASCII begins."""
    found = []
    for lead in sorted({encoded[0] for encoded in _WHITE_SPACE}):
        leads = np.flatnonzero(text == lead)
        for encoded in _WHITE_SPACE:
            if encoded[0] != lead or len(leads) == 0:
                continue

            # Text is valid UTF-8, so the bytes after a lead byte exist.
            matches = text[leads + 1] == encoded[1]
            if len(encoded) == 3:
                matches &= text[leads + 2] == encoded[2]
            found.append(leads[matches])
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
