"""Resolves `--language`: from what a user calls a language to its code, and to the rules that split its sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from pipeline.shard.detection import UNKNOWN
from schemas.errors import UsageError, nearest_name
from schemas.manifest import Manifest

_LONGEST_CODE = 3


@dataclass(frozen=True)
class Language:
    """One language. `rules` is the code of the language whose rules split its sentences."""

    code: str
    rules: str
    name: str

    @property
    def title(self) -> str:
        """Its name, and its code if it has another name than that."""
        return self.code if self.name == self.code else f"{self.name} ({self.code})"


def find_language(given: str) -> Language:
    """Return the language with an ISO 639-1, -2 or -3 code or an English name, ignoring case.

    Region and script are allowed and dropped: `"en-US"`, `"zh_Hant"`. Example: `"deu"`, `"ger"`, `"German"` and `"DE"`
    are all the language with code `"de"`. Any other code of three letters is a language without rules, of which there
    are thousands; all codes of two letters are in the table. Raises UsageError, with the nearest known name, for
    anything else.
    """
    languages = _languages()
    wanted = " ".join(given.lower().split())
    if wanted in languages:
        return languages[wanted]

    without_region = re.split("[-_]", wanted)[0]
    if without_region in languages:
        return languages[without_region]

    if re.fullmatch("[a-z]{3}", without_region):
        return known_language(without_region)

    hint = nearest_name(wanted, [name for name in languages if len(name) > _LONGEST_CODE])
    raise UsageError(
        f"--language {given!r} is not a known language code or name.{hint} Give its code of ISO 639, such as en, zh or "
        "chr, or `und` for an unknown language."
    )


MAIN_SHARE = 0.95
"""Share of a text's documents that are in its language, where each document's was found."""


def language_of_text(manifest: Manifest) -> str:
    """Return the code of a text folder's language; "und" if `--language auto` found several, none in most documents."""
    found = manifest.statistics.get("documents_by_language")
    if not found:
        return manifest.options.get("language", "en")
    code, documents = max(found.items(), key=lambda item: (item[1], item[0]))
    return code if documents >= MAIN_SHARE * sum(found.values()) else UNKNOWN


def known_language(code: str) -> Language:
    """Return the language with a code, which may be in no table. English rules then split it."""
    return _languages().get(code) or Language(code, "en", code)


def fallback_note(language: Language) -> str | None:
    """Return a note if another language's rules split this one's sentences, else None."""
    if language.rules == language.code:
        return None

    rules = _languages()[language.rules]
    return (
        f"Note: sentencex has no rules for {language.title}, so sentences are split by "
        f"those of {rules.title}. If they do not fit, split the text yourself and give "
        "--sentence_splitter newline."
    )


@cache
def _languages() -> dict[str, Language]:
    table = resources.files("pipeline.shard").joinpath("languages.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in table.splitlines() if not line.startswith("#")]

    languages: dict[str, Language] = {}
    for code, rules, name, *others in rows:
        language = Language(code, rules, name)
        for key in (code, name.lower(), *(key for listed in others for key in listed.split(", "))):
            languages[key] = language
    return languages
