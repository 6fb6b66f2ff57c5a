"""Reads the rows of a folder of pairs, a block of shards at a time.

No row is used before its shard has the size and the hash that the manifest states, opens as Arrow, validates, and holds
only values in range. Every shard is checked each time it is decoded, once an epoch: this takes 5 nanoseconds a token
and also finds a shard that was replaced during a run.

order.py decides which blocks global batch k needs. While a batch is made from one block, a background
thread reads the next ones. The ranks of one node together decode each shard once (shared.py), and download it once
(remote.py).

Shape suffix: L lengths, from 0 on.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from schemas import shards, storage
from schemas.errors import DataError
from schemas.manifest import Manifest, read_manifest
from schemas.ragged import Ints
from schemas.row_checks import PairLimits, check_pairs, check_row_count, read_pairs_vocabulary
from schemas.shards import read_shard_bytes
from schemas.vocabulary import Vocabulary, read_vocabulary
from trainer.config.schema import Recipe
from trainer.data.fit import LABELED, check_rows
from trainer.data.remote import RemoteShards
from trainer.data.rows import Block, ShardRows, rows_from_table, stored_masks_from_table
from trainer.data.shared import open_shared
from trainer.logs import logger

BYTES_PER_GIGABYTE = 10**9


class PairFolder:
    """A finished folder of pairs: its manifest, its vocabulary, and the rows of its shards."""

    def __init__(
        self, folder: str, cache: str = "~/.cache/clozeline", cache_gigabytes: float = 50, run: str | None = None
    ):
        """Open a folder. Shards of a remote one (s3://, gs://) are copied to the folder `cache`, up to this size.

        run: any name. Ranks of a node that pass the same one share what they read; with None, nothing is shared.
        Raises DataError if the folder is not finished, or its vocabulary is not the one its manifest names.
        """
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder, "pairs")
        self.vocabulary: Vocabulary = read_pairs_vocabulary(folder, self.manifest)
        self._limits = PairLimits.of(self.manifest, self.vocabulary)

        # The sha256 of each shard whose rows were found to have the fingerprint that the manifest states.
        self._verified_shards: set[str] = set()

        self._remote: RemoteShards | None = None
        if not storage.is_local(folder):
            max_bytes = int(cache_gigabytes * BYTES_PER_GIGABYTE)
            self._remote = RemoteShards(folder, self.manifest.shards, cache, max_bytes)

        self.blocks_ahead = 1
        """How many blocks are read ahead: as many as a global batch touches."""

        # Folders that hold other rows, or rows that are checked differently, share nothing.
        identity = json.dumps([run, folder, self.manifest.fingerprint, self.manifest.options], sort_keys=True)
        self._shared = None if run is None else open_shared(identity)
        self._blocks: OrderedDict[tuple[int, ...], Future[Block]] = OrderedDict()
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
        return self._blocks[shard_numbers].result()

    def expect_blocks(self, per_batch: int) -> None:
        """Prepare for batches that touch up to `per_batch` blocks: read that many ahead, and keep them until used."""
        self.blocks_ahead = max(self.blocks_ahead, per_batch)
        if self._shared is not None:
            # One rank may read ahead for the next step while another one is a step behind, so they differ by two steps.
            # Three steps touch at most one block more than three times the number that one step touches.
            self._shared.kept_blocks = self.blocks_ahead + (3 * self.blocks_ahead + 1)

    def read_ahead(self, blocks: list[tuple[int, ...]]) -> None:
        """Start reading these blocks in the background, in this order, unless they are in memory or being read."""
        for shard_numbers in blocks:
            if shard_numbers not in self._blocks:
                self._blocks[shard_numbers] = self._thread.submit(self.decode_block, shard_numbers)
            self._blocks.move_to_end(shard_numbers)

        # Those that are read ahead, the one in use, and one before it.
        while len(self._blocks) > self.blocks_ahead + 2:
            _, dropped = self._blocks.popitem(last=False)
            dropped.cancel()

    def close(self) -> None:
        """Stop the background threads, and release what is shared with other ranks. May be called again."""
        if self._remote is not None:
            self._remote.close()
        if self._shared is not None:
            self._shared.stop_waiting()
        self._thread.shutdown(cancel_futures=True)

        self._blocks.clear()
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def decode_block(self, shard_numbers: tuple[int, ...]) -> Block:
        """Read these shards in the calling thread, or map those that other ranks of the node have decoded.

        Raises DataError as `read_shard` does.
        """
        if self._shared is None:
            return Block([self._rows_of_shard(number) for number in shard_numbers])

        keys = [self.manifest.shards[number].sha256 for number in shard_numbers]
        return Block(self._shared.read(keys, lambda place: self._rows_of_shard(shard_numbers[place])))

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

        data = read_shard_bytes(self.folder, shard) if self._remote is None else self._remote.read(shard)
        batches = shards.decode_table(data, path, schema)
        table = batches.combine_chunks()  # once here, not each time that a column is read

        check_row_count(table, path, shard.rows)
        check_pairs(table, path, self._limits)
        if shard.sha256 not in self._verified_shards:  # equal bytes hold equal rows
            shards.check_fingerprint(batches, path, shard.fingerprint)
            self._verified_shards.add(shard.sha256)
        return table


def rows_by_length(manifests: Iterable[Manifest]) -> Ints:
    """Return how many rows of all these pairs have 0 tokens, 1 token, 2 tokens, and so on."""
    histograms = [manifest.statistics["lengths"] for manifest in manifests]
    counts_L = np.zeros(max(map(len, histograms)), dtype=np.int64)
    for histogram in histograms:
        counts_L[: len(histogram)] += histogram
    return counts_L


def moments(counts_L: Ints) -> tuple[int, int, int]:
    """Return the number of rows in a histogram of lengths, the sum of their lengths, and that of the squares."""
    lengths_L = np.arange(len(counts_L))
    return int(counts_L.sum()), int(counts_L @ lengths_L), int(counts_L @ lengths_L**2)


def mean_seen(manifests: Iterable[Manifest]) -> float:
    """Return how many tokens a token attends to on average: each of a row's n tokens attends to n."""
    _, tokens, squares = moments(rows_by_length(manifests))
    return squares / tokens


# The folders of a recipe


def open_folders(recipe: Recipe) -> list[PairFolder]:
    """Open the folders of data.pairs, and check them against the recipe's vocabulary and model.

    Raises DataError if a folder does not fit.
    """
    folders = [open_folder(recipe, folder) for folder in recipe.data.folders]
    if recipe.data.vocab is not None:
        check_data_vocabulary(folders[0], recipe.data.vocab)
    for folder in folders:
        check_rows(recipe, folder.manifest, folder.folder)
    warn_of_mixed_labels(folders)
    return folders


def warn_of_mixed_labels(folders: list[PairFolder]) -> None:
    """Log a warning if the pair labels of two folders mean different things."""
    objectives = {folder.manifest.options["objective"]: folder.folder for folder in folders}
    if set(objectives) >= LABELED:
        logger.warning(
            "%s has pairs for nsp and %s for sop: one head learns that label 1 means a random second segment and that "
            "it means swapped ones. Build both with the same --objective, unless that is meant.",
            objectives["nsp"],
            objectives["sop"],
        )


def open_folder(recipe: Recipe, folder: str) -> PairFolder:
    """Open a folder of pairs as a run of this recipe reads it: through the recipe's cache, and once per node."""
    return PairFolder(folder, recipe.data.cache, recipe.data.cache_gigabytes, run=recipe.run.output)


def check_data_vocabulary(folder: PairFolder, path: str) -> None:
    """Raise DataError if the folder was built with another vocabulary than the one at `path`."""
    expected = read_vocabulary(path)
    if expected.fingerprint != folder.vocabulary.fingerprint:
        raise DataError(
            f"{folder.folder} was built with vocabulary {folder.vocabulary.fingerprint} ({folder.vocabulary.size} "
            f"tokens), but data.vocab {path} is {expected.fingerprint} ({expected.size} tokens). "
            "Rebuild the pairs with it, or remove data.vocab."
        )
