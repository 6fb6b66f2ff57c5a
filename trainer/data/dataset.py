"""Reads the rows of a folder of pairs, a block of shards at a time.

No row is used before its shard has the size and the hash that the manifest states, opens as Arrow, validates, and holds
only values in range. Every shard is checked each time it is opened, once an epoch: this takes 5 nanoseconds a token and
also finds a shard that was replaced during a run.

The sampler (sampler.py) decides which blocks global batch k needs; while a batch is made from one block, the next block
is read by a background thread.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from schemas import shards, storage
from schemas.errors import DataError
from schemas.manifest import Manifest, Shard, read_manifest, read_shard_bytes
from schemas.row_checks import PairLimits, check_pairs, read_pairs_vocabulary
from schemas.vocabulary import Vocabulary
from trainer.data.pair_rows import Block, join_rows, rows_from_table, stored_masks_from_tables
from trainer.data.shard_cache.cache import ShardCache

CACHE_FOLDER = "~/.cache/clozeline"
CACHE_BYTES = 50 * 10**9

BLOCKS_OPEN = 3
"""Blocks kept in memory: the one in use, the one before it in the same batch, and the one being read ahead."""


class PairFolder:
    """A finished folder of pairs: its manifest, its vocabulary, and the rows of its shards."""

    def __init__(self, folder: str, cache: str = CACHE_FOLDER, cache_bytes: int = CACHE_BYTES):
        """Open a folder. Shards of a remote one (s3://, gs://) are copied to `cache`, up to `cache_bytes` of them.

        Raises DataError if the folder is not finished, or its vocabulary is not the one its manifest names.
        """
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder, "pairs")
        self.vocabulary: Vocabulary = read_pairs_vocabulary(folder, self.manifest)
        self._limits = PairLimits.of(self.manifest, self.vocabulary)

        # sha256 of the shards whose rows were found to have the fingerprint that the manifest states
        self._verified_shards: set[str] = set()

        self._cache: ShardCache | None = None
        if not storage.is_local(folder):
            self._cache = ShardCache(folder, self.manifest.shards, cache, cache_bytes)

        self._blocks: OrderedDict[tuple[int, ...], Future[Block]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="blocks")

    @property
    def max_length(self) -> int:
        """The largest number of tokens that a row may have."""
        return int(self.manifest.options["max_length"])

    @property
    def objective(self) -> str:
        """nsp, sop, full_sentences or doc_sentences."""
        return str(self.manifest.options["objective"])

    @property
    def static_masks(self) -> int:
        """The number of masks that each row carries."""
        return int(self.manifest.options.get("static_masks", 0))

    def block(self, shard_numbers: tuple[int, ...]) -> Block:
        """Return all rows of these shards, in order. Waits until they are read. Raises DataError."""
        self.read_ahead(shard_numbers)
        return self._blocks[shard_numbers].result()

    def read_ahead(self, shard_numbers: tuple[int, ...]) -> None:
        """Start reading a block in the background, unless it is in memory or being read."""
        if shard_numbers not in self._blocks:
            if self._cache is not None:
                self._cache.fetch_ahead([self.manifest.shards[number] for number in shard_numbers])
            self._blocks[shard_numbers] = self._thread.submit(self._read_block, shard_numbers)

        # Keep the blocks used last.
        self._blocks.move_to_end(shard_numbers)
        while len(self._blocks) > BLOCKS_OPEN:
            self._blocks.popitem(last=False)

    def close(self) -> None:
        """Stop the background threads."""
        if self._cache is not None:
            self._cache.close()
        self._thread.shutdown(cancel_futures=True)

    def _read_block(self, shard_numbers: tuple[int, ...]) -> Block:
        tables = [self.read_shard(number) for number in shard_numbers]
        row_counts = [table.num_rows for table in tables]

        stored_masks = None
        if self.static_masks > 0:
            stored_masks = stored_masks_from_tables(tables, self.static_masks)

        return Block(
            rows=join_rows([rows_from_table(table) for table in tables]),
            shard_B=np.repeat(np.array(shard_numbers, dtype=np.int64), row_counts),
            row_B=np.concatenate([np.arange(count) for count in row_counts]),
            stored=stored_masks,
        )

    def read_shard(self, number: int) -> pa.Table:
        """Return the rows of one shard. Raises DataError naming the shard and what is wrong with it."""
        shard = self.manifest.shards[number]
        path = storage.join(self.folder, shard.path)
        schema = shards.pairs_schema(self.vocabulary.size, self.static_masks > 0)

        data = self._read_bytes(shard)
        table = shards.decode_table(data, path, schema)
        table = table.combine_chunks()  # once here, not each time that a column is read

        if table.num_rows != shard.rows:
            raise DataError(
                f"{path} has {table.num_rows:,} rows, but its manifest says {shard.rows:,}. Rebuild the folder."
            )
        check_pairs(table, path, self._limits)
        self._check_fingerprint(table, shard, path)
        return table

    def _read_bytes(self, shard: Shard) -> bytes:
        if self._cache is None:
            return read_shard_bytes(self.folder, shard)
        return self._cache.read(shard)

    def _check_fingerprint(self, table: pa.Table, shard: Shard, path: str) -> None:
        """Raise DataError if the rows are not those that the manifest's fingerprint names.

        This is checked once for each sha256, because equal bytes hold equal rows.
        """
        if shard.sha256 not in self._verified_shards:
            shards.check_fingerprint(table, path, shard.fingerprint)
            self._verified_shards.add(shard.sha256)
