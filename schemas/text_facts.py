"""What a text folder says about its text, in a form that travels: the text's manifest -> pairs -> a run -> an export.

The manifest of pairs holds it as `statistics.text`, so a folder of pairs still says where its text is from when the
text is gone. Its size does not depend on that of the corpus: of long lists it has the largest entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MAX_LISTED = 24
"""Sources, languages, and reasons of a stage that are listed. The others are summed up."""

MAX_NAME = 200
"""Characters of a name that are kept: a record may name any text as its source."""

Size = Annotated[int, Field(ge=0, lt=2**63)]
Named = tuple[str, Size]

_FACTS = ConfigDict(extra="ignore", frozen=True)


class CorpusFacts(BaseModel):
    """A corpus as `shard --inputs` or `--corpus_name` describe it, and how many of its documents are in the text."""

    model_config = _FACTS

    name: str
    license: str = ""
    url: str = ""
    date: str = ""
    share: float = 1.0
    documents: Size = 0


class LeftOut(BaseModel):
    """What one stage of `shard` left out. largest: (reason, source, count), largest first."""

    model_config = _FACTS

    stage: str
    count: Size
    largest: list[tuple[str, str, Size]]


class DomainFacts(BaseModel):
    """Where pages of the web are from: counts of documents by the host of their URL, before copies are dropped.

    hosts: their number. documents: those that have a host. largest: (host, documents), largest first, then by name.
    """

    model_config = _FACTS

    hosts: Size
    documents: Size
    largest: list[Named] = Field(max_length=MAX_LISTED)


class TextFacts(BaseModel):
    """The facts. files, bytes: of the input, as stored. sources, languages: (name, documents), largest first.

    language: of the job; "auto" if it found that of each document, and only then are there `languages`.
    domains: only of input with URLs.
    sentences_per_document, characters_per_sentence: counts by powers of two; item i is that of 2**i to 2**(i+1) - 1.
    """

    model_config = _FACTS

    fingerprint: str
    files: Size
    bytes: Size
    documents: Size
    sentences: Size
    text_bytes: Size
    sources: list[Named]
    language: str
    languages: list[Named] = []
    corpora: list[CorpusFacts] = []
    left_out: list[LeftOut] = []
    cleaning: list[Named] = []
    domains: DomainFacts | None = None
    sentences_per_document: list[Size] = []
    characters_per_sentence: list[Size] = []

    @property
    def other_sources(self) -> list[Named]:
        """The sources, if they are not the corpora themselves: formats, or what records name."""
        names = {cut(corpus.name) for corpus in self.corpora}
        return self.sources if any(source not in names for source, _ in self.sources[:MAX_LISTED]) else []


def facts_of(statistics: dict[str, Any]) -> TextFacts | None:
    """Return what the statistics of pairs say about their text; None if an earlier version made them."""
    facts = statistics.get("text")
    return None if facts is None else TextFacts.model_validate(facts)


def dumped(facts: TextFacts) -> dict[str, Any]:
    """Return the facts as JSON values, without `domains` if there are none."""
    return facts.model_dump(mode="json", exclude_none=True)


def with_others(domains: DomainFacts) -> list[Named]:
    """Return the largest hosts with their documents, then a sum of the others."""
    others = domains.hosts - len(domains.largest)
    counted = domains.documents - sum(count for _, count in domains.largest)
    return [*domains.largest, (f"{others:,} others", counted)] if others > 0 else domains.largest


def cut(name: str) -> str:
    """Return a name with at most MAX_NAME characters."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def largest_first(counts: Iterable[Named]) -> list[Named]:
    """Return the MAX_LISTED largest (name, count), then a sum of the others. Equal ones are sorted by name."""
    in_order = [(cut(name), count) for name, count in sorted(counts, key=lambda item: (-item[1], item[0]))]
    others = in_order[MAX_LISTED:]
    summed = [(f"{len(others):,} others", sum(count for _, count in others))] if others else []
    return in_order[:MAX_LISTED] + summed
