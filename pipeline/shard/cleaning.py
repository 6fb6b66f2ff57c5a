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

Every rule takes time linear in the length of the text. Texts that no rule changes, the usual case, cost one search, and
Python's quick check for NFC. In a script such as Chinese the search covers all characters; in English, only the few
that are not ASCII letters, digits or punctuation, which `bytes.translate` picks out.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache
from ipaddress import ip_address
from typing import NamedTuple

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
    if not _patterns().to_clean.search(unusual) and unicodedata.is_normalized("NFC", text):
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


class _Patterns(NamedTuple):
    """Patterns that take some time (60 ms) to build from Unicode's tables.

    to_clean: a character that some rule may change, or a combining mark. three_marks: any three marks.
    long_runs: more than MAX_MARKS marks; group 1 holds those that stay.
    """

    to_clean: re.Pattern[str]
    three_marks: re.Pattern[str]
    long_runs: re.Pattern[str]


@cache
def _patterns() -> _Patterns:
    """Build the patterns.

    A mark is a character with a combining class, or one that decomposes into such characters only; none is above
    U+1EFFF. The patterns for a quick search treat all characters of that range above U+FFFF as marks, because Python
    searches for a set of characters below that thirty times faster.
    """
    marks = [
        mark for mark in map(chr, range(0x300, 0x1F000)) if unicodedata.combining(unicodedata.normalize("NFD", mark)[0])
    ]
    exact_set = "".join(map(re.escape, marks))
    quick_set = "".join(re.escape(mark) for mark in marks if mark <= "\uffff") + "\U00010000-\U0001efff"
    return _Patterns(
        to_clean=re.compile(f"[{_LINE_ENDS}{_CONTROLS}{_SPACES}\ufffd{quick_set}]"),
        three_marks=re.compile(f"[{quick_set}]{{3}}"),
        long_runs=re.compile(f"([{exact_set}]{{{MAX_MARKS}}})[{exact_set}]+"),
    )


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


# ---- --mask_private ----

# --mask_private: replaces e-mail addresses, phone numbers and public IP addresses by ones that belong to no person.
#
#     ada@lovelace.org              email@example.com     RFC 2606 reserves the domain
#     +44 20 7946 0958              555-0100              numbers that North America keeps for fiction
#     8.8.8.8                       192.0.2.1             RFC 5737 reserves it for documentation
#     2001:4860:4860::8888          2001:db8::1           RFC 3849 likewise
#
# As in FineWeb (arXiv:2406.17557), addresses become others of their form, so that a model still learns the form, and IP
# addresses of private networks stay. Phone numbers, which FineWeb leaves, are those that nothing else is written like:
# with + and the code of a country, or in groups of 3, 3 and 4 digits. Names and postal addresses are not found.
#
# Every pattern takes time linear in the length of the text: none begins in the middle of what it could match.

EMAIL = "email@example.com"
PHONE = "555-0100"
IP_V4 = "192.0.2.1"
IP_V6 = "2001:db8::1"

# Up to 64 characters before the @ (RFC 5321), and labels of a domain, the last one of letters.
_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}+@(?:[\w-]{1,63}+\.)+[^\W\d_]{2,63}+(?![\w-])")

# Each begins with a set of characters, which the search skips to, and then looks back: nothing joins on the left.
_SEPARATOR = r"[ .\u2010-\u2013-]"
_INTERNATIONAL = rf"(?<=\+)[1-9]\d{{0,2}}(?:{_SEPARATOR}?(?:\(\d{{1,4}}\)|\d{{1,5}})){{2,6}}"
_NORTH_AMERICAN = rf"(?:(?<=\()\d{{3}}\) ?|(?<=\d)\d{{2}}{_SEPARATOR})\d{{3}}{_SEPARATOR}\d{{4}}"
_PHONE = re.compile(rf"[+(\d](?<![\w.+/-].)(?:{_INTERNATIONAL}|{_NORTH_AMERICAN})(?![\w/-])")

_IP_V4 = re.compile(r"\d(?<![\w.].)\d{0,2}\.(?:\d{1,3}\.){2}\d{1,3}(?![\w]|\.\d)")
_IP_V6 = re.compile(r"[0-9A-Fa-f:](?<![\w:.].)(?=[0-9A-Fa-f]{0,4}:)[0-9A-Fa-f:]{2,38}+(?![\w:])")

_FEWEST_DIGITS = 8  # of an international number (ITU-T E.164 has at most 15)
_MOST_DIGITS = 15


def mask_private(text: str, counts: Counter[str]) -> str:
    """Return the text without personal addresses and numbers, and add how many of each kind there were to `counts`."""
    if "@" in text:
        text, found = _EMAIL.subn(EMAIL, text)
        if found:
            counts["e-mail addresses masked"] += found

    text = _IP_V4.sub(lambda match: _masked_ip(match[0], IP_V4, counts), text)
    if "::" in text or text.count(":") > 6:
        text = _IP_V6.sub(lambda match: _masked_ip(match[0], IP_V6, counts), text)
    return _PHONE.sub(lambda match: _masked_phone(match[0], counts), text)


def _masked_ip(found: str, replacement: str, counts: Counter[str]) -> str:
    try:
        is_public = ip_address(found).is_global
    except ValueError:
        return found
    if not is_public:
        return found
    counts["IP addresses masked"] += 1
    return replacement


def _masked_phone(found: str, counts: Counter[str]) -> str:
    digits = sum(map(str.isdigit, found))
    if found == PHONE or (found.startswith("+") and not _FEWEST_DIGITS <= digits <= _MOST_DIGITS):
        return found
    counts["phone numbers masked"] += 1
    return PHONE
