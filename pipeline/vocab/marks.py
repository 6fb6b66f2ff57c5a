"""In which texts "ignore accents" removes letters, and not accents alone.

BERT's and ALBERT's normalization decomposes text and drops its combining marks (Unicode's category Mn). In French
this joins "eleve" and "élève", in Hindi words that differ in a vowel, in Japanese が and か. So marks are kept by
default in the languages below, and elsewhere a note says how many letters of the text change.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable

from schemas.vocabulary import Model

_CODES = "as awa bho bn bo bpy dv dz gom gu hi ja km kn ko lo mai ml mni mr my ne new or pa pi sa shn si ta te th vi yi"
MARKS_ARE_LETTERS = frozenset(_CODES.split())
"""Codes of the languages whose vowels, tones or voiced consonants are combining marks once text is decomposed."""

NOTED_SHARE = 0.01
_EXAMPLES = 6


def marks_note(texts: Iterable[str], model: Model) -> str | None:
    """Return a note if ignoring accents changes many letters of some texts, with the flag that keeps them, or None."""
    counts = Counter("".join(texts))
    letters = sum(count for character, count in counts.items() if character.isalpha() or _is_mark(character))
    changed = {character: count for character, count in counts.items() if _is_changed(character, model)}
    share = sum(changed.values()) / max(letters, 1)
    if share < NOTED_SHARE:
        return None

    commonest = sorted(changed, key=lambda character: (-changed[character], character))[:_EXAMPLES]
    shown = " ".join(f"\u25cc{character}" if _is_mark(character) else character for character in commonest)
    flag = "--no_lowercase, which keeps case too" if model == "wordpiece" else "--keep_accents"
    return (
        f"Note: ignoring accents changes {share:.1%} of the letters of this text ({shown}). To keep them, give {flag}."
    )


def _is_changed(character: str, model: Model) -> bool:
    decomposed = unicodedata.normalize("NFD", character)
    # WordPiece leaves Korean syllables decomposed. Unigram composes them again.
    is_syllable = model == "wordpiece" and "\uac00" <= character <= "\ud7a3"
    return is_syllable or any(map(_is_mark, decomposed))


def _is_mark(character: str) -> bool:
    return unicodedata.category(character) == "Mn"
