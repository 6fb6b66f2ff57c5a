"""Global batch k, cut into the micro-batches of one rank and masked.

The rows of a global batch are dealt over all micro-batches by length, like cards back and forth, so that every rank
computes nearly the same number of tokens. Which rank gets which rows is the only thing that the world size decides.

Letters: B rows, T tokens, K masked places.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from schemas.errors import DataError
from schemas.masking import Masking, Masks, draw_masks
from schemas.ragged import offsets_of
from schemas.randomness import U64
from schemas.vocabulary import Vocabulary
from trainer.data.dataset import NO_LABEL, PairRows, join_rows
from trainer.data.mixture import Source, SourceRows, rows_of_step
from trainer.data.padding import BatchShape, pad_to_shape
from trainer.data.prefetch import DeviceFeed, SentBatches
from trainer.data.sop import redraw_order
from trainer.models.batch import PackedBatch

Ints = NDArray[np.int64]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class RankShare:
    """One rank's part of every global batch: `micro_batches` micro-batches of all the batch's `size` rows or tokens."""

    rank: int
    world_size: int
    micro_batches: int
    size: int

    @property
    def micro_batches_per_step(self) -> int:
        """Micro-batches of a global batch over all ranks."""
        return self.world_size * self.micro_batches


@dataclass(frozen=True)
class MaskingSchedule:
    """How masks come about: drawn as rows are read, or `stored` with them, another variant each epoch.

    Drawn masks go from masking.prob in a straight line to `final_prob` at `last_step`, and stay there.
    """

    masking: Masking
    stored: bool = False
    final_prob: float | None = None
    last_step: int = 1

    def at(self, step: int) -> Masking:
        if self.final_prob is None:
            return self.masking
        done = min(step / self.last_step, 1.0)
        return replace(self.masking, prob=self.masking.prob + done * (self.final_prob - self.masking.prob))


class Stream:
    """The batches of one rank by step. Any step can be asked for; the next one is made ready in the background."""

    def __init__(
        self,
        sources: list[Source],
        share: RankShare,
        drawing: MaskingSchedule,
        seed: int,
        shape: BatchShape | None = None,
        device: torch.device = CPU,
    ):
        """With a `shape` every micro-batch is filled up to it."""
        self._sources, self._share, self._drawing, self._seed, self._shape = sources, share, drawing, seed, shape
        self._vocabulary: Vocabulary = sources[0].folder.vocabulary
        self._feed = DeviceFeed(device)
        self._ahead: dict[int, Future[SentBatches]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stream", initializer=self._feed.adopt_thread)
        self.stalled = 0.0  # seconds that callers have waited for data

    def batch(self, step: int) -> list[PackedBatch]:
        """This rank's micro-batches of global batch `step`, the first step being 0."""
        ready = self._ahead.pop(step, None) or self._thread.submit(self._make, step)
        self._ahead = {step + 1: self._thread.submit(self._make, step + 1)}
        started = perf_counter()
        try:
            made = ready.result()
        finally:
            self.stalled += perf_counter() - started
        return self._feed.receive(made)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        for source in self._sources:
            source.folder.close()

    def _make(self, step: int) -> SentBatches:
        return self._feed.send(self.micro_batches_at(rows_of_step(self._sources, step, self._share.size), step))

    def micro_batches_at(self, bounds: list[tuple[int, int]], step: int) -> list[PackedBatch]:
        """This rank's micro-batches of the rows at the places `bounds` of each source, masked as at `step`."""
        parts = [
            SourceRows.of(source, stretch, self._seed)
            for source, (first, last) in zip(self._sources, bounds, strict=True)
            for stretch in source.order.row_ranges(first, last)
            if len(stretch.rows_N)
        ]
        hands = assign_rows(np.concatenate([part.lengths() for part in parts]), self._share)
        return [self._micro_batch(parts, hand, step) for hand in hands]

    def _micro_batch(self, parts: list[SourceRows], hand: Ints, step: int) -> PackedBatch:
        """The rows `hand`, numbered over all parts and rising, masked and laid end to end."""
        begins = offsets_of(np.array([len(part.row_range.rows_N) for part in parts]))
        cuts = np.searchsorted(hand, begins)
        chosen = [part.row_range.rows_N[hand[a:b] - begin]
                  for part, begin, a, b in zip(parts, begins, cuts, cuts[1:], strict=False)]  # fmt: skip
        keys = [part.keys(picked) for part, picked in zip(parts, chosen, strict=True)]
        rows = join_rows([self._rows(*each) for each in zip(parts, chosen, keys, strict=True)])
        masks = self._stored(parts, chosen, rows) if self._drawing.stored else self._drawn(keys, rows, step)
        batch = pack(rows, masks)
        return batch if self._shape is None else pad_to_shape(batch, self._shape, self._vocabulary.special_id("pad"))

    def _rows(self, part: SourceRows, picked: Ints, keys_B: U64) -> PairRows:
        """Rows of one part; SOP's order is drawn again, but for stored masks, whose places it would move."""
        rows = part.block.rows.take(picked)
        if part.folder.objective != "sop" or self._drawing.stored:
            return rows
        return redraw_order(rows, keys_B, self._vocabulary.separators)

    def _drawn(self, keys: list[U64], rows: PairRows, step: int) -> Masks:
        return draw_masks(
            rows.ids_T,
            rows.offsets_B1,
            rows.word_starts_T,
            np.concatenate(keys),
            self._drawing.at(step),
            self._vocabulary,
        )

    def _stored(self, parts: list[SourceRows], chosen: list[Ints], rows: PairRows) -> Masks:
        """Of each row the variant number epoch modulo K."""
        begins = np.split(rows.offsets_B1[:-1], np.cumsum([len(picked) for picked in chosen])[:-1])
        found = [
            part.block.stored.take(picked, part.row_range.epoch % part.block.stored.variants, begins_B)
            for part, picked, begins_B in zip(parts, chosen, begins, strict=True)
            if part.block.stored is not None
        ]
        counts_B = np.concatenate([np.diff(masks.offsets_B1) for masks in found])
        return Masks(
            np.concatenate([masks.positions_K for masks in found]),
            np.concatenate([masks.seen_K for masks in found]),
            offsets_of(counts_B),
        )


def assign_rows(lengths_B: Ints, share: RankShare) -> list[Ints]:
    """The rows of one rank's micro-batches: sorted by length, dealt to all micro-batches back and forth.

    Their tokens differ by less than the longest row. Raises DataError when there are fewer rows than micro-batches.
    """
    if len(lengths_B) < share.micro_batches_per_step:
        raise DataError(
            f"A global batch of {len(lengths_B)} rows cannot be dealt to {share.micro_batches_per_step} micro-batches. "
            "Enlarge the batch, or use fewer ranks or larger micro-batches."
        )
    none = np.full(-len(lengths_B) % share.micro_batches_per_step, -1)
    rounds = np.concatenate([np.argsort(-lengths_B, kind="stable"), none]).reshape(-1, share.micro_batches_per_step)
    rounds[1::2] = rounds[1::2, ::-1]
    mine = [np.sort(rounds[:, hand]) for hand in range(share.rank, share.micro_batches_per_step, share.world_size)]
    return [hand[hand >= 0] for hand in mine]


def pack(rows: PairRows, masks: Masks) -> PackedBatch:
    """Rows and their masks as one packed micro-batch."""
    lengths_B = rows.lengths()
    sequence_T = np.repeat(np.arange(len(lengths_B)), lengths_B)
    positions_T = np.arange(len(rows.ids_T)) - np.repeat(rows.offsets_B1[:-1], lengths_B)
    seen_T = rows.ids_T.astype(np.int64)
    labels_K = seen_T[masks.positions_K]
    seen_T[masks.positions_K] = masks.seen_K
    return PackedBatch(
        ids_T=torch.from_numpy(seen_T),
        segments_T=torch.from_numpy((positions_T >= np.repeat(rows.segment_b_B, lengths_B)).astype(np.int64)),
        positions_T=torch.from_numpy(positions_T),
        sequence_T=torch.from_numpy(sequence_T),
        sequence_starts_S=torch.from_numpy(rows.offsets_B1[:-1].copy()),
        longest=int(lengths_B.max()),
        masked_positions_K=torch.from_numpy(masks.positions_K),
        labels_K=torch.from_numpy(labels_K),
        pair_labels_S=torch.from_numpy(rows.labels_B),
        tokens=len(rows.ids_T),
        predicted=len(labels_K),
        paired=int((rows.labels_B != NO_LABEL).sum()),
    )
