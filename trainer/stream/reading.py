"""Rows out of pair shards. A shard is checked against its manifest when it is opened, before any row is trained on."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas import shards, storage
from schemas.errors import DataError
from schemas.manifest import Manifest, read_manifest, read_shard_bytes
from schemas.ragged import offsets_of, take_ranges
from schemas.vocabulary import FOLDER, Vocabulary, read_vocabulary
from trainer.stream.order import BLOCK_SHARDS

NO_LABEL = -100


@dataclass(frozen=True)
class Rows:
    """B rows end to end in T tokens: row i is offsets_B1[i] : offsets_B1[i + 1]."""

    ids_T: NDArray[Any]
    word_starts_T: NDArray[np.bool_]
    offsets_B1: NDArray[np.int64]
    segment_b_B: NDArray[np.int64]
    labels_B: NDArray[np.int64]

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens in each of the named rows."""
        return self.offsets_B1[rows + 1] - self.offsets_B1[rows]

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """The named rows, in the named order."""
        starts, lengths = self.offsets_B1[rows], self.lengths(rows)
        return Rows(
            take_ranges(self.ids_T, starts, lengths),
            take_ranges(self.word_starts_T, starts, lengths),
            offsets_of(lengths),
            self.segment_b_B[rows],
            self.labels_B[rows],
        )


def join_rows(parts: list[Rows]) -> Rows:
    """Several lots of rows as one, in order."""
    return Rows(
        np.concatenate([part.ids_T for part in parts]),
        np.concatenate([part.word_starts_T for part in parts]),
        offsets_of(np.concatenate([np.diff(part.offsets_B1) for part in parts])),
        np.concatenate([part.segment_b_B for part in parts]),
        np.concatenate([part.labels_B for part in parts]),
    )


class PairFolder:
    """A finished folder of pairs: its manifest, its vocabulary, and its shards as they are needed."""

    def __init__(self, folder: str):
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder, "pairs")
        self.vocabulary: Vocabulary = read_vocabulary(storage.join(folder, FOLDER))
        stated = self.manifest.options.get("vocabulary")
        if stated != self.vocabulary.fingerprint:
            raise DataError(
                f"{folder}/{FOLDER} is vocabulary {self.vocabulary.fingerprint}, but the pairs are of {stated}. "
                "Rebuild the pairs or put their own vocabulary back."
            )
        self._open: OrderedDict[int, Rows] = OrderedDict()

    @property
    def max_length(self) -> int:
        return int(self.manifest.options["max_length"])

    def shard(self, index: int) -> Rows:
        """All rows of a shard. The last two blocks' worth of shards stay open."""
        if index in self._open:
            self._open.move_to_end(index)
        else:
            self._open[index] = self._read(index)
        while len(self._open) > 2 * BLOCK_SHARDS:
            self._open.popitem(last=False)
        return self._open[index]

    def _read(self, index: int) -> Rows:
        shard = self.manifest.shards[index]
        path = storage.join(self.folder, shard.path)
        data = read_shard_bytes(self.folder, shard)
        stored = bool(self.manifest.options.get("static_masks"))
        table = shards.decode_table(data, path, shards.pairs_schema(self.vocabulary.size, stored))
        shards.check_pairs(table, path, self.vocabulary.size)
        ids, starts = table["input_ids"].combine_chunks(), table["word_starts"].combine_chunks()
        return Rows(
            ids.values.to_numpy(),
            starts.values.to_numpy(zero_copy_only=False),
            ids.offsets.to_numpy().astype(np.int64),
            table["segment_b_start"].to_numpy().astype(np.int64),
            table["pair_label"].combine_chunks().fill_null(NO_LABEL).to_numpy().astype(np.int64),
        )

    def rows(self, shard_row_B2: NDArray[np.int64]) -> Rows:
        """Rows by (shard, row), in the order named."""
        shards_B = shard_row_B2[:, 0]
        by_shard = np.argsort(shards_B, kind="stable")
        parts = [
            self.shard(int(s)).take(shard_row_B2[by_shard][shards_B[by_shard] == s, 1]) for s in np.unique(shards_B)
        ]
        back = np.empty(len(by_shard), dtype=np.int64)
        back[by_shard] = np.arange(len(by_shard))
        return join_rows(parts).take(back)
