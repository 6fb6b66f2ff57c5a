"""Cuts sentences into pieces, the strings that an encoder looks up: all sentences of a chunk at once, by bytes.

A piece begins at the start of a sentence and at every space, so it is a run of non-spaces with the space before it:
"the cat" is "the" and " cat". Pieces are adjacent in the text, so cutting copies nothing.

Two rules depend on the vocabulary:

    ideographs   BERT makes each one a word, so each can be a separate piece. Chinese text, which has no spaces and
                 hardly ever the same run twice, then has a few thousand distinct pieces
    white space  in byte-level BPE, white space other than single spaces between runs belongs to words. A sentence that
                 contains some is one piece

Shape suffixes: N sentences, P pieces, T bytes. N1 and P1 have one element more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

SPACE_BYTE = 0x20
_FIRST_PRINTABLE = 0x20

_WHITE_SPACE = tuple(
    character.encode()
    for character in "\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""White space outside of ASCII, as UTF-8."""


class Pieces(NamedTuple):
    """P pieces; those of sentence i are offsets_N1[i] : offsets_N1[i + 1]. A sentence without characters has none."""

    strings: pa.Array
    offsets_N1: Ints


class PieceRules(NamedTuple):
    """What a vocabulary allows. isolates_ideographs, keeps_white_space: see the top of this file."""

    isolates_ideographs: bool
    keeps_white_space: bool


def cut_into_pieces(sentences: pa.Array, rules: PieceRules) -> Pieces:
    """Cut N sentences, an Arrow array of strings that may be a slice of a longer one."""
    text, starts_N1 = bytes_of(sentences)

    begins_T = text == SPACE_BYTE
    if rules.keeps_white_space:
        begins_T &= ~_in_irregular_sentences(text, starts_N1)
    if rules.isolates_ideographs:
        _isolate_ideographs(text, begins_T)

    # An empty sentence shares its start with the next one. One at the end of the text begins nothing.
    begins_T[starts_N1[starts_N1 < len(text)]] = True

    places_P = np.flatnonzero(begins_T)
    offsets_N1 = np.searchsorted(places_P, starts_N1)
    return Pieces(string_array(text, places_P), offsets_N1)


def bytes_of(strings: pa.Array) -> tuple[Bytes, Ints]:
    """Return the UTF-8 bytes of N strings end to end, and (N1,) int64 offsets, each string's start and the end.

    The bytes are not copied.
    """
    if len(strings) == 0:
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)

    _, offsets, data = strings.buffers()
    begin = strings.offset
    offsets_N1 = np.frombuffer(offsets, dtype=np.int32)[begin : begin + len(strings) + 1].astype(np.int64)
    text: Bytes = np.zeros(0, dtype=np.uint8)
    if data is not None:
        text = np.frombuffer(data, dtype=np.uint8)[offsets_N1[0] : offsets_N1[-1]]
    return text, offsets_N1 - offsets_N1[0]


def string_array(text: Bytes, begins_P: NDArray[Any]) -> pa.Array:
    """Return the strings that begin at these offsets of a text of less than 2 GB; each ends where the next begins."""
    offsets_P1 = np.append(begins_P, len(text)).astype(np.int32)
    return pa.StringArray.from_buffers(len(begins_P), pa.py_buffer(offsets_P1), pa.py_buffer(text))


def _isolate_ideographs(text: Bytes, begins_T: Bools) -> None:
    """Begin a piece at each ideograph from U+4E00 to U+9FFF, and after it.

    In UTF-8 these are E4 B8 80 to E9 BF BF, and nothing else begins with E5 to E9. Rarer ideographs stay in runs, which
    is slower but correct.
    """
    leads = np.flatnonzero((text >= 0xE4) & (text <= 0xE9))
    if len(leads) == 0:
        return

    is_ideograph = (text[leads] > 0xE4) | (text[leads + 1] >= 0xB8)
    leads = leads[is_ideograph]
    begins_T[leads] = True

    after = leads + 3
    begins_T[after[after < len(text)]] = True


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
