"""Guesses which encodings fit bytes that are not UTF-8: a hint for an error message, never used to read a text.

Bytes of ASCII alone may also be another encoding, such as ISO-2022-JP or UTF-7 (`seven_bit_encoding`).

Each candidate encoding decodes a sample and gets a score from 0 to 1: the share of the characters outside of ASCII that
are frequent in one language written in that encoding. Latin alphabets share most of their letters, so each language is
scored separately, and the best one counts. Letters in impossible places (in a word of two scripts, or a capital after a
small letter) do not count. Prose in the right encoding scores 0.5 or more.

There is no randomness and no state: equal samples give equal answers. The letters are in alphabets.py.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from dataclasses import dataclass

from pipeline.shard.alphabets import CANDIDATES, Alphabet
from pipeline.shard.encodings import UTF8, wide_encoding

MIN_SCORE = 0.4
"""Score below which no candidate is named."""

MARGIN = 0.15
"""Lead that the best candidate needs over the next one, scaled by the share of characters that the two read
differently."""

_DAMAGED_UTF8 = 0.3  # undecodable share of the bytes outside of ASCII; below it, the text is damaged UTF-8

# What one character adds to the score.
_COMMON_WEIGHT = 1.0
_RARE_WEIGHT = 0.4
_OTHER_IDEOGRAPH_WEIGHT = 0.25

# Encodings of ASCII bytes alone, and the signs that begin other letters in them.
_SEVEN_BIT = ("iso2022_jp", "iso2022_jp_2", "iso2022_jp_ext", "iso2022_kr", "hz", "utf-7")
_SHIFTS = (b"\x1b$", b"~{", b"+")
_SWITCH = re.compile(rb"\x1b\$[@AB()*+]")
ISO_2022 = "iso-2022"
_MIN_HIDDEN = 4  # letters; fewer may be chance
_ALPHABETS_END = "\u2c00"  # after punctuation, too
_MOST = 0.8  # share of them in a text of an alphabet
_ALL_ALPHABETS = tuple(alphabet for _, alphabets in CANDIDATES for alphabet in alphabets)

_PUNCTUATION = "’‘“”„–—…«»°•"  # in any language

# Runs of letters: word characters that are neither digits nor underscores.
_WORD = re.compile(r"[^\W\d_]+")

# (end, script) of consecutive ranges of letters. Unnamed ranges, and letters after the last range, mix with any script.
_SCRIPT_RANGES = (
    ("\u0370", "Latin"),
    ("\u0400", "Greek"),
    ("\u0530", "Cyrillic"),
    ("\u0590", ""),
    ("\u0600", "Hebrew"),
    ("\u0780", "Arabic"),
    ("\u0e00", ""),
    ("\u0e80", "Thai"),
)
_LATIN_END = "\u0370"


@dataclass(frozen=True)
class _Reading:
    """A sample decoded with one encoding, and how plausible the result is, from 0 to 1."""

    encoding: str
    text: str
    score: float


def fitting_encodings(sample: bytes) -> tuple[str, ...]:
    """Return the encoding that fits a sample that is not UTF-8: two names if both are plausible, or none.

    The sample must begin at an even offset of the file. If most of its bytes outside of ASCII are valid UTF-8, the text
    is damaged UTF-8, and no encoding is returned.
    """
    wide = wide_encoding(sample)
    if wide is not None:
        return (wide,)

    not_ascii = sum(byte >= 0x80 for byte in sample)
    undecodable = sample.decode(UTF8, errors="replace").count("\ufffd")
    if not_ascii == 0 or undecodable < _DAMAGED_UTF8 * not_ascii:
        return ()

    readings = [_read(sample, encoding, alphabets) for encoding, alphabets in CANDIDATES]
    plausible = [reading for reading in readings if reading.score >= MIN_SCORE]
    if not plausible:
        return ()

    # The sort is stable, so the order of the candidates decides ties.
    best, *others = sorted(plausible, key=lambda reading: -reading.score)
    for other in others:
        if best.score - other.score < MARGIN * _difference(best.text, other.text):
            return (best.encoding, other.encoding)
    return (best.encoding,)


def seven_bit_encoding(head: bytes) -> str | None:
    """Return the encoding that hides other letters in ASCII in which a file's first bytes are written, or None.

    It is ISO_2022 if the bytes switch between character sets, but in none of the encodings that Python has.
    """
    if not head.isascii() or not any(sign in head for sign in _SHIFTS):
        return None

    for encoding in _SEVEN_BIT:
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(head)  # allows a character that is cut at the end
        except UnicodeDecodeError:
            continue
        if len(_foreign_characters(text)) >= _MIN_HIDDEN and _is_plausible(text):
            return encoding
    return ISO_2022 if _SWITCH.search(head) else None


def _is_plausible(text: str) -> bool:
    """Return whether the characters outside of ASCII are those of a known language, or nearly all of an alphabet.

    Those that chance decodes from ASCII are mostly ideographs and Hangul, which come after the alphabets.
    """
    foreign = _foreign_characters(text)
    alphabetic = sum(character < _ALPHABETS_END for character in foreign)
    return alphabetic >= _MOST * len(foreign) or _score(text, _ALL_ALPHABETS) >= MIN_SCORE


def _difference(text: str, other: str) -> float:
    """Return the share of characters outside of ASCII that two texts decode differently; 1 if it is unknown."""
    if len(text) != len(other):
        return 1.0

    foreign = sum(character > "\x7f" for character in text)
    differing = sum(a != b for a, b in zip(text, other, strict=True))
    return differing / max(1, foreign)


def _read(sample: bytes, encoding: str, alphabets: tuple[Alphabet, ...]) -> _Reading:
    """Decode a sample and score it by the best-fitting alphabet."""
    text = sample.decode(encoding, errors="replace")
    foreign = _foreign_characters(text)
    score = _score(text, alphabets)

    # Text in a Latin alphabet consists mostly of ASCII letters. If it does not, it is probably another script.
    is_latin = alphabets[0].common[0] < _LATIN_END
    foreign_letters = sum(map(str.isalpha, foreign))
    ascii_letters = sum(map(str.isalpha, text)) - foreign_letters
    if is_latin and foreign_letters > ascii_letters:
        score /= 2
    return _Reading(encoding, text, score)


def _foreign_characters(text: str) -> list[str]:
    return [character for character in text if character > "\x7f" and character != "\xa0"]


def _score(text: str, alphabets: tuple[Alphabet, ...]) -> float:
    """Return the plausible share of the characters outside of ASCII, by the best-fitting alphabet."""
    foreign = _foreign_characters(text)
    if not foreign:
        return 0.0

    counts = _count_plausible(text)
    return max(_total_weight(counts, alphabet) for alphabet in alphabets) / len(foreign)


def _count_plausible(text: str) -> Counter[str]:
    """Count the characters outside of ASCII, except letters in impossible places."""
    counts = Counter(character for character in text if character > "\x7f" and not character.isalpha())

    for word in _WORD.findall(text):
        if word.isascii() or _mixes_scripts(word):
            continue

        previous = " "
        for character in word:
            is_misplaced_capital = character.isupper() and previous.islower()
            if character > "\x7f" and character.isalpha() and not is_misplaced_capital:
                counts[character] += 1
            previous = character
    return counts


def _mixes_scripts(word: str) -> bool:
    scripts = {_script(character) for character in word}
    scripts.discard("")
    return len(scripts) > 1


def _script(character: str) -> str:
    """Return the script of a letter; empty for letters that may share a word with letters of other scripts."""
    for end, script in _SCRIPT_RANGES:
        if character < end:
            return script
    return ""


def _total_weight(counts: Counter[str], alphabet: Alphabet) -> float:
    return sum(count * _character_weight(character, alphabet) for character, count in counts.items())


def _character_weight(character: str, alphabet: Alphabet) -> float:
    """Return how common a character is in a language, from 0 to 1."""
    if character in alphabet.common or character in _PUNCTUATION:
        return _COMMON_WEIGHT
    if character in alphabet.rare or character.lower() in alphabet.common:
        return _RARE_WEIGHT

    # East Asian alphabets list only the most frequent of thousands of characters.
    is_east_asian = not alphabet.rare and alphabet.common[0] >= "\u3000"
    if is_east_asian and _is_ideograph_or_syllable(character):
        return _OTHER_IDEOGRAPH_WEIGHT
    return 0.0


def _is_ideograph_or_syllable(character: str) -> bool:
    """Return whether a character is a CJK unified ideograph or a Hangul syllable."""
    return "\u4e00" <= character <= "\u9fff" or "\uac00" <= character <= "\ud7a3"
