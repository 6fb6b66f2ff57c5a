"""Computes how a global batch, counted in rows or in tokens, is divided into micro-batches within a token limit."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import UsageError
from trainer.config.schema import BatchSection

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
