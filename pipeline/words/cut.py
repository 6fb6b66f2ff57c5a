"""Cuts many strings into words at once, by array operations: a word ends where the class of characters changes.

    BERT's words    runs of letters and digits, and every other character alone
    GPT-2's         runs of letters, of digits or of other characters, and English contractions ("'s")
    sentencepiece's whole runs of non-spaces

The table in pipeline/vocab/kinds.py says which vocabularies follow which rules.

Text is UTF-8, and a property of a character is stored for each of its bytes, so that nothing changes inside of a
character.

Shape suffixes: N strings, B bytes of all strings, W words of all strings. N1 has one element more than N.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.words.arrow import Bools, Bytes, Ints, bytes_of, strings_of
from schemas.ragged import offsets_of
from schemas.vocabulary_kinds import BYTE_OF_CHARACTER, SENTENCEPIECE_SPACE, SPACE

UNKNOWN = 0
LETTER = 1
DIGIT = 2
OTHER = 3

_KNOWN_BLOCKS = (
    (0x00A1, 0x024F),  # Latin
    (0x0391, 0x03A1),  # Greek
    (0x03A3, 0x03FF),
    (0x0400, 0x052F),  # Cyrillic
    (0x2010, 0x2027),  # dashes and quotation marks
    (0x2030, 0x205E),
    (0x3001, 0x303F),  # Chinese and Japanese punctuation
    (0x3041, 0x3096),  # kana
    (0x3099, 0x30FF),
    (0x4E00, 0x9FEF),  # ideographs
    (0xAC00, 0xD7A3),  # Hangul
    (0xFF01, 0xFF9F),  # full-width and half-width forms
)
"""First and last character. Their classes have not changed since Unicode 11, so Python's table agrees with that of the
tokenizers library; a test compares them. White space and control characters stay unknown."""

_FIRST_PRINTABLE = ord("!")
_LAST_PRINTABLE = ord("~")
_FIRST_BYTE_BEYOND_ASCII = 0x80
_APOSTROPHE = ord("'")
_GRAVE = ord("`")


class CutStrings(NamedTuple):
    """N strings cut into parts, which are end to end: those of string i are offsets_N1[i] : offsets_N1[i + 1]."""

    parts: pa.StringArray
    offsets_N1: Ints


def cut_where(begins_B: Bools, text_B: Bytes, offsets_N1: Ints) -> CutStrings:
    """Cut N strings at their starts, and where `begins_B` is true, which is changed. An empty string has no part."""
    # An empty string shares its start with the next one. One at the end of the text begins nothing.
    begins_B[offsets_N1[offsets_N1 < len(text_B)]] = True
    starts_P = np.flatnonzero(begins_B)
    parts = strings_of(text_B, np.append(starts_P, len(text_B)))
    return CutStrings(parts, np.searchsorted(starts_P, offsets_N1))


def isolate_ideographs(begins_B: Bools, text_B: Bytes) -> None:
    """Set `begins_B` at each ideograph from U+4E00 to U+9FFF, and after it.

    In UTF-8 these are E4 B8 80 to E9 BF BF, and nothing else begins with E5 to E9. Rarer ideographs stay in runs, which
    is slower but correct.
    """
    leads = np.flatnonzero((text_B >= 0xE4) & (text_B <= 0xE9))
    leads = leads[(text_B[leads] > 0xE4) | (text_B[leads + 1] >= 0xB8)]
    begins_B[leads] = True

    after = leads + 3
    begins_B[after[after < len(text_B)]] = True


def is_unprintable(text_B: Bytes) -> Bools:
    """Return (B,) bool: whether each byte is anything but printable ASCII."""
    return (text_B < _FIRST_PRINTABLE) | (text_B > _LAST_PRINTABLE)


def is_of_unknown_class(text_B: Bytes) -> Bools:
    """Return (B,) bool: whether each byte belongs to a character that `cut_like_gpt2` does not know."""
    return classes_of(text_B) == UNKNOWN


def is_unprintable_or_quoted(text_B: Bytes) -> Bools:
    """Return (B,) bool: also true for the second of two equal quotation marks in a row, which Unigram replaces.

    This also compares the end of one run with the start of the next, which only sends two more runs to the library.
    """
    is_strange_B = is_unprintable(text_B)
    is_strange_B[1:] |= ((text_B[1:] == _APOSTROPHE) | (text_B[1:] == _GRAVE)) & (text_B[1:] == text_B[:-1])
    return is_strange_B


def cut_like_bert(text_B: Bytes, offsets_N1: Ints) -> CutStrings:
    """Cut runs of printable ASCII into words as BERT does."""
    # A word begins at any character that is no letter or digit, and right after one.
    is_other_B = CLASSES[text_B] == OTHER
    begins_B = is_other_B.copy()
    begins_B[1:] |= is_other_B[:-1]
    return cut_where(begins_B, text_B, offsets_N1)


def cut_like_gpt2(text_B: Bytes, offsets_N1: Ints) -> CutStrings:
    """Cut runs into words as byte-level BPE spells them. The first word of each run begins with a space."""
    class_B = classes_of(text_B)
    starts_N = offsets_N1[:-1]
    begins_B = np.zeros(len(text_B), dtype=bool)
    begins_B[1:] = class_B[1:] != class_B[:-1]
    begins_B[starts_N] = True
    _join_contractions(begins_B, text_B, starts_N)

    words = cut_where(begins_B, text_B, offsets_N1)
    return words._replace(parts=_spell_bytes(text_B, bytes_of(words.parts)[1], starts_N))


def mark_runs(text_B: Bytes, offsets_N1: Ints) -> CutStrings:
    """Make each run one word, as sentencepiece spells it."""
    runs = strings_of(text_B, offsets_N1)
    words = pc.binary_join_element_wise(SENTENCEPIECE_SPACE, runs, "")  # type: ignore[attr-defined]
    return CutStrings(words, np.arange(len(runs) + 1))


def _join_contractions(begins_B: Bools, text_B: Bytes, starts_N: Ints) -> None:
    """Make 's 't 'm 'd 're 've 'll words where an apostrophe begins a word; what follows them begins another word."""
    # The text may end before the bytes that an apostrophe could have after it, so pad it.
    padded = np.append(text_B, np.zeros(2, np.uint8))
    begins_run = np.zeros(len(padded), dtype=bool)
    begins_run[starts_N] = True

    # At the start of a run, a space comes before the apostrophe.
    apostrophes = np.flatnonzero(begins_B & (text_B == _APOSTROPHE))
    apostrophes = apostrophes[~begins_run[apostrophes]]
    first = np.where(begins_run[apostrophes + 1], 0, padded[apostrophes + 1])
    second = np.where(begins_run[apostrophes + 2], 0, padded[apostrophes + 2])

    is_short = np.isin(first, list(b"stmd"))
    is_long = np.isin(first, list(b"rv")) & (second == ord("e")) | (first == ord("l")) & (second == ord("l"))
    begins_B[apostrophes[is_short | is_long] + 1] = False
    ends = np.concatenate([apostrophes[is_short] + 2, apostrophes[is_long] + 3])
    begins_B[ends[ends < len(text_B)]] = True


def _spell_bytes(text_B: Bytes, offsets_W1: Ints, starts_N: Ints) -> pa.StringArray:
    """Return W words as byte-level BPE spells them, with a space before those that begin a run."""
    # Known ASCII characters spell themselves; any other byte becomes a character of two bytes.
    space = np.frombuffer(SPACE.encode(), np.uint8)
    has_two_B = text_B >= _FIRST_BYTE_BEYOND_ASCII
    lengths_B = 1 + has_two_B
    lengths_B[starts_N] += len(space)
    start_of_byte_B1 = offsets_of(lengths_B)

    spelled = np.empty(start_of_byte_B1[-1], dtype=np.uint8)
    for place, byte in enumerate(space.tolist()):
        spelled[start_of_byte_B1[starts_N] + place] = byte

    # Write the last byte of each spelling, and the first byte of those with two.
    ends_B = start_of_byte_B1[1:]
    spelled[ends_B - 1] = BYTE_SPELLINGS[text_B, 1]
    spelled[ends_B[has_two_B] - 2] = BYTE_SPELLINGS[text_B[has_two_B], 0]
    return strings_of(spelled, start_of_byte_B1[offsets_W1])


def classes_of(text_B: Bytes) -> Bytes:
    """Return (B,) uint8: the class of each byte's character, UNKNOWN for characters of other blocks."""
    classes_B = CLASSES[text_B]
    leads = np.flatnonzero(text_B >= 0xC0)
    if len(leads) == 0:
        return classes_B

    # The text may end before the bytes that a lead byte could have after it, so pad it.
    padded = np.append(text_B, np.zeros(3, np.uint8)).astype(np.int32)
    lead = padded[leads]
    second = padded[leads + 1] & 0x3F
    of_two = (lead & 0x1F) << 6 | second
    of_three = (lead & 0x0F) << 12 | second << 6 | padded[leads + 2] & 0x3F
    points = np.where(lead < 0xE0, of_two, np.where(lead < 0xF0, of_three, 0))

    classes = _classes_of_points()[points]
    classes_B[leads] = classes
    classes_B[leads + 1] = classes
    is_longer = lead >= 0xE0
    classes_B[leads[is_longer] + 2] = classes[is_longer]
    return classes_B


@lru_cache(maxsize=1)
def _classes_of_points() -> Bytes:
    """Return (65536,) uint8: the class of each character of the basic plane. Made on first use, in some 20 ms."""
    classes = np.full(1 << 16, UNKNOWN, dtype=np.uint8)
    for first, last in _KNOWN_BLOCKS:
        for point in range(first, last + 1):
            classes[point] = _class_of(chr(point))
    return classes


def _class_of(character: str) -> int:
    by_category = {"L": LETTER, "N": DIGIT, "Z": UNKNOWN, "C": UNKNOWN}
    return by_category.get(unicodedata.category(character)[0], OTHER)


def _byte_spellings() -> Bytes:
    """Return (256, 2) uint8: the UTF-8 of the character that spells each byte in byte-level BPE, right-aligned."""
    spellings = np.zeros((256, 2), dtype=np.uint8)
    for character, byte in BYTE_OF_CHARACTER.items():
        encoded = character.encode()
        spellings[byte, 2 - len(encoded) :] = list(encoded)
    return spellings


CLASSES = np.array([_class_of(chr(code)) if 0x21 <= code < 0x7F else UNKNOWN for code in range(256)], dtype=np.uint8)
"""The class of each byte that is a printable ASCII character, UNKNOWN for others."""

BYTE_SPELLINGS = _byte_spellings()
