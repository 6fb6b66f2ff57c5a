"""A folder of statistics: how often the tokens of some pairs occur, and near which other tokens.

    unigrams.arrow                            count int64 | context_weight int64         row i is of token i
    cooccurrences-00000-of-00004.arrow        first uint32 | second uint32 | weight int64

A co-occurrence is an unordered pair of tokens, first <= second, at most `window` tokens apart in a row without a
special token between them. At distance d it adds `unit_weight(window) / d`, a whole number, so sums are exact. Each
pair of tokens is in one file, and a file is sorted by (first, second). docs/formats.md lists what the manifest records.

Rare co-occurrences may be left out. A token's *context weight* is the total weight of its co-occurrences, including
those left out, so that probabilities computed from it do not depend on what was kept.

Shape suffixes: V vocabulary, C co-occurrences of one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas import shards, storage
from schemas.errors import DataError
from schemas.manifest import NAME, Manifest, Shard, read_manifest
from schemas.row_checks import check_row_count, raise_first
from schemas.shards import read_shard_bytes

UNIGRAMS_FILE = "unigrams.arrow"
COOCCURRENCES = "cooccurrences"
"""The kind of the other files, from which `shards.shard_name` makes their names."""

UNIGRAMS_SCHEMA = pa.schema([("count", pa.int64()), ("context_weight", pa.int64())])
COOCCURRENCES_SCHEMA = pa.schema([("first", pa.uint32()), ("second", pa.uint32()), ("weight", pa.int64())])


class Cooccurrences(NamedTuple):
    """Pairs of tokens with their weights: first_C <= second_C, uint32, and weight_C > 0, int64."""

    first_C: NDArray[np.uint32]
    second_C: NDArray[np.uint32]
    weight_C: NDArray[np.int64]

    def take(self, chosen: NDArray[np.bool_]) -> Cooccurrences:
        """Return the pairs for which the (C,) mask `chosen` is true."""
        return Cooccurrences(self.first_C[chosen], self.second_C[chosen], self.weight_C[chosen])


NO_COOCCURRENCES = Cooccurrences(np.zeros(0, np.uint32), np.zeros(0, np.uint32), np.zeros(0, np.int64))


def joined(parts: Sequence[Cooccurrences]) -> Cooccurrences:
    """Return the pairs of several parts, of which there is at least one. A pair may be in several of them."""
    return Cooccurrences(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class TokenStatistics(Protocol):
    """What a new run needs to know about its text: how often each token occurs, and near which others.

    unigrams_V: (V,) int64, 0 for uncounted special tokens.
    context_weights_V: (V,) int64, the total weight of each token's co-occurrences, including those that were dropped.
    """

    @property
    def unigrams_V(self) -> NDArray[np.int64]: ...

    @property
    def context_weights_V(self) -> NDArray[np.int64]: ...

    def cooccurrences(self) -> Iterator[Cooccurrences]:
        """Yield all co-occurrences that were kept, in parts that share no pair of tokens."""
        ...


@dataclass(frozen=True)
class Statistics:
    """A finished folder of statistics.

    vocabulary_fingerprint, vocabulary_size: of the vocabulary whose tokens are counted.
    unigrams_V: (V,) int64, how often each token occurs; 0 for uncounted special tokens.
    context_weights_V: (V,) int64, the total weight of each token's co-occurrences, including those that were dropped.
    """

    folder: str
    manifest: Manifest
    unigrams_V: NDArray[np.int64]
    context_weights_V: NDArray[np.int64]

    @property
    def vocabulary_fingerprint(self) -> str:
        return str(self.manifest.options["vocabulary"])

    @property
    def vocabulary_size(self) -> int:
        return int(self.manifest.options["vocabulary_size"])

    def cooccurrences(self) -> Iterator[Cooccurrences]:
        """Yield the co-occurrences of each file. Raises DataError if a file is missing, was changed or is wrong."""
        for entry in self.manifest.shards:
            if entry.path == UNIGRAMS_FILE:
                continue
            table = read_file(self.folder, entry, self.manifest)
            yield Cooccurrences(*(table[name].to_numpy() for name in COOCCURRENCES_SCHEMA.names))


def read_statistics(folder: str) -> Statistics:
    """Return a finished folder of statistics; its co-occurrences are read later.

    Raises DataError if it is not finished, of another kind, or damaged.
    """
    manifest = read_manifest(folder, "statistics")
    table = read_file(folder, unigrams_entry(folder, manifest), manifest)
    return Statistics(folder, manifest, table["count"].to_numpy(), table["context_weight"].to_numpy())


def unigrams_entry(folder: str, manifest: Manifest) -> Shard:
    """Return the entry of the file with the counts of tokens. Raises DataError if the manifest lists none."""
    for entry in manifest.shards:
        if entry.path == UNIGRAMS_FILE:
            return entry
    raise DataError(
        f"{storage.join(folder, NAME)} lists no {UNIGRAMS_FILE}, which has the counts of all tokens. "
        "Copy the folder again or rebuild it with --overwrite."
    )


def unit_weight(window: int) -> int:
    """Return the weight of two adjacent tokens: the least common multiple of all distances within the window."""
    return lcm(*range(1, window + 1))


def _check_unigrams(table: pa.Table, path: str, vocabulary_size: int) -> None:
    if table.num_rows != vocabulary_size:
        raise DataError(
            f"{path} has {table.num_rows:,} rows, but options.vocabulary_size is {vocabulary_size:,}: one row for each "
            "token was expected. Rebuild the folder with --overwrite."
        )
    for name in UNIGRAMS_SCHEMA.names:
        raise_first({f"a negative {name}": np.flatnonzero(table[name].to_numpy() < 0)}, path)


def _check_cooccurrences(table: pa.Table, path: str, vocabulary_size: int) -> None:
    first_C, second_C, weight_C = (table[name].to_numpy() for name in COOCCURRENCES_SCHEMA.names)
    pairs_C = (first_C.astype(np.uint64) << np.uint64(32)) | second_C
    faults = {
        f"a token id of {vocabulary_size} or more": np.flatnonzero(np.maximum(first_C, second_C) >= vocabulary_size),
        "a first token above the second": np.flatnonzero(first_C > second_C),
        "a weight of 0 or less": np.flatnonzero(weight_C <= 0),
        "a pair of tokens that is not after the one before": np.flatnonzero(pairs_C[1:] <= pairs_C[:-1]) + 1,
    }
    raise_first(faults, path)


def read_file(folder: str, entry: Shard, manifest: Manifest) -> pa.Table:
    """Return the rows of one file of a folder of statistics. Raises DataError if it is not as the manifest says."""
    path = storage.join(folder, entry.path)
    is_unigrams = entry.path == UNIGRAMS_FILE
    schema = UNIGRAMS_SCHEMA if is_unigrams else COOCCURRENCES_SCHEMA
    table = shards.decode_table(read_shard_bytes(folder, entry), path, schema)
    check_row_count(table, path, entry.rows)
    check = _check_unigrams if is_unigrams else _check_cooccurrences
    check(table, path, int(manifest.options["vocabulary_size"]))
    shards.check_fingerprint(table, path, entry.fingerprint)
    return table
