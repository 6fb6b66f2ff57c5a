"""Builds a manifest in parallel: workers summarize up to 4,096 shards each, and the summaries are added up.

    reports of shards -> grouped by part -> summarize_part (on workers) -> Summary -> summarize_folder (once)

A part's shards are consecutive by index, so its entries, its digest and its file follow from its reports alone. All
sums are of integers, so they depend neither on the order of reports nor on how they are grouped. The last step of a job
gets one summary per 4,096 shards, and the entries themselves only if there is a single part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from schemas import storage
from schemas.manifest import (
    PART_ENTRIES,
    FolderKind,
    Listed,
    Part,
    Shard,
    digest_of_part,
    encode_entries,
    fingerprint_of_parts,
)
from schemas.shards import shard_place

AddUp = Callable[[list[Report]], Report]
"""Adds up the counts in reports of one kind of folder: reports -> one report of the same form.

Sums can be added up again: `add([add(a), add(b)]) == add(a + b)`.
"""

ADDED_AT_ONCE = 64
"""Reports held in memory before they are added up. A report has histograms of up to a thousand numbers."""


@dataclass(frozen=True)
class Summary:
    """What the last step of a job needs to know about one part of a folder, or about all parts together.

    number: of the part; 0 for all.
    shards: the entries, if the folder has only one part; otherwise empty, and `parts` are the files that have them.
    digests: of the shards of each part, in order, for the folder's fingerprint.
    largest: the first of the shards with the most rows.
    sums: the counts of all reports, added up.
    """

    number: int
    shards: list[Shard]
    parts: list[Part]
    digests: list[str]
    rows: int
    tokens: int
    largest: Shard
    sums: Report

    def fingerprint(self, kind: FolderKind, identity: str = "") -> str:
        """Return the folder's fingerprint. `identity` is the vocabulary's, for pairs."""
        return fingerprint_of_parts(kind, self.digests, identity)


def part_name(holds: Listed, number: int, parts: int) -> str:
    """Return a part's file name. Example: `part_name("shards", 0, 4)` -> `"manifest-shards-00000-of-00004.json"`."""
    return f"manifest-{holds}-{number:05d}-of-{parts:05d}.json"


def part_of_report(report: Report) -> int:
    """Return the number of the part that has the entry of a shard, given its report."""
    index, _ = shard_place(report["shard"]["path"])
    return index // PART_ENTRIES


def summarize_part(numbered: tuple[int, Iterable[Report]], add_up: AddUp, staging: Staging) -> Summary:
    """Summarize one part from its number and the reports of all its shards, in any order.

    Writes the part's file into staging if the folder has more than one part. Raises ValueError unless there is exactly
    one report for each of the part's shards.
    """
    number, reports = numbered
    shards: list[Shard] = []
    sums: list[Report] = []
    unread = iter(reports)
    while batch := list(islice(unread, ADDED_AT_ONCE)):
        shards += [Shard(**report["shard"]) for report in batch]
        sums = [add_up([*sums, *batch])]

    shards.sort(key=lambda shard: shard_place(shard.path))
    folder_size = _check_complete(number, shards)
    parts = []
    if folder_size > PART_ENTRIES:
        name = part_name("shards", number, -(-folder_size // PART_ENTRIES))
        parts = [_write_part(name, "shards", shards, staging)]

    return Summary(
        number=number,
        shards=[] if parts else shards,
        parts=parts,
        digests=[digest_of_part(shards)],
        rows=sum(shard.rows for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        largest=max(shards, key=lambda shard: shard.rows),
        sums=sums[0],
    )


def _check_complete(number: int, shards: list[Shard]) -> int:
    """Return the number of shards of the whole folder. Raises ValueError unless all shards of the part are there."""
    places = [shard_place(shard.path) for shard in shards]
    folder_size = places[0][1]
    first = number * PART_ENTRIES
    expected = [(index, folder_size) for index in range(first, min(first + PART_ENTRIES, folder_size))]
    if places != expected:
        raise ValueError(f"part {number} of {folder_size} shards has reports of {len(places)}: {places[:3]} ...")
    return folder_size


def summarize_folder(summaries: Iterable[Summary], add_up: AddUp) -> Summary:
    """Combine the summaries of all parts of a folder, in any order."""
    in_order = sorted(summaries, key=lambda summary: summary.number)
    return Summary(
        number=0,
        shards=[shard for summary in in_order for shard in summary.shards],
        parts=[part for summary in in_order for part in summary.parts],
        digests=[digest for summary in in_order for digest in summary.digests],
        rows=sum(summary.rows for summary in in_order),
        tokens=sum(summary.tokens for summary in in_order),
        largest=max((summary.largest for summary in in_order), key=lambda shard: shard.rows),
        sums=add_up([summary.sums for summary in in_order]),
    )


def in_parts(holds: Listed, entries: list[Any], staging: Staging) -> tuple[list[Any], list[Part]]:
    """Return (the entries of a list, no parts), or (no entries, parts) if there are more than PART_ENTRIES of them.

    Parts are written into staging.
    """
    if len(entries) <= PART_ENTRIES:
        return entries, []

    groups = [entries[start : start + PART_ENTRIES] for start in range(0, len(entries), PART_ENTRIES)]
    names = [part_name(holds, number, len(groups)) for number in range(len(groups))]
    return [], [_write_part(name, holds, group, staging) for name, group in zip(names, groups, strict=True)]


def _write_part(name: str, holds: Listed, entries: list[Any], staging: Staging) -> Part:
    data = encode_entries(entries)
    staging.put(name, data)
    return Part(name, holds, len(entries), len(data), storage.sha256(data))
