"""`--language`: from what a user calls a language to one code, and whose rules then split its sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from pipeline.shard.language_table import OTHER_NAMES, TABLE
from schemas.errors import UsageError, nearest_name


@dataclass(frozen=True)
class Language:
    """One language. `rules` is the code of the language whose rules split its sentences."""

    code: str
    rules: str
    name: str


def find_language(given: str) -> Language:
    """Return the language of a code of ISO 639-1, -2 or -3, or of an English name, in any case.

    Region and script are allowed and dropped: `"en-US"`, `"zh_Hant"`. Example: `"deu"`, `"ger"`, `"German"` and `"DE"`
    are all the language of code `"de"`. Raises UsageError, with the nearest known names, for anything else.
    """
    languages = _languages()
    wanted = " ".join(given.lower().split())
    primary = re.split("[-_]", wanted)[0]
    found = languages.get(wanted) or languages.get(primary)
    if found is not None:
        return found

    # Names first: a wrong code of three letters is near to dozens of others.
    names = [name for name in languages if len(name) > 3]
    hint = nearest_name(wanted, names) or nearest_name(wanted, languages)
    raise UsageError(
        f"--language {given!r} is not a language code or name that is known.{hint} Give a code of ISO 639, such as en, "
        "de or zh, or `und` for a language without rules."
    )


def fallback_note(language: Language) -> str | None:
    """Return one line when the rules of another language split this one's sentences."""
    if language.rules == language.code:
        return None
    rules = _languages()[language.rules]
    return (
        f"Note: sentencex has no rules of its own for {language.name} ({language.code}), so sentences are split by "
        f"those of {rules.name} ({rules.code}). If they do not fit, split the text yourself and give "
        "--sentence_splitter newline."
    )


@cache
def _languages() -> dict[str, Language]:
    """All languages by every code and lower-case name that they go by."""
    languages: dict[str, Language] = {}
    for line in TABLE.strip().splitlines():
        code, three_letter_codes, rules, name = line.split(" ", 3)
        language = Language(code, rules, name)
        languages |= {key: language for key in (code, *three_letter_codes.split("/"), name.lower())}
    return languages | {name: languages[code] for name, code in OTHER_NAMES.items()}
