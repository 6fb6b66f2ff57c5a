"""Batch size ramp: the sizes of the smaller batches that begin a phase, and where in the data each of them begins.

The size grows linearly with the batch's number from batch.ramp_from to the full size, which it has from batch number
batch.ramp_steps on (counted from 0). Sizes are multiples of the greatest common divisor of ramp_from and the full size,
so the choice of these two decides which numbers divide all sizes. Example: a ramp from 768 to 4,608 rows in 10 steps
has 768, 768, 1,536, 1,536, 2,304, 2,304, 3,072, 3,072, 3,840, 3,840 rows, then 4,608.

Both the size and the place of a batch follow from its number and the recipe alone, as they do without a ramp. So a run
resumes by arithmetic, on any number of ranks.

ModernBERT's and cramming's batches grow like this (arXiv:2412.13663, arXiv:2212.14034), with the same number of steps
at each size. For a ramp that is stated in tokens, such as ModernBERT's over 50 billion, set
steps = tokens / mean batch in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import gcd

from trainer.config.schema import BatchSection


class BatchRamp:
    """The sizes of a phase's first batches, and how many micro-batches each rank divides each of them into."""

    def __init__(self, sizes: Sequence[int], micro_batches: Sequence[int]):
        """sizes: rows or tokens of each batch, over all ranks. micro_batches: of each batch, on each rank."""
        self._batches = list(zip(sizes, micro_batches, strict=True))
        self._places = [0, *accumulate(sizes)]

    def batch(self, number: int) -> tuple[int, int] | None:
        """Return the size of a batch and its micro-batches on each rank, or None after the ramp."""
        return self._batches[number] if number < len(self._batches) else None

    def first_place(self, number: int, full_size: int) -> int:
        """Return the place in the data at which batch `number` begins, if batches after the ramp have the full size."""
        in_ramp = min(number, len(self._batches))
        return self._places[in_ramp] + (number - in_ramp) * full_size

    @property
    def distinct(self) -> list[tuple[int, int]]:
        """Each distinct size with its number of micro-batches, in ascending order."""
        return sorted(set(self._batches))


def ramp_sizes(batch: BatchSection) -> tuple[int, ...]:
    """Return the sizes of the batches before the first full one; empty without a ramp."""
    if batch.ramp_from is None or batch.ramp_steps is None:
        return ()
    return _growing_sizes(batch.ramp_from, batch.size, batch.ramp_steps)


@lru_cache
def _growing_sizes(first: int, full: int, steps: int) -> tuple[int, ...]:
    unit = gcd(first, full)
    units_to_grow = (full - first) // unit
    return tuple(first + unit * (units_to_grow * number // steps) for number in range(steps))


def places_before(batch: BatchSection, number: int) -> int:
    """Return how many rows or tokens the batches before batch `number` of a phase hold."""
    sizes = ramp_sizes(batch)
    in_ramp = min(number, len(sizes))
    return sum(sizes[:in_ramp]) + (number - in_ramp) * batch.size
