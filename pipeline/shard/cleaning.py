"""Cleans the text of a document by fixed rules, and counts what each rule did.

The rules, by the names of their counters in the manifest:

    undecodable bytes removed     bytes that are not UTF-8, which were read as U+FFFD
    control characters removed    NUL and similar, byte order marks, lone surrogates
    line ends made plain          every other kind of line end becomes a newline
    spaces made plain             every other kind of space becomes a space
    combining marks cut           all but the first MAX_MARKS marks on one letter, as in stream-safe text (UAX #15)
    composed (NFC)                documents changed by Unicode's composed form, so that equal-looking text is equal
    long words removed            words of more than MAX_UNBROKEN_CHARACTERS without a space, at least half of them
                                  ASCII: encoded files. Some other scripts have no spaces
    characters of long words      how many characters these had

Joiners and other format characters stay, because Persian, Indic scripts and emoji need them.

Every rule takes time linear in the length of the text. Texts that no rule changes, the usual case, cost one search. In
a script such as Chinese it covers all characters; in English, only the few that are not ASCII letters, digits or
punctuation, which `bytes.translate` picks out.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

UNDECODABLE = "undecodable bytes removed"

MAX_UNBROKEN_CHARACTERS = 2000

MAX_MARKS = 30
"""No language puts more than a few marks on a letter. Composing a run of marks takes quadratic time."""

_SAMPLE_STEP = 10
"""Every tenth character of a text includes at least three of any run of 31 marks; see `cut_marks`."""

_UNCHANGED_ASCII = bytes({0x0A} | set(range(0x20, 0x7F)))
"""The ASCII characters that no rule changes: newline, space, letters, digits, punctuation."""

_HEAD = 256
"""Number of characters at the start of a text that decide how to search it. They affect the time, not the result."""

# Contents of character sets [...], all without \n. Line ends: \r; vertical tab and form feed; the file, group and
# record separators; NEL; line and paragraph separator.
_LINE_ENDS = "\r\v\f\x1c-\x1e\x85\u2028\u2029"

# Control characters of ASCII and Latin-1 that are neither line ends nor spaces; the byte order mark; lone surrogates.
_CONTROLS = "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff"

# Tab, unit separator, no-break space, and the other spaces of Unicode (general category Zs).
_SPACES = "\t\x1f\xa0\u1680\u2000-\u200a\u202f\u205f\u3000"

# (counter, pattern of one character, replacement), in the order in which they are applied.
_SUBSTITUTIONS = (
    ("line ends made plain", re.compile(f"[{_LINE_ENDS}]"), "\n"),
    ("control characters removed", re.compile(f"[{_CONTROLS}]"), ""),
    ("spaces made plain", re.compile(f"[{_SPACES}]"), " "),
)


def clean(text: str, counts: Counter[str]) -> str:
    """Return the clean text, and add the number of changes by each rule to `counts`.

    The result is in composed form (NFC), its only white space is space and newline, and cleaning it again changes
    nothing. Example: `"a\\x00\\u00a0b"` -> `"a b"`.
    """
    unusual = _unusual_characters(text)
    if not unusual:
        return text

    patterns = _patterns()
    if not patterns.to_clean.search(unusual):
        return text

    # Must come before other line ends become \n: only \r directly before a \n of the input belongs to the same line
    # end. Some programs write it twice.
    if "\r" in unusual:
        text = text.replace("\r\n", "\n").replace("\r\n", "\n")

    for rule, pattern, replacement in _SUBSTITUTIONS:
        text, times = _substitute(text, unusual, pattern, replacement)
        if times:
            counts[rule] += times

    undecodable = unusual.count("\ufffd")
    if undecodable:
        counts[UNDECODABLE] += undecodable
        text = text.replace("\ufffd", "")

    if not patterns.to_compose.search(unusual):
        return text

    # Long runs of marks are cut before they are composed, because composing takes time quadratic in their length.
    text = cut_marks(text, counts)
    composed = unicodedata.normalize("NFC", text)
    if composed == text:
        return text

    counts["composed (NFC)"] += 1
    return cut_marks(composed, counts)  # again, because a few marks become two when composed


def _unusual_characters(text: str) -> str:
    """Return the characters of a text, in order, except ASCII characters that no rule changes.

    Where most characters are not ASCII, keeping those as well is faster, so the result may or may not include them.
    """
    head = text[:_HEAD]
    if not head.isascii() and len(head.encode(errors="replace")) > 1.5 * len(head):
        return text
    if text.isascii():
        return text.encode().translate(None, _UNCHANGED_ASCII).decode()

    # UTF-8 without some of its ASCII bytes is still UTF-8.
    data = text.encode(errors="surrogatepass")
    return data.translate(None, _UNCHANGED_ASCII).decode(errors="surrogatepass")


def _substitute(text: str, unusual: str, pattern: re.Pattern[str], replacement: str) -> tuple[str, int]:
    """Replace the characters of a text that a pattern matches. Return the new text and the number of replacements.

    `unusual` contains at least those characters of the text. Few of them are distinct, and `str.replace` is many times
    as fast as a pattern.
    """
    times = 0
    while found := pattern.search(unusual):
        character = found[0]
        times += unusual.count(character)
        unusual = unusual.replace(character, "")
        text = text.replace(character, replacement)
    return text, times


def cut_marks(text: str, counts: Counter[str]) -> str:
    """Return the text with at most MAX_MARKS combining marks in a row, and add the number cut to `counts`."""
    patterns = _patterns()

    # Any 31 consecutive characters include at least three of every tenth character of the text. So if there is a run of
    # more than 30 marks, the sample below has three marks in a row. Nearly all texts end here, after a look at a tenth
    # of their characters.
    if not patterns.three_marks.search(text[::_SAMPLE_STEP]):
        return text

    shortened = patterns.long_runs.sub(r"\1", text)
    if len(shortened) < len(text):
        counts["combining marks cut"] += len(text) - len(shortened)
    return shortened


@dataclass(frozen=True)
class _Patterns:
    """Patterns that take some time (60 ms) to build from Unicode's tables.

    to_clean: a character that some rule may change.
    to_compose: a character that composition (NFC) may change, or that may be composed with the one before it. A text
    without any is in composed form, and has no combining mark.
    long_runs: more than MAX_MARKS combining marks; group 1 holds those that stay.
    three_marks: any three marks, for a quick search.
    """

    to_clean: re.Pattern[str]
    to_compose: re.Pattern[str]
    long_runs: re.Pattern[str]
    three_marks: re.Pattern[str]


@cache
def _patterns() -> _Patterns:
    """Build the patterns.

    A mark is a character with a combining class, or one that decomposes into such characters only; none is above
    U+1FFFF. The patterns for a quick search treat all characters of some ranges above U+FFFF as marks, because Python
    searches for a set of characters below that thirty times faster.
    """
    marks: set[str] = set()
    composable: set[str] = set()
    for code_point in range(0x300, 0x20000):
        character = chr(code_point)
        decomposed = character
        if not unicodedata.is_normalized("NFD", character):
            decomposed = unicodedata.normalize("NFD", character)

            # All parts but the first may be composed with the character before them. And a character that its own parts
            # do not compose to never stays in composed text.
            composable.update(decomposed[1:])
            if unicodedata.normalize("NFC", decomposed) != character:
                composable.add(character)

        if unicodedata.combining(decomposed[0]):
            marks.add(character)

    exact_set = _character_set(marks)
    quick_marks = _character_set(mark for mark in marks if mark <= "\uffff") + "\U00010000-\U0001ffff"

    # This leaves out emoji (U+1F000 to U+1FFFF) and the ideographs of plane 2 before U+2F800, which composition never
    # changes.
    quick_composable = _character_set(character for character in composable | marks if character <= "\uffff")
    quick_composable += "\U00010000-\U0001efff\U0002f800-\U0010ffff"

    return _Patterns(
        to_clean=re.compile(f"[{_LINE_ENDS}{_CONTROLS}{_SPACES}\ufffd{quick_composable}]"),
        to_compose=re.compile(f"[{quick_composable}]"),
        long_runs=re.compile(f"([{exact_set}]{{{MAX_MARKS}}})[{exact_set}]+"),
        three_marks=re.compile(f"[{quick_marks}]{{3}}"),
    )


def _character_set(characters: Iterable[str]) -> str:
    return "".join(map(re.escape, sorted(characters)))


def drop_long_words(sentences: list[str], counts: Counter[str]) -> list[str]:
    """Drop words that are encoded files, and sentences that become empty. Adds words and characters to `counts`."""
    if max(map(len, sentences), default=0) <= MAX_UNBROKEN_CHARACTERS:
        return sentences

    kept = []
    for sentence in sentences:
        words = sentence.split(" ")
        kept_words = [word for word in words if not _is_encoded_file(word)]
        if len(kept_words) < len(words):
            counts["long words removed"] += len(words) - len(kept_words)
            counts["characters of long words"] += sum(map(len, words)) - sum(map(len, kept_words))

        if kept_words:
            kept.append(" ".join(kept_words))
    return kept


def _is_encoded_file(word: str) -> bool:
    if len(word) <= MAX_UNBROKEN_CHARACTERS:
        return False
    return 2 * len(word.encode("ascii", "ignore")) >= len(word)
