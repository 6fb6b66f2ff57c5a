"""The assignment of blocks to writers: every byte once, and no block with two nodes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.checkpoint.write_plan import BLOCK, Extent, Range, assign_writers


@st.composite
def parts(draw: st.DrawFn) -> tuple[list[list[Range]], list[int], int]:
    """What each rank holds of a file, in ranges of 4 bytes to 3 blocks in any order, the nodes, the header's length."""
    ranks = draw(st.integers(1, 8))
    nodes = draw(st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks))
    header = 8 * draw(st.integers(2, 2 * BLOCK // 8))
    sizes = st.one_of(
        st.integers(1, 64), st.integers(1, 3 * BLOCK // 4), st.sampled_from([BLOCK // 4, BLOCK // 8, BLOCK // 2])
    )

    held: list[list[Range]] = [[] for _ in range(ranks)]
    at = header
    for rank, elements in draw(st.lists(st.tuples(st.integers(0, ranks - 1), sizes), max_size=40)):
        held[rank].append((at, at + 4 * elements))
        at += 4 * elements
    return [draw(st.permutations(mine)) for mine in held], nodes, header


@settings(max_examples=300, deadline=None)
@given(parts())
def test_every_byte_has_one_writer_and_no_block_has_two_nodes(case: tuple[list[list[Range]], list[int], int]) -> None:
    held, nodes, header = case
    extents = assign_writers(held, nodes, header)

    at = header
    for extent in extents:
        assert extent.begin == at < extent.end and extent.begin % 4 == 0
        at = extent.end
    assert at == max((end for mine in held for _, end in mine), default=header)

    holder_of = {begin: (end, rank) for rank, mine in enumerate(held) for begin, end in mine}
    for begin, (end, rank) in holder_of.items():
        covering = [e for e in extents if e.begin < end and begin < e.end]
        assert {e.holder for e in covering} <= {rank}, "bytes belong to who holds them"

    writers: dict[int, set[int]] = {block: {nodes[0]} for block in range(-(-header // BLOCK))}
    for extent in extents:
        for block in range(extent.begin // BLOCK, -(-extent.end // BLOCK)):
            writers.setdefault(block, set()).add(nodes[extent.writer])
    assert all(len(nodes_of_block) == 1 for nodes_of_block in writers.values())

    for extent in extents:
        if extent.holder != extent.writer:
            assert extent.block is not None
            assert extent.block * BLOCK <= extent.begin and extent.end <= (extent.block + 1) * BLOCK
    one_node = assign_writers(held, [0] * len(nodes), header)
    assert all(e.holder == e.writer for e in one_node), "on one node nothing is exchanged"


def test_an_edge_between_nodes_is_written_by_one_of_them() -> None:
    middle = 2 * BLOCK + 400
    found = assign_writers([[(16, middle)], [(middle, 4 * BLOCK)]], [0, 1], 16)
    assert found == [
        Extent(16, 2 * BLOCK, 0, 0, None),
        Extent(2 * BLOCK, middle, 0, 0, 2),
        Extent(middle, 3 * BLOCK, 1, 0, 2),
        Extent(3 * BLOCK, 4 * BLOCK, 1, 1, None),
    ]


def test_small_pieces_of_many_nodes_are_not_all_written_by_one() -> None:
    ranks = 16
    held = [[(16 + 4096 * i, 16 + 4096 * (i + 1)) for i in range(rank, 256 * 64, ranks)] for rank in range(ranks)]
    writers = {extent.writer for extent in assign_writers(held, list(range(ranks)), 16)}
    assert writers == set(range(ranks))


@pytest.mark.parametrize("second", [(20, 40), (32, 40)], ids=["overlap", "gap"])
def test_parts_that_do_not_meet_are_refused(second: Range) -> None:
    with pytest.raises(ValueError, match="do not meet"):
        assign_writers([[(16, 28)], [second]], [0, 0], 16)
