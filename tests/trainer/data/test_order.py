"""The order of rows, which follows by arithmetic: of one folder, and of a mixture of several."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import DataError
from schemas.randomness import key, permutation
from trainer.data import order as order_module
from trainer.data.order import (
    Order,
    Source,
    apportion,
    build_sources,
    integer_weights,
    rows_between,
)


def rows_of_step(sources: list[Source], step: int, size: int) -> list[tuple[int, int]]:
    """Return each source's part of global batch `step`, if all batches have `size` places."""
    return rows_between(sources, step * size, (step + 1) * size)


def rows_at(order: Order, start: int, count: int, rows: list[int]) -> np.ndarray:
    """(count, 3): epoch, shard and row in the shard of the rows at some places."""
    found = [np.zeros((0, 3), dtype=np.int64)]
    for row_range in order.row_ranges(start, start + count):
        block = [(row_range.epoch, shard, row) for shard in row_range.shards for row in range(rows[shard])]
        found.append(np.array(block, dtype=np.int64).reshape(-1, 3)[row_range.rows_N])
    return np.concatenate(found)


SHARDS = st.lists(st.integers(0, 30), min_size=1, max_size=30).filter(any)


def test_seed_data_and_epoch_change_the_order() -> None:
    def first(seed: int, fingerprint: str, epoch: int) -> list:
        rows = [50, 60, 70]
        return rows_at(Order(rows, fingerprint, seed), epoch * 180, 180, rows)[:, 1:].tolist()

    orders = [first(0, "f", 0), first(1, "f", 0), first(0, "g", 0), first(0, "f", 1)]
    assert len({str(order) for order in orders}) == 4


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
@settings(max_examples=60)
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


def test_the_order_of_shards_is_computed_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many shards it costs more than the rest of a batch."""
    shuffled: list[int] = []

    def counted(n: int, seed: int) -> np.ndarray:
        shuffled.append(n)
        return permutation(n, seed)

    monkeypatch.setattr(order_module, "permutation", counted)
    order = Order([10] * 50, "f", 0)
    for start in range(0, 1000, 10):
        for row_range in order.row_ranges(start, start + 10):
            order.blocks_after(row_range, 1)
    assert shuffled.count(50) == 3  # two epochs, and the first block of the next


# Mixtures


FIVE_FOLDERS = [9_000_000, 5_000_000, 2_000_000, 1_000_000, 3_000]


def mixture(sizes: list[int]) -> list[Source]:
    """Sources weighted by their numbers of rows, each with its own order and no folder behind it."""
    nothing: Any = None
    return [Source(nothing, Order([size], f"source {i}", 0), size) for i, size in enumerate(sizes)]


def test_any_step_can_be_asked_for() -> None:
    """A resumed run asks for one step only, however far it is. Each folder is within two rows of its share."""
    sources = mixture(FIVE_FOLDERS)
    far = 10**12
    before = rows_of_step(sources, far - 1, 256)
    after = rows_of_step(sources, far, 256)
    assert [last for _, last in before] == [first for first, _ in after]
    assert sum(last for _, last in after) == 256 * (far + 1)
    for (first, last), rows in zip(after, FIVE_FOLDERS, strict=True):
        assert first <= last and abs(last - Fraction(rows, sum(FIVE_FOLDERS)) * 256 * (far + 1)) <= 2


def test_given_weights_are_taken_as_they_are_written() -> None:
    """0.1 is one tenth: after ten places each source has given exactly its share."""
    weights = integer_weights([], [0.1, 0.2, 0.7], by_tokens=False)
    assert weights == [1, 2, 7]
    assert apportion(weights, 10**15) == [10**14, 2 * 10**14, 7 * 10**14]
    assert sum(apportion(integer_weights([], [1e-300, 1e300, 3.5], by_tokens=False), 1000)) == 1000


@pytest.mark.parametrize("by_tokens", [False, True])
def test_a_power_of_the_sizes_raises_the_share_of_small_folders(by_tokens: bool) -> None:
    """Shares as in the papers: size ** 0.7 over their sum. 1 and 0 are the sizes themselves and equal shares."""
    sizes = (1_000_000, 30_000, 200)
    folders = [folder(str(size), rows=(size,)) for size in sizes]
    expected = np.array(sizes) ** 0.7 / (np.array(sizes) ** 0.7).sum()

    weights = integer_weights(folders, 0.7, by_tokens)
    assert all(isinstance(weight, int) for weight in weights)
    assert np.allclose(np.array(weights) / sum(weights), expected, rtol=1e-6)
    assert len(set(integer_weights(folders, 0.0, by_tokens))) == 1
    assert apportion(integer_weights(folders, 1.0, by_tokens), 10**9) == apportion(
        integer_weights(folders, None, by_tokens), 10**9
    )


# The rows of a mixture


def folder(name: str = "a", vocabulary: str = "one", rows: tuple[int, ...] = (4, 2, 5)) -> Any:
    """A folder of pairs of several shards; row i of shard s has 3 + (s + i) % 4 tokens."""
    shards = []
    for place, count in enumerate(rows):
        tokens = int((3 + (place + np.arange(count)) % 4).sum())
        shards.append(SimpleNamespace(rows=count, tokens=tokens, fingerprint=f"{name}{place}"))
    totals = {"rows": sum(rows), "tokens": sum(shard.tokens for shard in shards)}
    manifest = SimpleNamespace(shards=shards, totals=totals, fingerprint=name)
    of_folder = SimpleNamespace(fingerprint=vocabulary, size=100 + len(vocabulary))
    return SimpleNamespace(folder=name, vocabulary=of_folder, manifest=manifest)


@pytest.mark.parametrize("by_tokens", [False, True])
def test_sources_are_weighted_by_their_size_unless_asked(by_tokens: bool) -> None:
    first = folder("a")
    second = folder("b", rows=(6, 1))
    sizes = [11, 7] if not by_tokens else [first.manifest.totals["tokens"], second.manifest.totals["tokens"]]

    sources = build_sources([first, second], None, 5, by_tokens)

    assert [source.folder for source in sources] == [first, second]
    assert [source.weight for source in sources] == sizes == [source.order.epoch_size for source in sources]
    assert [source.weight for source in build_sources([first, second], [0.25, 1], 5, by_tokens)] == [1, 4]
    with pytest.raises(ValueError):
        build_sources([first, second], [1.0], 5, by_tokens)


def test_folders_that_do_not_fit_are_named() -> None:
    with pytest.raises(DataError) as caught:
        build_sources([folder("a"), folder("b"), folder("c", "other")], None, 0, False)
    assert str(caught.value) == (
        "c has vocabulary other (105 tokens), but a has one (103 tokens). Rebuild one with the other's vocabulary."
    )
    with pytest.raises(DataError, match=r"^b holds no rows to train on\. Rebuild it from more text\.$"):
        build_sources([folder("a"), folder("b", rows=(0,))], None, 0, False)


@given(
    weights=st.lists(st.integers(1, 12), min_size=1, max_size=7),
    n=st.integers(0, 60),
    step=st.integers(0, 9),
    size=st.integers(1, 9),
)
@settings(max_examples=150)
def test_places_are_those_of_the_earliest_rows(weights: list[int], n: int, step: int, size: int) -> None:
    """Of all rows of all sources sorted by the times at which they are due, ties by the source's number."""
    due = sorted(
        (Fraction(2 * j - 1, 2 * weight), i) for i, weight in enumerate(weights) for j in range(1, max(n, 90) + 1)
    )

    def counts(first: int) -> list[int]:
        given_rows = [i for _, i in due[:first]]
        return [given_rows.count(i) for i in range(len(weights))]

    assert apportion(weights, n) == counts(n)
    nothing: Any = None
    sources = [Source(nothing, nothing, weight) for weight in weights]
    assert rows_of_step(sources, step, size) == list(zip(counts(step * size), counts((step + 1) * size), strict=True))
