"""Rows and masks of a block are those of its shards joined, and rows are assigned to ranks as a plain sort does."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.ragged import offsets_of
from tests.trainer.data.node_cache.ranks import made_shard
from trainer.data.block import Block
from trainer.data.pair_rows import join_rows
from trainer.data.rank_share import RankShare, assign_rows

MASKS = 3
SHARDS = [made_shard(place, MASKS) for place in (4, 5, 0, 7)]  # shard 5 has no rows
BLOCK = Block(SHARDS)
JOINED = join_rows([shard.rows for shard in SHARDS])


@given(st.lists(st.integers(0, len(JOINED.labels_B) - 1), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_rows_are_those_of_the_joined_shards(wanted: list[int]) -> None:
    rows_B = np.array(wanted)
    found = BLOCK.take(rows_B)
    expected = JOINED.take(rows_B)
    for name, array in vars(expected).items():
        other = getattr(found, name)
        assert other.dtype == array.dtype and other.tolist() == array.tolist(), name
    assert BLOCK.lengths_N[rows_B].tolist() == expected.lengths().tolist()


@given(st.lists(st.integers(0, len(JOINED.labels_B) - 1), min_size=1, max_size=60), st.integers(0, 2 * MASKS))
@settings(max_examples=60, deadline=None)
def test_masks_are_those_of_each_row(wanted: list[int], variant: int) -> None:
    places = [(shard, row) for shard in SHARDS for row in range(len(shard.rows.labels_B))]
    positions: list[int] = []
    tokens: list[int] = []
    counts = []
    for number in wanted:
        shard, row = places[number]
        assert shard.stored is not None
        list_number = row * MASKS + variant % MASKS
        begin, end = shard.stored.offsets[list_number : list_number + 2]
        positions += shard.stored.positions[begin:end].tolist()
        tokens += shard.stored.tokens[begin:end].tolist()
        counts.append(end - begin)

    masks = BLOCK.take_masks(np.array(wanted), variant)

    assert (masks.positions_K.tolist(), masks.seen_K.tolist()) == (positions, tokens)
    assert masks.offsets_B1.tolist() == offsets_of(np.array(counts)).tolist()


@given(
    lengths=st.lists(st.integers(1, 300) | st.integers(60_000, 200_000), min_size=12, max_size=90),
    share=st.sampled_from([(1, 1), (1, 5), (2, 3), (3, 4), (12, 1)]),
)
@settings(max_examples=150, deadline=None)
def test_rows_are_assigned_as_by_a_plain_sort(lengths: list[int], share: tuple[int, int]) -> None:
    world_size, per_rank = share
    columns: list[list[int]] = [[] for _ in range(world_size * per_rank)]
    longest_first = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    for place, row in enumerate(longest_first):
        round_number, column = divmod(place, len(columns))
        columns[-1 - column if round_number % 2 else column].append(row)

    for rank in range(world_size):
        found = assign_rows(np.array(lengths, dtype=np.int32), RankShare(rank, world_size, per_rank, 0))
        expected = [sorted(column) for column in columns[rank::world_size]]
        assert [rows.tolist() for rows in found] == expected
