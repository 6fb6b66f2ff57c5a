"""--inputs: a TOML file of several corpora, each with its own files, name, format and language.

[[corpus]]
name = "wikipedia"                  the source of its documents, in shards, ledgers and cards
input = "dumps/*.xml.bz2"           as --input; or a list
license = "CC BY-SA 4.0"            any text, for the manifest and the cards; so are the next two
url = "https://dumps.wikimedia.org" where the corpus is from
date = 2024-05-01                   when it was made or fetched; a date, or any text
language = "de"                     these six as the flags of their names, which hold where a corpus has none:
format = "mediawiki"                format, text_layout, text_key, encoding, language, sentence_splitter

[[corpus]]
name = "web"
input = ["crawl/*.warc.gz"]
share = 0.25                        a quarter of its documents, by their ids and --seed
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from pipeline.readers.listing import Listing, in_full, list_inputs, without
from schemas import storage
from schemas.errors import UsageError, nearest_name
from schemas.terminal import counted, print_note

FLAGS = ("format", "text_layout", "text_key", "encoding", "language", "sentence_splitter")
"""The options that a corpus may have."""

FACTS = ("name", "license", "url", "date", "share")
"""What the manifest records about a corpus, for its cards; the other keys say how it is read."""

_KEYS = ("name", "input", "license", "url", "date", "share", *FLAGS)


@dataclass(frozen=True)
class Corpus:
    """One corpus. The only one of --input has no name, and its documents have the sources of their formats.

    options: values of FLAGS that are not the job's. share: of the documents that are kept, above 0 and at most 1.
    """

    name: str = ""
    patterns: tuple[str, ...] = ()
    license: str = ""
    url: str = ""
    date: str = ""
    share: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)

    def recorded(self) -> dict[str, Any]:
        """Return what the manifest records."""
        facts = {key: getattr(self, key) for key in FACTS}
        return {key: value for key, value in facts.items() if value not in ("", 1)} | self.options


def read_corpora(path: str) -> list[Corpus]:
    """Return the corpora of a TOML file. Raises UsageError, with the place, for what is wrong in it."""
    shown = f"--inputs {storage.printable(path)}"
    try:
        content = tomllib.loads(storage.read_named("--inputs", path).decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{shown} is not TOML: {error}. docs/own_corpus.md has an example.") from error

    tables = content.pop("corpus", None)
    if content or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{shown} must hold tables [[corpus]] and nothing else. docs/own_corpus.md has an example.")

    corpora = [_corpus(table, f"{shown}, corpus {number}") for number, table in enumerate(tables, start=1)]
    names = [corpus.name for corpus in corpora]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{shown} has {names.count(name)} corpora called {name!r}. Give each its own name.")
    return corpora


def _corpus(table: dict[str, Any], place: str) -> Corpus:
    for key in table:
        if key not in _KEYS:
            raise UsageError(f"{place} has {key!r}.{nearest_name(key, _KEYS)} It may have {', '.join(_KEYS)}.")
    for key in ("name", "input"):
        if not table.get(key):
            raise UsageError(f"{place}: {key} is missing.")

    # TOML has dates, too.
    if isinstance(table.get("date"), date):
        table = table | {"date": table["date"].isoformat()}
    patterns = table["input"] if isinstance(table["input"], list) else [table["input"]]
    for key, value in {**table, "input": patterns[0]}.items():
        if key != "share" and not isinstance(value, str):
            raise UsageError(f"{place}: {key} = {value!r} must be text in quotation marks.")
    share = table.get("share", 1)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise UsageError(f"{place}: share = {share!r} must be a number above 0 and at most 1.")

    options = {key: table[key] for key in FLAGS if key in table}
    facts = {key: table[key] for key in ("license", "url", "date") if key in table}
    return Corpus(table["name"], tuple(map(str, patterns)), share=float(share), options=options, **facts)


def list_corpora(corpora: list[Corpus], exclude: Sequence[str]) -> list[Listing]:
    """Return the files of each corpus but those of `exclude` (as in `without`), whose number is printed.

    Raises UsageError for a file that belongs to two.
    """
    listed = [list_inputs(*corpus.patterns) for corpus in corpora]
    listings = without(listed, exclude)
    if exclude:
        left_out = sum(len(one.files) for one in listed) - sum(len(one.files) for one in listings)
        print_note(f"{counted(left_out, 'file')} of the input left out by --exclude.")
    owners: dict[str, str] = {}
    for corpus, listing in zip(corpora, listings, strict=True):
        for file in listing.files:
            other = owners.setdefault(in_full(file.path), corpus.name)
            if other != corpus.name:
                shown = storage.printable(file.path)
                raise UsageError(f"{shown} is in two corpora of --inputs, {other!r} and {corpus.name!r}.")
    return listings
