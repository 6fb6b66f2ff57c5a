"""Global batch k, cut into the micro-batches of one rank and masked.

The rows of a global batch are dealt over all micro-batches by length, like cards back and forth, so that every rank
computes nearly the same number of tokens. Which rank gets which rows is the only thing that the world size decides.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from schemas.masking import Masking, Masks, draw_masks
from schemas.randomness import U64, key, numbers
from trainer.models.packing import PackedBatch
from trainer.stream.order import Order
from trainer.stream.reading import PairFolder, Rows


@dataclass(frozen=True)
class Share:
    """One rank's part of every global batch: `micro_batches` micro-batches of `micro_batch` rows."""

    rank: int
    world_size: int
    micro_batch: int
    micro_batches: int

    @property
    def global_batch(self) -> int:
        return self.world_size * self.micro_batches * self.micro_batch


class Stream:
    """The batches of one rank by step. Any step can be asked for; the next one is made ready in the background."""

    def __init__(self, folder: PairFolder, share: Share, masking: Masking, seed: int):
        self._folder, self._share, self._masking, self._seed = folder, share, masking, seed
        rows = [shard.rows for shard in folder.manifest.shards]
        self._order = Order(rows, folder.manifest.fingerprint, seed)
        self._ahead: dict[int, Future[list[PackedBatch]]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stream")
        self.stalled = 0.0  # seconds that callers have waited for data

    def batch(self, step: int) -> list[PackedBatch]:
        """This rank's micro-batches of global batch `step`, the first step being 0."""
        ready = self._ahead.pop(step, None) or self._thread.submit(self._make, step)
        self._ahead = {step + 1: self._thread.submit(self._make, step + 1)}
        started = perf_counter()
        try:
            return ready.result()
        finally:
            self.stalled += perf_counter() - started

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _make(self, step: int) -> list[PackedBatch]:
        size = self._share.global_batch
        place_B3 = self._order.rows_at(step * size, size)
        lengths_B = self._lengths(place_B3)
        return [self._micro_batch(place_B3[mine]) for mine in deal(lengths_B, self._share)]

    def _lengths(self, place_B3: NDArray[np.int64]) -> NDArray[np.int64]:
        lengths_B = np.empty(len(place_B3), dtype=np.int64)
        for shard in np.unique(place_B3[:, 1]):
            here = place_B3[:, 1] == shard
            lengths_B[here] = self._folder.shard(int(shard)).lengths(place_B3[here, 2])
        return lengths_B

    def _micro_batch(self, place_B3: NDArray[np.int64]) -> PackedBatch:
        rows = self._folder.rows(place_B3[:, 1:])
        masks = draw_masks(
            rows.ids_T, rows.offsets_B1, rows.word_starts_T, self.keys(place_B3), self._masking, self._folder.vocabulary
        )
        return pack(rows, masks)

    def keys(self, place_B3: NDArray[np.int64]) -> U64:
        """(B,) each row's key for its masks: from the seed, the epoch and the row's own identity."""
        keys_B = np.empty(len(place_B3), dtype=np.uint64)
        for epoch, shard in np.unique(place_B3[:, :2], axis=0):
            here = (place_B3[:, 0] == epoch) & (place_B3[:, 1] == shard)
            fingerprint = self._folder.manifest.shards[shard].fingerprint
            keys_B[here] = numbers(np.uint64(key(self._seed, "mask", int(epoch), fingerprint)), place_B3[here, 2])
        return keys_B


def deal(lengths_B: NDArray[np.int64], share: Share) -> list[NDArray[np.int64]]:
    """The rows of one rank's micro-batches: sorted by length, dealt to all micro-batches back and forth."""
    hands = share.world_size * share.micro_batches
    rounds = np.argsort(-lengths_B, kind="stable").reshape(share.micro_batch, hands)
    rounds[1::2] = rounds[1::2, ::-1]
    return [np.sort(rounds[:, hand]) for hand in range(share.rank, hands, share.world_size)]


def pack(rows: Rows, masks: Masks) -> PackedBatch:
    """Rows and their masks as one packed micro-batch."""
    lengths_B = np.diff(rows.offsets_B1)
    sequence_T = np.repeat(np.arange(len(lengths_B)), lengths_B)
    positions_T = np.arange(len(rows.ids_T)) - rows.offsets_B1[sequence_T]
    seen_T = rows.ids_T.astype(np.int64)
    labels_K = seen_T[masks.positions_K]
    seen_T[masks.positions_K] = masks.seen_K
    return PackedBatch(
        ids_T=torch.from_numpy(seen_T),
        segments_T=torch.from_numpy((positions_T >= rows.segment_b_B[sequence_T]).astype(np.int64)),
        positions_T=torch.from_numpy(positions_T),
        sequence_T=torch.from_numpy(sequence_T),
        first_S=torch.from_numpy(rows.offsets_B1[:-1].copy()),
        longest=int(lengths_B.max()),
        masked_K=torch.from_numpy(masks.positions_K),
        labels_K=torch.from_numpy(labels_K),
        pair_labels_S=torch.from_numpy(rows.labels_B),
    )
