"""Streams one rank's micro-batches: finds the rows of global batch k, takes this rank's share, and masks them.

The rows of global batch k follow from its number (order.py), so a run resumes by asking for the next one. The world
size decides which rank gets which rows (share.py), and nothing else: masks are drawn from each row's own key.

Batches are copied to a GPU before they are needed, from pinned memory, while the GPU computes. The thread that prepares
a step also starts its copies, on a CUDA stream used for nothing else. The thread that trains only makes its own stream
wait for them. At any time one step is in use and the next one is being copied.

Shape suffixes: B rows, K masked tokens.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch

from schemas.errors import ClozelineError, DataError
from schemas.masking import Masking, Masks, RowsToMask, draw_masks
from schemas.ragged import Ints, offsets_of
from schemas.randomness import U64
from schemas.terminal import counted
from schemas.vocabulary import Vocabulary
from trainer.config.schema import Recipe
from trainer.data.batches import (
    BatchShape,
    pack,
    pack_causal,
    pack_permuted,
    pad_to_shape,
    shape_of,
    with_replacement_draws,
)
from trainer.data.folder import PairFolder
from trainer.data.order import Source, SourceRows, build_sources, rows_between
from trainer.data.rows import PairRows, join_masks, join_rows, redraw_order
from trainer.data.share import RankShare, assign_rows
from trainer.models.batch import PackedBatch
from trainer.models.families import FAMILIES

CPU = torch.device("cpu")


@dataclass(frozen=True)
class MaskingSchedule:
    """Where masks come from: drawn when rows are read, or `stored` with the rows, a different variant each epoch.

    The masked share of drawn masks changes linearly from masking.prob in batch 0 to `final_prob` in batch
    `last_number`, and then stays there; with None it is constant.

    permuted: nothing is masked; tokens are predicted in a random order, and rows end with [CLS] (`pack_permuted`).
    """

    masking: Masking
    stored: bool = False
    final_prob: float | None = None
    last_number: int = 1
    permuted: bool = False

    def at(self, number: int) -> Masking:
        """Return how masks are drawn in global batch `number`."""
        if self.final_prob is None:
            return self.masking

        progress = min(number / self.last_number, 1.0)
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


@dataclass(frozen=True)
class ChosenRows:
    """The rows that one micro-batch takes from one source's part of a global batch.

    rows_B: numbers of the rows within the part's block. keys_B: their random keys.
    """

    part: SourceRows
    rows_B: Ints
    keys_B: U64


SentBatches = tuple[list[PackedBatch], torch.Event | None]
"""Batches whose copies have been started, and the CUDA event after the last copy: None on a CPU, which copies none."""


class DeviceFeed:
    """Copies micro-batches to one device."""

    def __init__(self, device: torch.device):
        self._device = device
        self._copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def adopt_thread(self) -> None:
        """Make this device the current one of the calling thread. Call it once in a thread that calls `send`.

        torch.cuda.stream ends by setting the thread's previous device again. In a new thread that is GPU 0, where every
        rank of the node would then have a CUDA context: half a gigabyte each.
        """
        if self._copy_stream is not None:
            torch.cuda.set_device(self._device)

    def send(self, batches: list[PackedBatch]) -> SentBatches:
        """Start the copies and return without waiting. torch keeps the pinned memory until they have ended."""
        if self._copy_stream is None:
            return batches, None

        with torch.cuda.stream(self._copy_stream):
            copies = [batch.pinned().to(self._device) for batch in batches]
            return copies, self._copy_stream.record_event()

    def receive(self, sent: SentBatches) -> list[PackedBatch]:
        """Return the batches for use on the caller's current CUDA stream, which waits for them; the caller does not."""
        batches, arrival = sent
        if arrival is None:
            return batches

        current_stream = torch.cuda.current_stream(self._device)
        current_stream.wait_event(arrival)

        # The memory was allocated on the copy stream. Tell torch's allocator that another stream uses it, too, so that
        # it is not reused while that stream still computes.
        for batch in batches:
            for tensor in batch.tensors().values():
                tensor.record_stream(current_stream)
        return batches


class Stream:
    """The batches of one rank by number. Any can be requested; the next one is prepared in the background.

    Global batches count from 0 at the beginning of the phase, where they may be smaller (share.py). They are not the
    run's steps: a phase may begin later, and a rollback leaves batches out (`Loop.compute_step`).
    """

    def __init__(
        self,
        sources: list[Source],
        share: RankShare,
        schedule: MaskingSchedule,
        seed: int,
        batch_format: BatchFormat | None = None,
    ):
        """batch_format: by default unpadded masked batches on the CPU."""
        self._sources = sources
        self._share = share
        self._schedule = schedule
        self._seed = seed
        self._format = batch_format or BatchFormat()
        self._vocabulary: Vocabulary = sources[0].folder.vocabulary
        self._expect_batches()

        self._feed = DeviceFeed(self._format.device)
        self._peeked: dict[int, Future[list[PackedBatch]]] = {}
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

    def peek(self, number: int) -> list[PackedBatch]:
        """Return the micro-batches that `batch` will return for `number`; an empty list if they cannot be read.

        The error is raised by `batch` in that batch's turn, so the step before it can complete and be saved.
        """
        read: Future[list[PackedBatch]] = Future()
        try:
            read.set_result(self.batch(number))
        except ClozelineError as error:
            read.set_exception(error)
        self._peeked = {number: read}
        return [] if read.exception() is not None else read.result()

    def batch(self, number: int) -> list[PackedBatch]:
        """Return this rank's micro-batches of global batch `number`. Raises what reading them raised."""
        peeked = self._peeked.get(number)
        self._peeked = {}
        if peeked is not None:
            return peeked.result()

        future = self._prepared.pop(number, None)
        if future is None:
            future = self._thread.submit(self._prepare, number)

        # Prepare the next batch while the caller computes this one; forget any other that was prepared.
        self._prepared = {number + 1: self._thread.submit(self._prepare, number + 1)}

        started = perf_counter()
        try:
            sent = future.result()
        finally:
            self.stalled_seconds += perf_counter() - started
        return self._feed.receive(sent)

    def close(self) -> None:
        """Stop the background threads, and close the folders."""
        # The folders first, which ends the wait of a batch that is being prepared for a store that does not answer.
        for source in self._sources:
            source.folder.close()
        self._thread.shutdown(cancel_futures=True)

    def _prepare(self, number: int) -> SentBatches:
        bounds = self.bounds_of(number)
        return self._feed.send(self.micro_batches_at(bounds, number))

    def bounds_of(self, number: int) -> list[tuple[int, int]]:
        """Return each source's part of global batch `number`, as `micro_batches_at` takes it."""
        return rows_between(self._sources, self._share.first_place(number), self._share.first_place(number + 1))

    def micro_batches_at(self, bounds: list[tuple[int, int]], number: int) -> list[PackedBatch]:
        """Return this rank's micro-batches of some rows, masked as in global batch `number`, on the CPU.

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
        assigned = assign_rows(lengths_B, self._share.at(number))
        return [self._micro_batch(parts, row_numbers, number) for row_numbers in assigned]

    def _micro_batch(self, parts: list[SourceRows], row_numbers: Ints, number: int) -> PackedBatch:
        """Return one micro-batch. `row_numbers` ascend and count over the rows of all parts, end to end."""
        chosen = _choose_rows(parts, row_numbers)
        rows = join_rows([self._read(one) for one in chosen])
        batch = self._pack(chosen, rows, number)
        if self._format.shape is None:
            return batch
        return pad_to_shape(batch, self._format.shape, self._vocabulary.special_id("pad"))

    def _read(self, chosen: ChosenRows) -> PairRows:
        """Return the chosen rows. SOP's order is redrawn unless masks are stored, whose positions it would move."""
        rows = chosen.part.block.take(chosen.rows_B)
        if chosen.part.folder.objective != "sop" or self._schedule.stored:
            return rows
        return redraw_order(rows, chosen.keys_B, self._vocabulary.separators)

    def _pack(self, chosen: list[ChosenRows], rows: PairRows, number: int) -> PackedBatch:
        if self._format.causal:
            return pack_causal(rows)

        keys_B = np.concatenate([one.keys_B for one in chosen])
        if self._schedule.permuted:
            return pack_permuted(rows, keys_B, self._schedule.at(number), self._vocabulary)

        masks = self._masks(chosen, rows, keys_B, number)
        batch = replace(pack(rows, masks), mask_id=self._vocabulary.special_id("mask"))
        return with_replacement_draws(batch, rows, masks, keys_B) if self._format.has_draws else batch

    def _masks(self, chosen: list[ChosenRows], rows: PairRows, keys_B: U64, number: int) -> Masks:
        """Return the masks of a micro-batch's rows: drawn from their keys, or those that the rows carry.

        Of stored masks, epoch e takes variant number e modulo the number of variants.
        """
        if not self._schedule.stored:
            to_mask = RowsToMask(rows.ids_T, rows.offsets_B1, rows.word_starts_T, keys_B)
            return draw_masks(to_mask, self._schedule.at(number), self._vocabulary)

        masks = join_masks([one.part.block.take_masks(one.rows_B, one.part.row_range.epoch) for one in chosen])

        # Stored positions count from the row's first token, those of a batch from the batch's.
        first_tokens_K = np.repeat(rows.offsets_B1[:-1], np.diff(masks.offsets_B1))
        return replace(masks, positions_K=masks.positions_K + first_tokens_K)


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


# The stream of a recipe


def build_stream(recipe: Recipe, folders: list[PairFolder], share: RankShare, device: torch.device = CPU) -> Stream:
    """Return the stream of one rank, with its batches on `device`.

    Raises UsageError or DataError if folders, weights and batch do not fit together.
    """
    by_tokens = recipe.batch.global_tokens is not None
    sources = build_sources(folders, recipe.data.weights, recipe.run.seed, by_tokens)
    check_size(folders, recipe, share)

    section = recipe.masking
    traits = FAMILIES[recipe.model.family]
    masking = Masking(section.kind, section.prob, section.max_predictions, shown_shares(section.replacement))
    schedule = MaskingSchedule(
        masking, section.stored, section.final_prob, recipe.run.max_steps, permuted=traits.two_streams
    )
    is_causal = recipe.objective.kind == "clm"
    batch_format = BatchFormat(shape_of(folders, recipe, share), device, is_causal, needs_draws(recipe))
    return Stream(sources, share, schedule, recipe.run.seed, batch_format)


def shown_shares(replacement: str) -> tuple[float, float]:
    """Return masking.replacement as `Masking.shown`: the shares of masked tokens shown as [MASK] and unchanged.

    Example: `shown_shares("80/10/10")` -> `(0.8, 0.1)`.
    """
    masked, kept, _random = (int(percent) / 100 for percent in replacement.split("/"))
    return masked, kept


def needs_draws(recipe: Recipe) -> bool:
    """Return whether the model draws replacements of masked tokens."""
    return FAMILIES[recipe.model.family].replaced_tokens


def check_size(folders: list[PairFolder], recipe: Recipe, share: RankShare) -> None:
    """Raise DataError if all folders together do not fill one global batch, so rows would repeat within a step."""
    unit = "row" if recipe.batch.global_tokens is None else "token"
    available = sum(folder.manifest.totals[f"{unit}s"] for folder in folders)
    if available < share.size:
        raise DataError(
            f"{', '.join(folder.folder for folder in folders)}: {counted(available, unit)}, fewer than one global "
            f"batch of {share.size:,}. Use more text, --dupe_factor, or a smaller batch."
        )
