"""Characters as arrays of bytes: classes for GPT-2's rules, ideographs for BERT's, and spellings of byte-level BPE.

Text is UTF-8. A property of a character is stored for each of its bytes, so that nothing changes inside of a character.

Shape suffix: B bytes of a text.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

Bytes = NDArray[np.uint8]

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

_IDEOGRAPH_LEADS = (0xE4, 0xE9)


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


def ideographs_of(text_B: Bytes) -> NDArray[np.int64]:
    """Return the byte offsets of the ideographs from U+4E00 to U+9FFF, ascending. Each has three bytes.

    They are E4 B8 80 to E9 BF BF, and nothing else begins with E5 to E9.
    """
    first, last = _IDEOGRAPH_LEADS
    leads = np.flatnonzero((text_B >= first) & (text_B <= last))
    is_ideograph = (text_B[leads] > first) | (text_B[leads + 1] >= 0xB8)
    return leads[is_ideograph]


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


def _classes_of_bytes() -> Bytes:
    """Return (256,) uint8: the class of each byte that is a printable ASCII character, UNKNOWN for others."""
    classes = np.full(256, UNKNOWN, dtype=np.uint8)
    for code in range(0x21, 0x7F):
        classes[code] = _class_of(chr(code))
    return classes


def _byte_spellings() -> NDArray[np.uint8]:
    """Return (256, 2) uint8: the UTF-8 of the character that spells each byte, right-aligned.

    The spellings are GPT-2's: printable characters of Latin-1 spell themselves, and letters from U+0100 on spell all
    other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    character_of = {byte: chr(byte) for byte in printable}
    character_of |= {byte: chr(0x100 + place) for place, byte in enumerate(others)}
    assert set(character_of.values()) == set(pre_tokenizers.ByteLevel.alphabet())

    spellings = np.zeros((256, 2), dtype=np.uint8)
    for byte, character in character_of.items():
        encoded = character.encode()
        spellings[byte, 2 - len(encoded) :] = list(encoded)
    return spellings


CLASSES = _classes_of_bytes()
LOWERED = np.frombuffer(bytes(range(256)).lower(), np.uint8)
BYTE_SPELLINGS = _byte_spellings()
