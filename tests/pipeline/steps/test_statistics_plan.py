"""How `statistics` divides its work: what it reads, counts and holds in memory, whatever the size of the folder."""

from __future__ import annotations

import pytest

from pipeline.steps.statistics_plan import (
    MAX_OCCURRENCES,
    MAX_PARTITIONS,
    PARTITION_OCCURRENCES,
    StatisticsPlan,
    check_size,
    stride_of,
)
from schemas.cooccurrences import MAX_WINDOW, Counting
from schemas.errors import UsageError

DEFAULT_WINDOW = 3
MILLION = 10**6


def plan(num_shards: int, tokens: int, max_tokens: int, window: int = DEFAULT_WINDOW) -> StatisticsPlan:
    counting = Counting(30_522, window, (0,), (0,))
    shards_read = len(range(0, num_shards, stride_of(num_shards, tokens, max_tokens)))
    tokens_read = tokens * shards_read // num_shards
    return StatisticsPlan("pairs", "", "", counting, num_shards, 1, tokens, tokens_read, max_tokens, 50 * MILLION)


@pytest.mark.parametrize("num_shards", [1, 7, 64, 1000, 100_000])
@pytest.mark.parametrize("tokens", [10**6, 10**9, 3 * 10**12])
def test_the_plan_bounds_what_is_read_and_counted(num_shards: int, tokens: int) -> None:
    made = plan(num_shards, tokens, 256 * MILLION)
    assert len(range(0, num_shards, made.stride)) == made.shards_read
    counted = made.tokens_read * made.share_of_rows
    assert counted <= 256_000_000 * 1.01
    assert counted >= 0.98 * min(tokens, 256_000_000)

    # Twice what is counted is read at most, or some 64 shards.
    assert made.tokens_read <= 2 * 256_000_000 + tokens * 128 / num_shards or made.stride == 1
    assert made.partitions <= 64
    assert 4096 % made.shards_per_lot == 0


def test_partitions_of_the_default_window_stay() -> None:
    """They are part of what a folder is made from: another number would drop other rare pairs."""
    sizes = {1: 1, 4 * MILLION: 1, 9 * MILLION: 2, 13 * MILLION: 4, 100 * MILLION: 32, 256 * MILLION: 64}
    assert {tokens: plan(64, 10**12, tokens).partitions for tokens in sizes} == sizes


@pytest.mark.parametrize("window", range(1, MAX_WINDOW + 1))
@pytest.mark.parametrize("max_tokens", [1, MILLION, 256 * MILLION, 10**9, 10**12])
@pytest.mark.parametrize("tokens", [1, MILLION, 10**9, 10**13])
def test_the_memory_of_a_partition_is_bounded_for_every_window(tokens: int, max_tokens: int, window: int) -> None:
    made = plan(64, tokens, max_tokens, window)
    occurrences = min(tokens, max_tokens) * window
    if occurrences > MAX_OCCURRENCES:
        with pytest.raises(UsageError, match="would not fit into memory"):
            check_size(made)
        return

    check_size(made)
    assert made.partitions <= MAX_PARTITIONS
    assert occurrences / made.partitions < 2 * PARTITION_OCCURRENCES
    assert occurrences / made.partitions > PARTITION_OCCURRENCES / 2 or made.partitions == 1


def test_the_limit_that_an_error_names_is_accepted() -> None:
    limit = MAX_OCCURRENCES // 16
    check_size(plan(64, 10**12, limit, window=16))
    with pytest.raises(UsageError, match=rf"^--max_tokens 10,000,000,000 .* Give --max_tokens {limit}\.$"):
        check_size(plan(64, 10**12, 10**10, window=16))
    with pytest.raises(UsageError):
        check_size(plan(64, 10**12, limit + 1, window=16))

    # What counts are the tokens that there are.
    check_size(plan(64, MILLION, 10**15, window=16))
