from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.randomness import key, permutation
from trainer.data import sampler
from trainer.data.sampler import Order


def rows_at(order: Order, start: int, count: int, rows: list[int]) -> np.ndarray:
    """(count, 3): epoch, shard and row in the shard of the rows at some places."""
    found = [np.zeros((0, 3), dtype=np.int64)]
    for row_range in order.row_ranges(start, start + count):
        block = [(row_range.epoch, shard, row) for shard in row_range.shards for row in range(rows[shard])]
        found.append(np.array(block, dtype=np.int64).reshape(-1, 3)[row_range.rows_N])
    return np.concatenate(found)


SHARDS = st.lists(st.integers(0, 30), min_size=1, max_size=30).filter(any)


@given(rows=SHARDS, seed=st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_an_epoch_holds_every_row_once(rows: list[int], seed: int) -> None:
    order = Order(rows, "f", seed)
    for epoch in (0, 1):
        places = rows_at(order, epoch * order.epoch_size, order.epoch_size, rows)
        assert (places[:, 0] == epoch).all()
        expected = [(shard, row) for shard, n in enumerate(rows) for row in range(n)]
        assert sorted(map(tuple, places[:, 1:].tolist())) == expected


@given(rows=SHARDS, cuts=st.lists(st.integers(1, 40), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_any_place_can_be_asked_for(rows: list[int], cuts: list[int]) -> None:
    """In pieces, backwards and by an object that has seen nothing: always the same sequence."""
    whole = rows_at(Order(rows, "f", 0), 0, sum(cuts), rows)
    starts = np.cumsum([0, *cuts])
    fresh = Order(rows, "f", 0)
    for i in reversed(range(len(cuts))):
        assert (rows_at(fresh, int(starts[i]), cuts[i], rows) == whole[starts[i] : starts[i + 1]]).all()


def test_seed_data_and_epoch_change_the_order() -> None:
    def first(seed: int, fingerprint: str, epoch: int) -> list:
        rows = [50, 60, 70]
        return rows_at(Order(rows, fingerprint, seed), epoch * 180, 180, rows)[:, 1:].tolist()

    orders = [first(0, "f", 0), first(1, "f", 0), first(0, "g", 0), first(0, "f", 1)]
    assert len({str(order) for order in orders}) == 4


def test_the_order_is_what_it_was() -> None:
    """A resumed run depends on it: a change here is a change of major version."""
    assert rows_at(Order([3, 2, 4], "fingerprint", 7), 0, 12, [3, 2, 4]).tolist() == GOLDEN


def test_a_reader_needs_one_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "BLOCK_SHARDS", 2)
    shards = rows_at(Order([10] * 8, "f", 0), 0, 80, [10] * 8)[:, 1]
    assert all(len(set(shards[i : i + 20].tolist())) == 2 for i in range(0, 80, 20))


@given(rows=SHARDS, size=st.integers(1, 200), seed=st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_batches_of_tokens_hold_every_row_once_an_epoch(rows: list[int], size: int, seed: int) -> None:
    """Cut anywhere by tokens: each row is in one batch, which exceeds its size by less than a row."""
    lengths = [np.random.default_rng(shard).integers(5, 40, n) for shard, n in enumerate(rows)]
    tokens = [int(part.sum()) for part in lengths]
    order = Order(rows, "f", seed, tokens, lambda block: np.concatenate([lengths[shard] for shard in block]))
    seen = []
    first = 0
    while first < 2 * order.epoch_size:
        batch = rows_at(order, first, min(size, 2 * order.epoch_size - first), rows).tolist()
        assert sum(lengths[shard][row] for _, shard, row in batch) < size + 40
        seen += batch
        first += size
    assert sorted(seen) == [[epoch, shard, row] for epoch in (0, 1) for shard, n in enumerate(rows) for row in range(n)]


PlainRow = tuple[int, tuple[int, ...], int, int]
"""(epoch, shards of the block, number of the row in the block, place in the epoch where the row begins)."""


def plain_epoch(rows: list[int], seed: int, epoch: int, lengths: list[list[int]] | None) -> list[PlainRow]:
    """An epoch's rows, block by block; a row takes one place, or as many as it has tokens."""
    shard_order = permutation(len(rows), key(seed, "f", "shard order", epoch)).tolist()
    made: list[PlainRow] = []
    place = 0
    for first_shard in range(0, len(rows), 8):
        shards = tuple(shard_order[first_shard : first_shard + 8])
        numbers = [(shard, row) for shard in shards for row in range(rows[shard])]
        row_key = key(seed, "f", "row order", epoch, first_shard // 8)
        for number in permutation(len(numbers), row_key).tolist():
            made.append((epoch, shards, number, place))
            shard, row = numbers[number]
            place += 1 if lengths is None else lengths[shard][row]

    return made


def assert_equal_to_plain(order: Order, epochs: list[list[PlainRow]], first: int, last: int) -> None:
    """One range for each block that the places touch, each with the rows that begin in them."""
    expected = {}
    for number, epoch_rows in enumerate(epochs):
        for epoch, shards, row, begin in epoch_rows:
            if first <= number * order.epoch_size + begin < last:
                expected.setdefault((epoch, shards), []).append(row)

    row_ranges = list(order.row_ranges(first, last))

    found = {(s.epoch, s.shards): s.rows_N.tolist() for s in row_ranges if len(s.rows_N)}
    assert found == expected
    assert list(found) == list(expected)
    assert len({(s.epoch, s.shards) for s in row_ranges}) == len(row_ranges)


@pytest.mark.parametrize("unit", ["rows", "tokens"])
@given(rows=SHARDS, seed=st.integers(0, 9), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_order_equals_the_plain_algorithm(unit: str, rows: list[int], seed: int, data: st.DataObject) -> None:
    """Whatever range of the sequence is asked for, over the ends of blocks and epochs."""
    lengths = [np.random.default_rng(shard).integers(5, 40, n).tolist() for shard, n in enumerate(rows)]
    if unit == "rows":
        order = Order(rows, "f", seed)
        epochs = [plain_epoch(rows, seed, epoch, None) for epoch in range(3)]
    else:
        tokens = [sum(part) for part in lengths]
        order = Order(rows, "f", seed, tokens, lambda block: np.array([n for shard in block for n in lengths[shard]]))
        epochs = [plain_epoch(rows, seed, epoch, lengths) for epoch in range(3)]

    first = data.draw(st.integers(0, 2 * order.epoch_size))
    last = data.draw(st.integers(first, 3 * order.epoch_size))

    assert_equal_to_plain(order, epochs, first, last)
    assert_equal_to_plain(order, epochs, 0, 3 * order.epoch_size)


@pytest.mark.parametrize("shards", [1, 7, 8, 9, 16, 17])
def test_the_block_after_a_stretch_is_the_next_to_be_read(shards: int) -> None:
    """Within an epoch, and from an epoch's last block to the next one's first."""
    order = Order([3] * shards, "f", 1)
    row_ranges = list(order.row_ranges(0, 4 * order.epoch_size))

    assert len(row_ranges) == 4 * -(-shards // 8)
    for row_range, following in pairwise(row_ranges):
        assert order.blocks_after(row_range, 1) == [following.shards]


def test_blocks_past_the_end_are_empty() -> None:
    order = Order([3] * 9, "f", 1)

    assert [len(order.block(0, block)) for block in range(3)] == [8, 1, 0]
    assert sorted(order.block(0, 0) + order.block(0, 1)) == list(range(9))
    assert order.block(0, 0) != order.block(1, 0)
    assert list(order.row_ranges(5, 5)) == []


def test_the_order_of_shards_is_computed_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many shards it costs more than the rest of a batch."""
    shuffled: list[int] = []

    def counted(n: int, seed: int) -> np.ndarray:
        shuffled.append(n)
        return permutation(n, seed)

    monkeypatch.setattr(sampler, "permutation", counted)
    order = Order([10] * 50, "f", 0)
    for start in range(0, 1000, 10):
        for row_range in order.row_ranges(start, start + 10):
            order.blocks_after(row_range, 1)
    assert shuffled.count(50) == 3  # two epochs, and the first block of the next


GOLDEN = [
    [0, 0, 2],
    [0, 1, 0],
    [0, 2, 1],
    [0, 2, 3],
    [0, 2, 0],
    [0, 1, 1],
    [0, 0, 0],
    [0, 2, 2],
    [0, 0, 1],
    [1, 2, 0],
    [1, 0, 1],
    [1, 2, 1],
]
