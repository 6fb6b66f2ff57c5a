"""Sources of a mixture without files: their weights, orders and rows' keys, against plain loops."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import DataError
from schemas.ragged import offsets_of
from schemas.randomness import key, numbers
from trainer.data.block import Block
from trainer.data.mixture import Source, SourceRows, apportion, build_sources, integer_weights, order_of, rows_of_step
from trainer.data.pair_rows import PairRows, ShardRows
from trainer.data.sampler import Order, RowRange


class Folder:
    """A folder of pairs of three shards; row i of shard s has 3 + (s + i) % 4 tokens."""

    def __init__(self, name: str = "a", vocabulary: str = "one", rows: tuple[int, ...] = (4, 2, 5)):
        self.folder = name
        self.vocabulary = SimpleNamespace(fingerprint=vocabulary, size=100 + len(vocabulary))
        self.counts = rows
        shards = [
            SimpleNamespace(rows=count, tokens=int(self._lengths(i).sum()), fingerprint=f"{name}{i}")
            for i, count in enumerate(rows)
        ]
        totals = {"rows": sum(rows), "tokens": sum(shard.tokens for shard in shards)}
        self.manifest = SimpleNamespace(shards=shards, totals=totals, fingerprint=name)
        self.asked: list[tuple[int, ...]] = []
        self.blocks_ahead = 2

    def _lengths(self, shard: int) -> np.ndarray:
        return 3 + (shard + np.arange(self.counts[shard])) % 4

    def read_ahead(self, blocks: list[tuple[int, ...]]) -> None:
        self.asked += blocks

    def block(self, shards: tuple[int, ...]) -> Block:
        nothing: Any = None
        lengths = [self._lengths(shard) for shard in shards]
        return Block([ShardRows(PairRows(nothing, nothing, offsets_of(n), nothing, nothing)) for n in lengths])


def folder(*arguments: Any, **named: Any) -> Any:
    return Folder(*arguments, **named)


def test_a_part_has_the_lengths_and_keys_of_its_rows() -> None:
    held = folder("a")
    order = Order([4, 2, 5], "a", 9)
    row_range = RowRange(3, 0, (2, 0), np.array([7, 0, 5, 8]))
    order.blocks_after = lambda one, count: [("after", one, count)]  # type: ignore[assignment]

    part = SourceRows.of(Source(held, order, 1), row_range, 11)

    assert (part.folder, part.row_range) == (held, row_range)
    shard_B, row_B = part.block.identities(np.arange(9))
    assert (shard_B.tolist(), row_B.tolist()) == ([0] * 5 + [1] * 4, [0, 1, 2, 3, 4, 0, 1, 2, 3])
    assert held.asked == [("after", row_range, 2)]
    assert part.shard_keys.dtype == np.uint64
    assert part.shard_keys.tolist() == [key(11, "mask", 3, "a2"), key(11, "mask", 3, "a0")]
    identities = [(0, 2), (2, 0), (0, 0), (0, 3)]
    assert part.lengths().tolist() == [3 + (shard + row) % 4 for shard, row in identities]
    expected = [numbers(np.uint64(key(11, "mask", 3, f"a{shard}")), row).item() for shard, row in identities]
    assert part.keys(row_range.rows_N).tolist() == expected
    assert part.keys(np.array([8, 2])).tolist() == [expected[3], numbers(part.shard_keys[0], 2).item()]


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


@pytest.mark.parametrize("by_tokens", [False, True])
def test_an_order_is_of_the_folder_and_the_seed(by_tokens: bool) -> None:
    held = folder("a")
    order = order_of(held, 5, by_tokens)
    tokens = [shard.tokens for shard in held.manifest.shards]
    lengths_N = held.block((0, 1, 2)).lengths_N
    expected = (
        Order([4, 2, 5], "a", 5, tokens, lambda shards: held.block(shards).lengths_N)
        if by_tokens
        else Order([4, 2, 5], "a", 5)
    )
    assert order.epoch_size == (lengths_N.sum() if by_tokens else 11)

    def rows(one: Order) -> list[tuple[int, tuple[int, ...], list[int]]]:
        return [(s.epoch, s.shards, s.rows_N.tolist()) for s in one.row_ranges(3, 2 * one.epoch_size - 1)]

    assert rows(order) == rows(expected)
    assert rows(order) != rows(order_of(held, 6, by_tokens))


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
@settings(max_examples=150, deadline=None)
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


@given(st.lists(st.integers(1, 50_000), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_weights_keep_their_proportions(thousandths: list[int]) -> None:
    decimals = [number / 1000 for number in thousandths]
    exact = [Fraction(str(weight)) for weight in decimals]
    whole = integer_weights([], decimals, by_tokens=False)
    assert all(isinstance(weight, int) for weight in whole)
    assert [weight * exact[0] for weight in whole] == [whole[0] * weight for weight in exact]
