import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.stream import order as ordering
from trainer.stream.order import Order

SHARDS = st.lists(st.integers(0, 30), min_size=1, max_size=30).filter(any)


@given(rows=SHARDS, seed=st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_an_epoch_holds_every_row_once(rows: list[int], seed: int) -> None:
    order = Order(rows, "f", seed)
    for epoch in (0, 1):
        places = order.rows_at(epoch * order.epoch_rows, order.epoch_rows)
        assert (places[:, 0] == epoch).all()
        expected = [(shard, row) for shard, n in enumerate(rows) for row in range(n)]
        assert sorted(map(tuple, places[:, 1:].tolist())) == expected


@given(rows=SHARDS, cuts=st.lists(st.integers(1, 40), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_any_place_can_be_asked_for(rows: list[int], cuts: list[int]) -> None:
    """In pieces, backwards and by an object that has seen nothing: always the same sequence."""
    whole = Order(rows, "f", 0).rows_at(0, sum(cuts))
    starts = np.cumsum([0, *cuts])
    fresh = Order(rows, "f", 0)
    for i in reversed(range(len(cuts))):
        assert (fresh.rows_at(int(starts[i]), cuts[i]) == whole[starts[i] : starts[i + 1]]).all()


def test_seed_data_and_epoch_change_the_order() -> None:
    def first(seed: int, fingerprint: str, epoch: int) -> list:
        return Order([50, 60, 70], fingerprint, seed).rows_at(epoch * 180, 180)[:, 1:].tolist()

    orders = [first(0, "f", 0), first(1, "f", 0), first(0, "g", 0), first(0, "f", 1)]
    assert len({str(order) for order in orders}) == 4


def test_the_order_is_what_it_was() -> None:
    """A resumed run depends on it: a change here is a change of major version."""
    assert Order([3, 2, 4], "fingerprint", 7).rows_at(0, 12).tolist() == GOLDEN


def test_a_reader_needs_one_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "BLOCK_SHARDS", 2)
    shards = Order([10] * 8, "f", 0).rows_at(0, 80)[:, 1]
    assert all(len(set(shards[i : i + 20].tolist())) == 2 for i in range(0, 80, 20))


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
