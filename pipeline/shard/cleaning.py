"""Clean the text of a document by fixed rules, and count what each rule did.

The rules, by the names of their counters in the manifest:

    undecodable bytes removed     bytes that are not UTF-8, which were read as U+FFFD
    control characters removed    NUL and similar, byte order marks, lone surrogates
    line ends made plain          every other kind of line end becomes a newline
    spaces made plain             every other kind of space becomes a space
    combining marks cut           all but the first MAX_MARKS marks on one letter, as in stream-safe text (UAX #15)
    composed (NFC)                documents that Unicode's composed form changed, so that equal-looking text is equal
    long words removed            runs of more than MAX_WORD characters without a space: encoded files, not words

Joiners and other format characters stay, because Persian, Indic scripts and emoji need them.

Every rule takes time linear in the length of the text. ASCII text without anything to clean, the usual case in English,
costs one pass of `bytes.translate`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache

MAX_UNBROKEN_CHARACTERS = 2000

MAX_MARKS = 30
"""No language puts more than a few marks on a letter. To compose a run of marks takes quadratic time."""

_SAMPLE_STEP = 10
"""A run of 31 marks holds at least three of every tenth character; see `cut_marks`."""

_ASCII_TO_CLEAN = bytes(set(range(0x20)) - {0x0A} | {0x7F})
"""The ASCII characters that some rule changes: all control characters except newline."""

# \r\n and \r; vertical tab and form feed; the file, group and record separators; NEL; line and paragraph separator.
_LINE_END = re.compile("\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")

# Control characters of ASCII and Latin-1 that are neither line ends nor spaces; the byte order mark; lone surrogates.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff]")

# Tab, unit separator, no-break space, and the other spaces of Unicode (general category Zs).
_SPACE = re.compile("[\t\x1f\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")

# (counter, pattern, replacement), in the order in which they are applied.
_SUBSTITUTIONS = (
    ("line ends made plain", _LINE_END, "\n"),
    ("control characters removed", _CONTROL, ""),
    ("spaces made plain", _SPACE, " "),
)


def clean(text: str, counts: Counter[str]) -> str:
    """Return the clean text, and add what each rule did to `counts`.

    The result is in composed form (NFC), its only white space is space and newline, and cleaning it again changes
    nothing. Example: `"a\\x00\\u00a0b"` -> `"a b"`.
    """
    if text.isascii() and not _has_ascii_to_clean(text):
        return text

    for rule, pattern, replacement in _SUBSTITUTIONS:
        text, times = pattern.subn(replacement, text)
        if times:
            counts[rule] += times
    if text.isascii():
        return text

    if "\ufffd" in text:
        counts["undecodable bytes removed"] += text.count("\ufffd")
        text = text.replace("\ufffd", "")

    # Long runs of marks are cut before they are composed, for that takes time in the square of their length.
    text = cut_marks(text, counts)
    composed = unicodedata.normalize("NFC", text)
    if composed == text:
        return text

    counts["composed (NFC)"] += 1
    return cut_marks(composed, counts)  # again, because a few marks are composed into two


def _has_ascii_to_clean(text: str) -> bool:
    """Return whether any rule would change an ASCII text. Ten times as fast as a search with the patterns."""
    return len(text.encode().translate(None, _ASCII_TO_CLEAN)) < len(text)


def cut_marks(text: str, counts: Counter[str]) -> str:
    """Return the text with at most MAX_MARKS combining marks in a row, and add those that were cut to `counts`."""
    long_runs, three_marks = _mark_patterns()

    # Among any 31 consecutive characters, every tenth of the text is met at least three times. So if a run of more
    # than 30 marks exists, the sample below has three marks in a row. Nearly all texts end here, after a look at a
    # tenth of their characters.
    if not three_marks.search(text[::_SAMPLE_STEP]):
        return text

    shortened = long_runs.sub(r"\1", text)
    if len(shortened) < len(text):
        counts["combining marks cut"] += len(text) - len(shortened)
    return shortened


@cache
def _mark_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return two patterns: of more than MAX_MARKS combining marks, and of any three marks.

    Group 1 of the first pattern holds the marks that stay. A mark is a character with a combining class, or one that
    decomposes into such characters only; none lies above U+1FFFF. The second pattern is for a quick search: it takes
    all characters above U+FFFF for marks, because Python searches for a set within that range thirty times faster.
    """
    code_points = range(0x300, 0x20000)
    marks = [chr(i) for i in code_points if unicodedata.combining(unicodedata.normalize("NFD", chr(i))[0])]

    exact_set = "".join(map(re.escape, marks))
    quick_set = "".join(re.escape(mark) for mark in marks if mark <= "\uffff") + "\U00010000-\U0001ffff"

    long_runs = re.compile(f"([{exact_set}]{{{MAX_MARKS}}})[{exact_set}]+")
    three_marks = re.compile(f"[{quick_set}]{{3}}")
    return long_runs, three_marks


def drop_long_words(sentences: list[str], counts: Counter[str]) -> list[str]:
    """Return the sentences without words above MAX_WORD characters, and without sentences that are empty then."""
    if max(map(len, sentences), default=0) <= MAX_UNBROKEN_CHARACTERS:
        return sentences

    kept = []
    for sentence in sentences:
        words = sentence.split(" ")
        short_words = [word for word in words if len(word) <= MAX_UNBROKEN_CHARACTERS]
        if len(short_words) < len(words):
            counts["long words removed"] += len(words) - len(short_words)

        if short_words:
            kept.append(" ".join(short_words))
    return kept
