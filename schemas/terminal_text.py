"""Escapes what could control a terminal in texts that are printed: file names and corpora may contain anything."""

from __future__ import annotations

import unicodedata

BIDI_CONTROLS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that reorder the text after them, beyond the end of the string that contains them."""


def one_line(text: str) -> str:
    """Return text with line breaks and control characters escaped: file names may contain both."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def terminal_safe(text: str) -> str:
    """Return text with its line breaks, but with every other character that could control a terminal escaped.

    Letters, marks and spaces of all scripts stay. So do joiners, which some scripts and emoji need.
    """
    return "".join(_escaped(c) if _controls_terminal(c) else c for c in text)


def _controls_terminal(character: str) -> bool:
    if character == "\n":
        return False
    return unicodedata.category(character) in ("Cc", "Cs") or character in BIDI_CONTROLS


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
