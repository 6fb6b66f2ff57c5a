"""Reads word counts, from a finished folder or from the staging of the job that counted them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.commit.publish import read_piece
from pipeline.commit.staging import Staging
from pipeline.vocab.counting import sum_counts
from pipeline.vocab.memory import Tally
from pipeline.words.rules import Rules
from schemas import shards, storage
from schemas.errors import DataError, StorageError
from schemas.manifest import Manifest, Shard, check_unchanged, read_manifest, read_shard_bytes
from schemas.shards import COUNTS_BY_SOURCE_SCHEMA, shard_name


@dataclass(frozen=True)
class CountsPlace:
    """Where the counts by one set of rules are.

    folder: a finished folder of counts; empty if this job has counted, and the counts are in its staging.
    fingerprint: the folder's fingerprint when the job began.
    """

    folder: str
    fingerprint: str
    rules: Rules
    partitions: int
    staging: Staging

    def open(self) -> CountsReader:
        """Return a reader of the partitions. Raises DataError if the folder was replaced since the job began."""
        if not self.folder:
            return CountsReader(self, {})

        manifest = read_manifest(self.folder, "counts")
        check_unchanged(self.folder, manifest, self.fingerprint)
        return CountsReader(self, {shard.path: shard for shard in manifest.shards})


@dataclass(frozen=True)
class CountsReader:
    """Reads the partitions of one set of rules and checks their bytes. Thread-safe.

    entries: the files of a finished folder by name; a file in staging has a report instead.
    """

    place: CountsPlace
    entries: dict[str, Shard]

    def read(self, partition: int) -> pa.Table:
        """Return the counts of one partition (COUNTS_BY_SOURCE_SCHEMA).

        Raises DataError for a damaged or missing file of a finished folder, and StorageError for one in staging, which
        the next attempt makes again.
        """
        place = self.place
        name = shard_name(place.rules.name, partition, place.partitions)
        if place.folder:
            data = read_shard_bytes(place.folder, self.entries[name])
            return shards.decode_table(data, storage.join(place.folder, name), COUNTS_BY_SOURCE_SCHEMA)

        report = place.staging.report(name)
        if report is None:
            raise StorageError(f"The report of {place.staging.url(name)} is missing. Run the same command again.")
        data = read_piece(place.staging, Shard(**report["shard"]))
        return shards.decode_table(data, place.staging.url(name), COUNTS_BY_SOURCE_SCHEMA)

    def read_words(self, partition: int) -> pa.Table:
        """Return the counts of one partition over all sources (shards.COUNTS_SCHEMA). Raises as `read` does."""
        return sum_counts(self.read(partition), ["word"])


def tally_of(counts: Manifest, folder: str, rules: Rules) -> Tally:
    """Return the tally of a finished folder of counts. Raises DataError if it has none for these rules."""
    tallies = counts.statistics["tallies"]
    if rules.name not in tallies:
        raise DataError(
            f"{folder} holds no {rules.name} words, only {', '.join(tallies)}. Count the text again with --overwrite."
        )
    return np.array(tallies[rules.name], dtype=np.int64)
