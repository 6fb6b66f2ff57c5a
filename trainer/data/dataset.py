"""Rows out of pair shards, a block of shards at a time.

No row is handed out before its shard has the size and hash of the manifest, opens as Arrow, validates, and holds only
values in range. That is done whenever a shard is opened, once an epoch: it takes 5 nanoseconds a token, and a shard
that is swapped during a run is found.

Letters: B rows, T tokens, K stored masks of a row.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas import shards, storage
from schemas.errors import DataError
from schemas.manifest import Manifest, Shard, read_manifest, read_shard_bytes
from schemas.masking import Masks
from schemas.ragged import offsets_of, places_of_ranges, take_ranges
from schemas.row_checks import PairLimits, check_pairs, lengths_of, read_pairs_vocabulary
from schemas.vocabulary import Vocabulary
from trainer.data.shard_cache.cache import ShardCache
from trainer.models.batch import NO_LABEL

CACHE, CACHE_BYTES = "~/.cache/clozeline", 50 * 10**9
BLOCKS_OPEN = 3  # the one in use, the one before it in the same batch, the one being read ahead
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PairRows:
    """B rows end to end in T tokens: row i is offsets_B1[i] : offsets_B1[i + 1]."""

    ids_T: NDArray[Any]
    word_starts_T: NDArray[np.bool_]
    offsets_B1: Ints
    segment_b_B: Ints
    labels_B: Ints

    def lengths(self) -> Ints:
        """(B,) tokens in each row."""
        return np.diff(self.offsets_B1)

    def take(self, rows: Ints) -> PairRows:
        """The named rows, in the named order."""
        starts, lengths = self.offsets_B1[rows], self.offsets_B1[rows + 1] - self.offsets_B1[rows]
        places = places_of_ranges(starts, lengths)
        return PairRows(
            self.ids_T.take(places),
            self.word_starts_T.take(places),
            offsets_of(lengths),
            self.segment_b_B[rows],
            self.labels_B[rows],
        )


def join_rows(parts: list[PairRows]) -> PairRows:
    """Several lots of rows as one, in order."""
    if len(parts) == 1:
        return parts[0]
    return PairRows(
        np.concatenate([part.ids_T for part in parts]),
        np.concatenate([part.word_starts_T for part in parts]),
        offsets_of(np.concatenate([part.lengths() for part in parts])),
        np.concatenate([part.segment_b_B for part in parts]),
        np.concatenate([part.labels_B for part in parts]),
    )


@dataclass(frozen=True)
class StoredMasks:
    """Masks that rows carry: variant k of row i is number i * variants + k among the lists end to end.

    positions count from the row's first token; tokens are the ids to put there.
    """

    variants: int
    positions: NDArray[np.integer]
    tokens: NDArray[np.integer]
    offsets: Ints

    def take(self, chosen_B: Ints, variant: int, begins_B: Ints) -> Masks:
        """One variant of each chosen row, whose first token lies at `begins_B` among the batch's tokens."""
        number_B = chosen_B * self.variants + variant
        starts_B, counts_B = self.offsets[number_B], self.offsets[number_B + 1] - self.offsets[number_B]
        positions_K = take_ranges(self.positions, starts_B, counts_B) + np.repeat(begins_B, counts_B)
        return Masks(positions_K, take_ranges(self.tokens, starts_B, counts_B), offsets_of(counts_B))


@dataclass(frozen=True)
class Block:
    """The rows of several shards end to end; shard_B and row_B say which shard and which of its rows each one is."""

    rows: PairRows
    shard_B: Ints
    row_B: Ints
    stored: StoredMasks | None


class PairFolder:
    """A finished folder of pairs: its manifest, its vocabulary, and blocks of its shards as they are needed."""

    def __init__(self, folder: str, cache: str = CACHE, cache_bytes: int = CACHE_BYTES):
        """Of a folder that is elsewhere (s3://, gs://) up to `cache_bytes` of shards are kept in `cache`."""
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder, "pairs")
        self.vocabulary: Vocabulary = read_pairs_vocabulary(folder, self.manifest)
        self._limits = PairLimits.of(self.manifest, self.vocabulary)
        self._known_rows: set[str] = set()  # sha256 of shards whose rows have the fingerprint that the manifest states
        remote = not storage.is_local(folder)
        self._cache = ShardCache(folder, self.manifest.shards, cache, cache_bytes) if remote else None
        self._blocks: OrderedDict[tuple[int, ...], Future[Block]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="blocks")

    @property
    def max_length(self) -> int:
        return int(self.manifest.options["max_length"])

    @property
    def objective(self) -> str:
        """nsp, sop, full_sentences or doc_sentences."""
        return str(self.manifest.options["objective"])

    @property
    def static_masks(self) -> int:
        """How many masks each row carries."""
        return int(self.manifest.options.get("static_masks", 0))

    def block(self, numbers: tuple[int, ...]) -> Block:
        """All rows of some shards, in order; read now unless `ahead` was asked for it. Raises DataError."""
        self.ahead(numbers)
        return self._blocks[numbers].result()

    def ahead(self, numbers: tuple[int, ...]) -> None:
        """Read a block in the background. The last few blocks stay open."""
        if numbers not in self._blocks:
            if self._cache is not None:
                self._cache.ahead([self.manifest.shards[number] for number in numbers])
            self._blocks[numbers] = self._thread.submit(self._read_block, numbers)
        self._blocks.move_to_end(numbers)
        while len(self._blocks) > BLOCKS_OPEN:
            self._blocks.popitem(last=False)

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()
        self._thread.shutdown(cancel_futures=True)

    def _read_block(self, numbers: tuple[int, ...]) -> Block:
        tables = [self.read_shard(number) for number in numbers]
        counts = [table.num_rows for table in tables]
        return Block(
            join_rows([_rows(table) for table in tables]),
            np.repeat(np.array(numbers, dtype=np.int64), counts),
            np.concatenate([np.arange(count) for count in counts]),
            _stored_masks(tables, self.static_masks) if self.static_masks else None,
        )

    def read_shard(self, number: int) -> pa.Table:
        """One shard's rows. Raises DataError naming the shard and what is wrong with it."""
        shard = self.manifest.shards[number]
        path = storage.join(self.folder, shard.path)
        schema = shards.pairs_schema(self.vocabulary.size, self.static_masks > 0)
        data = read_shard_bytes(self.folder, shard) if self._cache is None else self._cache.read(shard)
        table = shards.decode_table(data, path, schema).combine_chunks()  # once, not each time a column is looked at
        if table.num_rows != shard.rows:
            raise DataError(f"{path} has {table.num_rows:,} rows, but its manifest says {shard.rows:,}. Rebuild it.")
        check_pairs(table, path, self._limits)
        self._check_fingerprint(table, shard, path)
        return table

    def _check_fingerprint(self, table: pa.Table, shard: Shard, path: str) -> None:
        """Raise DataError when the rows are not those that the manifest's fingerprint names.

        Once for each version of a shard's bytes: the same bytes hold the same rows.
        """
        if shard.sha256 not in self._known_rows:
            shards.check_fingerprint(table, path, shard.fingerprint)
            self._known_rows.add(shard.sha256)


def _rows(table: pa.Table) -> PairRows:
    """The rows of a shard that has passed its checks: no list is null, so the items of all lists lie end to end."""
    ids = table["input_ids"].combine_chunks()
    starts = table["word_starts"].combine_chunks()
    return PairRows(
        ids.flatten().to_numpy(),
        starts.flatten().to_numpy(zero_copy_only=False),
        offsets_of(lengths_of(ids)),
        table["segment_b_start"].to_numpy().astype(np.int64),
        table["pair_label"].combine_chunks().fill_null(NO_LABEL).to_numpy().astype(np.int64),
    )


def _stored_masks(tables: list[pa.Table], variants: int) -> StoredMasks:
    positions, tokens = (
        [table[name].combine_chunks().flatten() for table in tables] for name in ("mask_positions", "mask_tokens")
    )
    return StoredMasks(
        variants,
        np.concatenate([part.flatten().to_numpy() for part in positions]),
        np.concatenate([part.flatten().to_numpy() for part in tokens]),
        offsets_of(np.concatenate([lengths_of(part) for part in positions])),
    )
