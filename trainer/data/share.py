"""One rank's part of every global batch: how many micro-batches it computes, and which rows are in each of them.

Rows are assigned to all micro-batches of all ranks by length, so that every rank computes nearly the same number of
tokens. The world size decides which rank gets which rows, and nothing else.

A batch size ramp begins a phase with smaller batches, as in ModernBERT and cramming (arXiv:2412.13663,
arXiv:2212.14034). The size grows linearly with the batch's number from batch.ramp_from to the full size, which it has
from batch number batch.ramp_steps on (counted from 0). Sizes are multiples of the greatest common divisor of ramp_from
and the full size. Example: a ramp from 768 to 4,608 rows in 10 steps has 768, 768, 1,536, 1,536, 2,304, 2,304, 3,072,
3,072, 3,840, 3,840 rows, then 4,608. Both the size and the place of a batch follow from its number and the recipe
alone, so a run resumes by arithmetic, on any number of ranks.

Shape suffix: B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import gcd

import numpy as np
from numpy.typing import NDArray

from schemas.errors import DataError, UsageError
from schemas.ragged import Ints
from schemas.terminal import counted
from trainer.config.schema import BatchSection, Recipe
from trainer.data.folder import PairFolder

# The ramp


def ramp_sizes(batch: BatchSection) -> tuple[int, ...]:
    """Return the sizes of the batches before the first full one; empty without a ramp."""
    if batch.ramp_from is None or batch.ramp_steps is None:
        return ()
    unit = gcd(batch.ramp_from, batch.size)
    units_to_grow = (batch.size - batch.ramp_from) // unit
    return tuple(
        batch.ramp_from + unit * (units_to_grow * number // batch.ramp_steps) for number in range(batch.ramp_steps)
    )


def places_before(batch: BatchSection, number: int) -> int:
    """Return how many rows or tokens the batches before batch `number` of a phase hold."""
    sizes = ramp_sizes(batch)
    in_ramp = min(number, len(sizes))
    return sum(sizes[:in_ramp]) + (number - in_ramp) * batch.size


def batches_within(batch: BatchSection, places: int) -> int:
    """Return how many of a phase's batches lie within its first `places` rows or tokens."""
    sizes = ramp_sizes(batch)
    for number, size in enumerate(sizes):
        if places < size:
            return number
        places -= size
    return len(sizes) + places // batch.size


@dataclass(frozen=True)
class RankShare:
    """One rank's part of every global batch.

    micro_batches: how many of them this rank computes in a step. size: rows or tokens of the global batch.
    ramp: the size of each smaller batch at the beginning of a phase, and how many micro-batches this rank computes.
    """

    rank: int
    world_size: int
    micro_batches: int
    size: int
    ramp: tuple[tuple[int, int], ...] = ()

    def at(self, number: int) -> RankShare:
        """Return this rank's part of global batch `number`, counted from 0. The result has no ramp."""
        size, micro_batches = self.ramp[number] if number < len(self.ramp) else (self.size, self.micro_batches)
        return RankShare(self.rank, self.world_size, micro_batches, size)

    def first_place(self, number: int) -> int:
        """Return the place in the data at which global batch `number` begins."""
        in_ramp = min(number, len(self.ramp))
        return self._ramp_places[in_ramp] + (number - in_ramp) * self.size

    @cached_property
    def _ramp_places(self) -> list[int]:
        """The place at which each batch of the ramp begins, and the first one after it."""
        return [0, *accumulate(size for size, _ in self.ramp)]

    @property
    def micro_batches_per_step(self) -> int:
        """The number of micro-batches of a global batch, over all ranks."""
        return self.world_size * self.micro_batches


# How many micro-batches


def share_of(recipe: Recipe, rank: int, world_size: int, folders: Sequence[PairFolder] = ()) -> RankShare:
    """Return this rank's share of a phase's global batches.

    folders: the phase's, which state their longest rows; without them, model.max_position_embeddings is used. Raises
    UsageError if the global batch cannot be divided as the recipe says, and ValueError if batch.micro_tokens is "auto".
    """
    batch = recipe.batch
    longest = [folder.max_length for folder in folders] or [recipe.model.max_position_embeddings]
    if batch.chooses_micro_batch:
        raise ValueError("batch.micro_tokens has no number yet; see trainer/micro_batches.py.")

    rows_at_once = (batch.micro_batch or 1) * world_size
    if batch.micro_batch and batch.size % rows_at_once:
        raise UsageError(
            f"batch.global_batch {batch.size} cannot be cut into micro-batches of {counted(batch.micro_batch, 'row')} "
            f"on {counted(world_size, 'rank')}. Make it a multiple of {rows_at_once}, or count in tokens "
            "(global_tokens, micro_tokens)."
        )

    sizes = ramp_sizes(batch)
    micro_batches_of = {size: micro_batches_of_size(batch, size, longest, world_size) for size in {batch.size, *sizes}}
    if sizes:
        check_ramp_start(batch, sizes[0], micro_batches_of[sizes[0]] * world_size)
    ramp = tuple((size, micro_batches_of[size]) for size in sizes)
    return RankShare(rank, world_size, micro_batches_of[batch.size], batch.size, ramp)


def micro_batches_of_size(batch: BatchSection, size: int, longest: Sequence[int], world_size: int) -> int:
    """Return how many micro-batches each rank divides a global batch of `size` rows or tokens into, at least 1."""
    if batch.global_tokens and isinstance(batch.micro_tokens, int):
        return token_micro_batches(size, batch.micro_tokens, longest, world_size)
    if batch.micro_batch is None and isinstance(batch.micro_tokens, int):
        return row_micro_batches(size, batch.micro_tokens, max(longest), world_size)

    # If a ramp's size is not a multiple of what all ranks compute at once, micro-batches are smaller than the limit.
    return divide_rounding_up(size, (batch.micro_batch or 1) * world_size)


def check_ramp_start(batch: BatchSection, rows: int, micro_batches: int) -> None:
    """Raise UsageError if the ramp's smallest batch, counted in rows, has no row for some of its micro-batches."""
    if batch.global_batch and rows < micro_batches:
        raise UsageError(
            f"batch.ramp_from {rows} is too few rows for {micro_batches} micro-batches, one or more a rank. Raise it, "
            "or use fewer ranks."
        )


# Which rows


def assign_rows(lengths_B: NDArray[np.integer], share: RankShare) -> list[Ints]:
    """Return the row numbers of each of this rank's micro-batches, in ascending order. lengths_B: tokens of each row.

    Rows are sorted by length and assigned to all micro-batches back and forth, so the micro-batches' tokens differ by
    less than the longest row. Raises DataError if there are fewer rows than micro-batches.

    Example: with rows sorted as a b c d e f g and three micro-batches, the rounds are (a b c), (f e d), (g - -), and
    the micro-batches hold a f g, b e, and c d.
    """
    micro_batches = share.micro_batches_per_step
    if len(lengths_B) < micro_batches:
        raise DataError(
            f"A global batch of {len(lengths_B)} rows cannot be divided into {micro_batches} micro-batches. "
            "Enlarge the batch, or use fewer ranks or larger micro-batches."
        )

    # Row number i of the sorted rows is in round i // micro_batches. Every other round runs backwards: otherwise the
    # first micro-batch would get the longest row of every round.
    longest_first = sort_longest_first(lengths_B)
    round_starts = np.arange(0, len(lengths_B), micro_batches)
    runs_backwards = np.arange(len(round_starts)) % 2 == 1

    # A rank takes every world_size-th micro-batch. The last round may be too short to give it another row.
    assigned = []
    for micro_batch in range(share.rank, micro_batches, share.world_size):
        places = round_starts + np.where(runs_backwards, micro_batches - 1 - micro_batch, micro_batch)
        assigned.append(np.sort(longest_first[places[places < len(lengths_B)]]))
    return assigned


def sort_longest_first(lengths_B: NDArray[np.integer]) -> Ints:
    """Return the rows' numbers sorted by descending length, rows of equal length by ascending number.

    Every rank sorts all rows of every global batch, so this has to be fast. numpy uses a radix sort for 16-bit
    integers, which is 15 times as fast as its sort for wider ones.
    """
    missing_B = lengths_B.max() - lengths_B
    if missing_B.max() < 1 << 16:
        missing_B = missing_B.astype(np.uint16)
    return np.argsort(missing_B, kind="stable")


TOKEN_MULTIPLE = 64
"""Token counts are rounded up to this, because matrix units are fastest with multiples of a power of two."""


def token_micro_batches(global_tokens: int, micro_tokens: int, longest: Sequence[int], world_size: int) -> int:
    """Return how many micro-batches each rank needs so that none exceeds `micro_tokens`.

    longest: tokens in the longest row of each folder. Raises UsageError if a single row is too long.
    """
    longest_row = max(longest)
    if micro_tokens <= longest_row:
        raise UsageError(
            f"batch.micro_tokens {micro_tokens} is not enough for rows of up to {longest_row} tokens. "
            f"Give at least {4 * longest_row}."
        )

    # A global batch ends with a whole row of each folder, so it exceeds its size by less than one row per folder. Rows
    # are assigned so that no two micro-batches differ by more tokens than the longest row has, so the largest
    # micro-batch has at most the mean plus one row.
    max_tokens = global_tokens + sum(longest)
    max_mean = micro_tokens - longest_row
    return divide_rounding_up(max_tokens, max_mean * world_size)


def smallest_micro_batch(batch: BatchSection, longest: int) -> int:
    """Return the lowest token limit for a micro-batch: one longest row, or four for batches counted in tokens."""
    return longest if batch.global_batch else 4 * longest


def needed_tokens(batch: BatchSection, limit: int, longest: Sequence[int], ranks: int) -> int:
    """Lower a token limit to what a step's micro-batches actually need when they are of equal size.

    longest: tokens in the longest row of each folder.

    Example: with 256 rows of up to 128 tokens on one rank, a limit of 20,000 tokens leads to two micro-batches of 128
    rows, which need 16,384 tokens each.
    """
    longest_row = max(longest)
    if batch.global_batch:
        micro_batches = row_micro_batches(batch.global_batch, limit, longest_row, ranks)
        return divide_rounding_up(batch.global_batch, ranks * micro_batches) * longest_row

    # Never more than a single micro-batch needs to hold the rank's whole part (see token_micro_batches).
    part = divide_rounding_up((batch.global_tokens or 0) + sum(longest), ranks) + longest_row
    enough = divide_rounding_up(part, TOKEN_MULTIPLE) * TOKEN_MULTIPLE
    at_most = limit // TOKEN_MULTIPLE * TOKEN_MULTIPLE
    return max(min(enough, at_most), 4 * longest_row)


def half_of(batch: BatchSection, tokens: int, longest: Sequence[int], ranks: int) -> int:
    """Return the limit to take instead of one that was too much, about half of it; 0 if nothing is smaller."""
    smallest = smallest_micro_batch(batch, max(longest))
    if tokens <= smallest:
        return 0
    return needed_tokens(batch, max(tokens // 2, smallest), longest, ranks)


def row_micro_batches(rows: int, limit: int, longest: int, ranks: int) -> int:
    """Return how many micro-batches each rank needs for a global batch of `rows` rows, at most `limit` tokens each.

    longest: tokens in the longest row. Raises UsageError if a single row is too long.
    """
    rows_at_once = limit // longest
    if rows_at_once == 0:
        raise UsageError(
            f"batch.micro_tokens {limit} is not enough for rows of up to {longest} tokens. Give at least {longest}."
        )
    return divide_rounding_up(rows, rows_at_once * ranks)


def divide_rounding_up(number: int, divisor: int) -> int:
    """Return the smallest integer that is not below the quotient."""
    return -(-number // divisor)
