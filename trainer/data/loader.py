"""Streams one rank's micro-batches: finds the rows of global batch k, takes this rank's share, and masks them.

The rows of global batch k follow from its number (mixture.py, sampler.py), so a run resumes by asking for the next one.
The world size decides which rank gets which rows (rank_share.py), and nothing else: masks are drawn from each row's own
key.

Shape suffixes: B rows, K masked tokens.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from schemas.masking import Masking, Masks, RowsToMask, draw_masks
from schemas.ragged import offsets_of
from schemas.randomness import U64
from schemas.vocabulary import Vocabulary
from trainer.data.collate import pack, pack_causal
from trainer.data.mixture import Source, SourceRows, rows_between
from trainer.data.padding import BatchShape, pad_to_shape
from trainer.data.pair_rows import PairRows, join_masks, join_rows
from trainer.data.permuted import pack_permuted
from trainer.data.prefetch import DeviceFeed, SentBatches
from trainer.data.rank_share import RankShare, assign_rows
from trainer.data.replacement_draws import with_replacement_draws
from trainer.data.sop import redraw_order
from trainer.models.batch import PackedBatch

Ints = NDArray[np.int64]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class MaskingSchedule:
    """Where masks come from: drawn when rows are read, or `stored` with the rows, a different variant each epoch.

    The masked share of drawn masks changes linearly from masking.prob at step 0 to `final_prob` at `last_step`, and
    then stays there; with None it is constant.

    permuted: nothing is masked; tokens are predicted in a random order, and rows end with [CLS] (permuted.py).
    """

    masking: Masking
    stored: bool = False
    final_prob: float | None = None
    last_step: int = 1
    permuted: bool = False

    def at(self, step: int) -> Masking:
        """Return how masks are drawn at a step."""
        if self.final_prob is None:
            return self.masking

        progress = min(step / self.last_step, 1.0)
        prob = self.masking.prob + progress * (self.final_prob - self.masking.prob)
        return replace(self.masking, prob=prob)


@dataclass(frozen=True)
class BatchFormat:
    """The form of a stream's micro-batches: they are on `device`, and padded to `shape` unless that is None.

    causal: they predict each next token instead of masked ones. has_draws: they carry draws_K, the random numbers from
    which replacements of masked tokens are chosen.
    """

    shape: BatchShape | None = None
    device: torch.device = CPU
    causal: bool = False
    has_draws: bool = False


UNPADDED_ON_CPU = BatchFormat()


@dataclass(frozen=True)
class ChosenRows:
    """The rows that one micro-batch takes from one source's part of a global batch.

    rows_B: numbers of the rows within the part's block. keys_B: their random keys.
    """

    part: SourceRows
    rows_B: Ints
    keys_B: U64


class Stream:
    """The batches of one rank by step. Any step can be requested; the next one is prepared in the background.

    Steps count from 0 at the beginning of the phase, where batches may be smaller (ramp.py).
    """

    def __init__(
        self,
        sources: list[Source],
        share: RankShare,
        schedule: MaskingSchedule,
        seed: int,
        batch_format: BatchFormat = UNPADDED_ON_CPU,
    ):
        self._sources = sources
        self._share = share
        self._schedule = schedule
        self._seed = seed
        self._shape = batch_format.shape
        self._causal = batch_format.causal
        self._has_draws = batch_format.has_draws
        self._vocabulary: Vocabulary = sources[0].folder.vocabulary
        self._expect_batches()

        self._feed = DeviceFeed(batch_format.device)
        self._prepared: dict[int, Future[SentBatches]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stream", initializer=self._feed.adopt_thread)

        self.stalled_seconds = 0.0
        """Seconds that callers have waited for data."""

    def _expect_batches(self) -> None:
        """Tell each folder how many of its blocks a global batch touches, so that it reads that many ahead."""
        total_weight = sum(source.weight for source in self._sources)
        for source in self._sources:
            places = -(-self._share.size * source.weight // total_weight)
            source.folder.expect_blocks(source.order.blocks_touched(places))

    def batch(self, step: int) -> list[PackedBatch]:
        """Return this rank's micro-batches of global batch `step`, counted from 0. Raises what reading them raised."""
        future = self._prepared.pop(step, None)
        if future is None:
            future = self._thread.submit(self._prepare, step)

        # Prepare the next step while the caller computes this one; forget any other that was prepared.
        self._prepared = {step + 1: self._thread.submit(self._prepare, step + 1)}

        started = perf_counter()
        try:
            sent = future.result()
        finally:
            self.stalled_seconds += perf_counter() - started
        return self._feed.receive(sent)

    def close(self) -> None:
        """Stop the background threads, and close the folders."""
        self._thread.shutdown(cancel_futures=True)
        for source in self._sources:
            source.folder.close()

    def _prepare(self, step: int) -> SentBatches:
        bounds = self.bounds_of(step)
        return self._feed.send(self.micro_batches_at(bounds, step))

    def bounds_of(self, step: int) -> list[tuple[int, int]]:
        """Return each source's part of global batch `step`, as `micro_batches_at` takes it."""
        return rows_between(self._sources, self._share.first_place(step), self._share.first_place(step + 1))

    def micro_batches_at(self, bounds: list[tuple[int, int]], step: int) -> list[PackedBatch]:
        """Return this rank's micro-batches of some rows, masked as at `step`, on the CPU.

        bounds: for each source (first, last), which stands for the places `first` to `last` - 1 of its order.
        """
        # One part for each block of each source that the rows touch: usually one, two at a block's edge.
        parts = []
        for source, (first, last) in zip(self._sources, bounds, strict=True):
            for row_range in source.order.row_ranges(first, last):
                if len(row_range.rows_N) > 0:
                    parts.append(SourceRows.of(source, row_range, self._seed))

        # Number the rows of all parts end to end, and keep those that are assigned to this rank.
        lengths_B = np.concatenate([part.lengths() for part in parts])
        assigned = assign_rows(lengths_B, self._share.at(step))
        return [self._micro_batch(parts, row_numbers, step) for row_numbers in assigned]

    def _micro_batch(self, parts: list[SourceRows], row_numbers: Ints, step: int) -> PackedBatch:
        """Return one micro-batch. `row_numbers` ascend and count over the rows of all parts, end to end."""
        chosen = _choose_rows(parts, row_numbers)
        rows = join_rows([self._read(one) for one in chosen])
        batch = self._pack(chosen, rows, step)
        if self._shape is None:
            return batch
        return pad_to_shape(batch, self._shape, self._vocabulary.special_id("pad"))

    def _read(self, chosen: ChosenRows) -> PairRows:
        """Return the chosen rows. SOP's order is redrawn unless masks are stored, whose positions it would move."""
        rows = chosen.part.block.take(chosen.rows_B)
        if chosen.part.folder.objective != "sop" or self._schedule.stored:
            return rows
        return redraw_order(rows, chosen.keys_B, self._vocabulary.separators)

    def _pack(self, chosen: list[ChosenRows], rows: PairRows, step: int) -> PackedBatch:
        """Return the rows as a batch with the labels of the stream's objective."""
        if self._causal:
            return pack_causal(rows)

        keys_B = np.concatenate([one.keys_B for one in chosen])
        if self._schedule.permuted:
            return pack_permuted(rows, keys_B, self._schedule.at(step), self._vocabulary)

        masks = self._masks(chosen, rows, step)
        batch = replace(pack(rows, masks), mask_id=self._vocabulary.special_id("mask"))
        return with_replacement_draws(batch, rows, masks, keys_B) if self._has_draws else batch

    def _masks(self, chosen: list[ChosenRows], rows: PairRows, step: int) -> Masks:
        return self._stored_masks(chosen, rows) if self._schedule.stored else self._drawn_masks(chosen, rows, step)

    def _drawn_masks(self, chosen: list[ChosenRows], rows: PairRows, step: int) -> Masks:
        keys_B = np.concatenate([one.keys_B for one in chosen])
        return draw_masks(
            RowsToMask(rows.ids_T, rows.offsets_B1, rows.word_starts_T, keys_B),
            self._schedule.at(step),
            self._vocabulary,
        )

    def _stored_masks(self, chosen: list[ChosenRows], rows: PairRows) -> Masks:
        """Return the masks that the rows carry: in epoch e, variant number e modulo the number of stored variants."""
        masks = join_masks([one.part.block.take_masks(one.rows_B, one.part.row_range.epoch) for one in chosen])

        # Stored positions count from the row's first token, those of a batch from the batch's.
        counts_B = np.diff(masks.offsets_B1)
        positions_K = masks.positions_K + np.repeat(rows.offsets_B1[:-1], counts_B)
        return replace(masks, positions_K=positions_K)


def _choose_rows(parts: list[SourceRows], row_numbers: Ints) -> list[ChosenRows]:
    """Find the parts to which rows belong. `row_numbers` ascend and count over the rows of all parts, end to end."""
    # The rows of part i are numbered from part_starts[i] on, and row_numbers[cuts[i] : cuts[i + 1]] are among them.
    rows_per_part = [len(part.row_range.rows_N) for part in parts]
    part_starts = offsets_of(np.array(rows_per_part))
    cuts = np.searchsorted(row_numbers, part_starts)

    chosen = []
    for i, part in enumerate(parts):
        numbers_in_part = row_numbers[cuts[i] : cuts[i + 1]] - part_starts[i]
        rows_B = part.row_range.rows_N[numbers_in_part]
        if len(rows_B):
            chosen.append(ChosenRows(part, rows_B, part.keys(rows_B)))
    return chosen
