"""The stated rules that make any text plain: NFC, known line ends, plain spaces, nothing invisible that breaks words.

    1  bytes that were not UTF-8 (U+FFFD), NUL and other control characters, byte order marks and lone surrogates go
    2  every kind of line end becomes one newline, every other kind of white space one plain space
    3  Unicode NFC, so that equal-looking text is equal

Joiners and other format characters stay: Persian, Indic scripts and emoji need them.
"""

from __future__ import annotations

import re
import unicodedata

_LINE_END = re.compile("\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
_REMOVED = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ufffd\ud800-\udfff]")
_SPACE = re.compile("[\t\x1f\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")


def clean(text: str) -> tuple[str, int]:
    """(clean text, number of characters removed). Linear in the text. Example: `"a\\x00\\u00a0b"` -> `("a b", 1)`."""
    if text.isascii() and text.isprintable():
        return text, 0
    text = _LINE_END.sub("\n", text)
    text, removed = _REMOVED.subn("", text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", _SPACE.sub(" ", text))
    return text.replace("\t", " ").replace("\x1f", " "), removed
