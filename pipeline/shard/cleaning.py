"""The stated rules that make any text plain. Each counts what it did, and all are linear in the text.

    undecodable bytes removed     what was not UTF-8, which reads as U+FFFD
    control characters removed    NUL and its kind, byte order marks, lone surrogates
    line ends made plain          every other kind of line end becomes a newline
    spaces made plain             every other kind of space becomes a space
    combining marks cut           what follows MAX_MARKS marks on one letter, as in Unicode's stream-safe text (UAX #15)
    composed (NFC)                documents that Unicode's composed form changed: equal-looking text is then equal
    long words removed            runs of more than MAX_WORD characters without a space: encoded files, not words

Joiners and other format characters stay: Persian, Indic scripts and emoji need them.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache

MAX_WORD = 2000
MAX_MARKS = 30  # no language needs more than a few; composing a run of marks takes time in the square of its length
_ODD_BYTES = bytes(set(range(0x20)) - {0x0A} | {0x7F})
_LINE_END = re.compile("\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff]")
_SPACE = re.compile("[\t\x1f\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")


def clean(text: str, counts: Counter[str]) -> str:
    """The plain text; what each rule did is added to `counts`. Example: `"a\\x00\\u00a0b"` -> `"a b"`."""
    if text.isascii() and not _has_odd_bytes(text):
        return text
    for rule, pattern, plain in (
        ("line ends made plain", _LINE_END, "\n"),
        ("control characters removed", _CONTROL, ""),
        ("spaces made plain", _SPACE, " "),
    ):
        text, times = pattern.subn(plain, text)
        if times:
            counts[rule] += times
    if text.isascii():
        return text
    if "\ufffd" in text:
        counts["undecodable bytes removed"] += text.count("\ufffd")
        text = text.replace("\ufffd", "")

    text = cut_marks(text, counts)
    composed = unicodedata.normalize("NFC", text)
    if composed == text:
        return text
    counts["composed (NFC)"] += 1
    # A few characters are composed into two marks.
    return cut_marks(composed, counts)


def cut_marks(text: str, counts: Counter[str]) -> str:
    """The text with at most MAX_MARKS combining marks in a row; those cut are added to `counts`."""
    long_runs, suspicion = _mark_patterns()
    # Any 31 characters in a row have three of every tenth, so this looks at a tenth of a text that has no such run.
    if not suspicion.search(text[::10]):
        return text

    plain = long_runs.sub(r"\1", text)
    if len(plain) < len(text):
        counts["combining marks cut"] += len(text) - len(plain)
    return plain


@cache
def _mark_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A pattern for more than MAX_MARKS combining marks, whose group is those that stay, and one for three at all.

    A mark is what has a combining class, or is composed of such characters alone. None lies above U+1FFFF. The second
    takes all characters above U+FFFF for marks, because Python looks up a set within that range thirty times faster.
    """
    marks = [chr(i) for i in range(0x300, 0x20000) if unicodedata.combining(unicodedata.normalize("NFD", chr(i))[0])]
    exact = "".join(map(re.escape, marks))
    quick = "".join(re.escape(mark) for mark in marks if mark <= "\uffff") + "\U00010000-\U0001ffff"
    return re.compile(f"([{exact}]{{{MAX_MARKS}}})[{exact}]+"), re.compile(f"[{quick}]{{3}}")


def _has_odd_bytes(text: str) -> bool:
    """Whether ASCII text has anything for a rule to do; ten times as fast as to look with the patterns."""
    return len(text.encode().translate(None, _ODD_BYTES)) < len(text)


def drop_long_words(sentences: list[str], counts: Counter[str]) -> list[str]:
    """The sentences without words above MAX_WORD characters, and without those that then are empty."""
    if max(map(len, sentences), default=0) <= MAX_WORD:
        return sentences
    kept = []
    for sentence in sentences:
        words = sentence.split(" ")
        short = [word for word in words if len(word) <= MAX_WORD]
        if len(short) < len(words):
            counts["long words removed"] += len(words) - len(short)
        if short:
            kept.append(" ".join(short))
    return kept
