"""Reads the rows of a folder of pairs, a block of shards at a time.

No row is used before its shard has the size and the hash that the manifest states, opens as Arrow, validates, and holds
only values in range. Every shard is checked each time it is opened, once an epoch: this takes 5 nanoseconds a token and
also finds a shard that was replaced during a run.

The sampler (sampler.py) decides which blocks global batch k needs. While a batch is made from one block, a background
thread reads the next ones. The ranks of one node together read each shard only once (shared_blocks/).
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from typing import IO

import pyarrow as pa

from schemas import shards, storage
from schemas.manifest import Manifest, Shard, read_manifest, read_shard_bytes
from schemas.row_checks import PairLimits, check_pairs, check_row_count, read_pairs_vocabulary
from schemas.vocabulary import Vocabulary
from trainer.data.block import Block
from trainer.data.pair_rows import ShardRows, rows_from_table, stored_masks_from_table
from trainer.data.shard_cache.cache import ShardCache
from trainer.data.shared_blocks.node_blocks import Lease, NodeBlocks
from trainer.data.shared_blocks.open import open_node_blocks

CACHE_FOLDER = "~/.cache/clozeline"
CACHE_BYTES = 50 * 10**9


@dataclass(frozen=True)
class ReadBlock:
    """A block in memory. lease: held while the block is in memory that the node's ranks share; None if it is not."""

    block: Block
    lease: Lease | None


class PairFolder:
    """A finished folder of pairs: its manifest, its vocabulary, and the rows of its shards."""

    def __init__(self, folder: str, cache: str = CACHE_FOLDER, cache_bytes: int = CACHE_BYTES, run: str | None = None):
        """Open a folder. Shards of a remote one (s3://, gs://) are copied to the folder `cache`, up to `cache_bytes`.

        run: any name. Ranks of a node that pass the same one share what they read; with None, nothing is shared.
        Raises DataError if the folder is not finished, or its vocabulary is not the one its manifest names.
        """
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder, "pairs")
        self.vocabulary: Vocabulary = read_pairs_vocabulary(folder, self.manifest)
        self._limits = PairLimits.of(self.manifest, self.vocabulary)

        # The sha256 of each shard whose rows were found to have the fingerprint that the manifest states.
        self._verified_shards: set[str] = set()

        self._cache: ShardCache | None = None
        if not storage.is_local(folder):
            self._cache = ShardCache(folder, self.manifest.shards, cache, cache_bytes)

        self.blocks_ahead = 1
        """How many blocks are read ahead: as many as a global batch touches."""

        self._node_blocks: NodeBlocks | None = None
        if run is not None:
            self._node_blocks = open_node_blocks(run)

        self._blocks: OrderedDict[tuple[int, ...], Future[ReadBlock]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="blocks")

    @property
    def max_length(self) -> int:
        """The largest number of tokens that a row may have."""
        return int(self.manifest.options["max_length"])

    @property
    def objective(self) -> str:
        """How the rows were made: nsp, sop, full_sentences or doc_sentences."""
        return str(self.manifest.options["objective"])

    @property
    def static_masks(self) -> int:
        """The number of masks that each row carries."""
        return int(self.manifest.options.get("static_masks", 0))

    def block(self, shard_numbers: tuple[int, ...]) -> Block:
        """Return all rows of these shards, in order. Waits until they are read. Raises DataError."""
        self.read_ahead([shard_numbers])
        return self._blocks[shard_numbers].result().block

    def expect_blocks(self, per_batch: int) -> None:
        """Prepare for batches that touch up to `per_batch` blocks: read that many ahead, and keep them until used."""
        self.blocks_ahead = max(self.blocks_ahead, per_batch)

    def read_ahead(self, blocks: list[tuple[int, ...]]) -> None:
        """Start reading these blocks in the background, in this order, unless they are in memory or being read."""
        for shard_numbers in blocks:
            if shard_numbers not in self._blocks:
                self._blocks[shard_numbers] = self._thread.submit(self.decode_block, shard_numbers)
                self._fetch_unread()
            self._blocks.move_to_end(shard_numbers)

        while len(self._blocks) > self._blocks_kept():
            _, reading = self._blocks.popitem(last=False)
            release_when_read(reading)

    def _blocks_kept(self) -> int:
        """Return how many blocks are kept: those that are read ahead, the one in use, and some before it."""
        if self._node_blocks is None or not self._node_blocks.is_shared:
            return self.blocks_ahead + 2

        # Another rank of the node may be one step behind, and would have to decode blocks again that all others have
        # released. Two steps touch at most one block more than twice the number that one step touches.
        return self.blocks_ahead + (2 * self.blocks_ahead + 1)

    def _fetch_unread(self) -> None:
        """Start fetching the shards of a remote folder that are still to be read, in the order of reading."""
        if self._cache is None:
            return
        unread = [block for block, reading in self._blocks.items() if not reading.done()]
        self._cache.fetch_ahead([self.manifest.shards[number] for block in unread for number in block])

    def close(self) -> None:
        """Stop the background threads, and release what is shared with other ranks. May be called again."""
        if self._cache is not None:
            self._cache.close()
        if self._node_blocks is not None:
            self._node_blocks.stop_waiting()
        self._thread.shutdown(cancel_futures=True)

        while self._blocks:
            _, reading = self._blocks.popitem()
            release_when_read(reading)
        if self._node_blocks is not None:
            self._node_blocks.close()
            self._node_blocks = None

    def decode_block(self, shard_numbers: tuple[int, ...]) -> ReadBlock:
        """Read these shards in the calling thread, or map those that other ranks of the node have decoded.

        Raises DataError as `read_shard` does.
        """

        def decode(place: int) -> ShardRows:
            return self._rows_of_shard(shard_numbers[place])

        count = len(shard_numbers)
        if self._node_blocks is None:
            return ReadBlock(Block([decode(place) for place in range(count)]), None)

        shared = self._node_blocks.read(self._block_name(shard_numbers), count, decode)
        return ReadBlock(Block(shared.shards), shared.lease)

    def _block_name(self, shard_numbers: tuple[int, ...]) -> str:
        """Return a name that differs between blocks that hold different rows or are checked differently."""
        content = [self.manifest.shards[number].sha256 for number in shard_numbers]
        identity = [self.folder, self.manifest.fingerprint, self.manifest.options, content]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]

    def _rows_of_shard(self, number: int) -> ShardRows:
        table = self.read_shard(number)
        stored_masks = None
        if self.static_masks > 0:
            stored_masks = stored_masks_from_table(table, self.static_masks)
        return ShardRows(rows_from_table(table), stored_masks)

    def read_shard(self, number: int) -> pa.Table:
        """Return the rows of one shard. Raises DataError naming the shard and what is wrong with it."""
        shard = self.manifest.shards[number]
        path = storage.join(self.folder, shard.path)
        schema = shards.pairs_schema(self.vocabulary.size, self.static_masks > 0)

        data = self._read_bytes(shard)
        batches = shards.decode_table(data, path, schema)
        table = batches.combine_chunks()  # once here, not each time that a column is read

        check_row_count(table, path, shard.rows)
        check_pairs(table, path, self._limits)
        self._check_fingerprint(batches, shard, path)
        return table

    def open_shard(self, number: int) -> IO[bytes]:
        """Open the file of one shard. A local one's bytes are not checked. A remote one is copied to the cache first.

        Raises StorageError if it cannot be reached, and DataError if a remote shard's bytes are not the manifest's.
        """
        shard = self.manifest.shards[number]
        if self._cache is None:
            return storage.open_input(storage.join(self.folder, shard.path))
        return BytesIO(self._cache.read(shard))

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


def release_when_read(reading: Future[ReadBlock]) -> None:
    """Release a block that is no longer needed: now, or as soon as it has been read."""

    def release(done: Future[ReadBlock]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        lease = done.result().lease
        if lease is not None:
            lease.release()

    reading.cancel()
    reading.add_done_callback(release)
