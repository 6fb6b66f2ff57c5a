"""Matrices reach their owners and come back, whatever the cuts between ranks are; and what that costs."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.one_rank import ThreadedRanks
from trainer.optim import exchange
from trainer.optim.exchange import Exchange, Plan
from trainer.optim.orthogonalize import orthogonalize
from trainer.optim.pieces import Piece

SHAPES = [(2, 3), (5, 1), (4, 4), (1, 2)]
SIZES = [prod(shape) for shape in SHAPES]


def pieces_of(cuts: list[int], shapes: list[tuple[int, ...]]) -> list[list[Piece]]:
    """The pieces of each rank, if rank r holds the elements from cuts[r] to cuts[r + 1] of all matrices end to end."""
    ranks = []
    for first, last in pairwise(cuts):
        begin = 0
        pieces = []
        for number, size in enumerate(map(prod, shapes)):
            low, high = max(first, begin), min(last, begin + size)
            if low < high:
                pieces.append(Piece(number, low - first, low - begin, high - low))
            begin += size
        ranks.append(pieces)
    return ranks


@given(st.lists(st.integers(0, sum(SIZES)), min_size=0, max_size=5))
@settings(deadline=None, max_examples=50)
def test_all_ranks_together_transform_whole_matrices(inner: list[int]) -> None:
    """Ranks are threads here. What an owner makes of a matrix depends on all of its elements."""
    cuts = [0, *sorted(inner), sum(SIZES)]
    pieces = pieces_of(cuts, SHAPES)
    plan = Plan.sharded(pieces, len(SHAPES))
    values = torch.arange(float(sum(SIZES)))
    parts = [values[first:last].clone() for first, last in pairwise(cuts)]

    seen: list[int] = []

    def transform(owned: dict[int, Tensor]) -> None:
        for number, matrix_N in owned.items():
            assert matrix_N.numel() == SIZES[number]
            seen.append(number)
            matrix_N.copy_(matrix_N.flip(0) * 10)

    def run(rank: int) -> None:
        held = [(piece, piece.of(parts[rank])) for piece in plan.pieces[rank]]
        Exchange(plan, SHAPES, rank, torch.device("cpu")).transform(held, transform)

    threads = ThreadedRanks(len(parts))
    with patch.object(exchange, "dist", threads):
        assert threads.run(run) == [None] * len(parts)

    assert 4 * sum(threads.exchanged) == plan.traffic()
    matrices = torch.cat(parts).split(SIZES)
    expected = [10 * one.flip(0) for one in values.split(SIZES)]
    assert sorted(seen) == list(range(len(SHAPES)))
    assert all(torch.equal(found, wanted) for found, wanted in zip(matrices, expected, strict=True))


def test_bert_base_on_8_ranks_moves_little() -> None:
    """Of 340 MB of matrices 38 MB, at most seven matrices each way; at stage 0 everything to everybody."""
    layer = [(768, 768)] * 4 + [(3072, 768), (768, 3072)]
    shapes: list[tuple[int, ...]] = layer * 12
    total = sum(map(prod, shapes))
    cuts = [rank * total // 8 for rank in range(9)]
    sharded = Plan.sharded(pieces_of(cuts, shapes), len(shapes))
    assert len({piece.number for _, piece in sharded.travelling()}) <= 7
    print(f"{total * 4 / 1e6:.0f} MB of matrices, {sharded.traffic() / 1e6:.1f} MB travel at stages 1 and 2")
    assert sharded.traffic() < 40e6

    whole = [Piece(number, 0, 0, prod(shape)) for number, shape in enumerate(shapes)]
    replicated = Plan.replicated(whole, shapes, 8)
    assert replicated.traffic() == 7 * 4 * total
    work = [0] * 8
    for number, owner in enumerate(replicated.owners):
        work[owner] += exchange.work_of(shapes[number])
    assert max(work) < 1.05 * min(work), "dealt out evenly"


@pytest.mark.parametrize("shape", [(3, 16, 40), (2, 40, 16), (1, 8, 8)])
def test_singular_values_come_near_one_and_vectors_stay(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    given_BRC = torch.randn(shape)
    found_BRC = orthogonalize(given_BRC)
    assert torch.linalg.svdvals(found_BRC).min() > 0.67 and torch.linalg.svdvals(found_BRC).max() < 1.22

    # X' times its orthogonal factor is symmetric and positive: the polar decomposition.
    product_BCC = given_BRC.mT @ found_BRC
    torch.testing.assert_close(product_BCC, product_BCC.mT, atol=1e-4, rtol=1e-4)
    assert torch.linalg.eigvalsh(product_BCC).min() > -1e-4
    assert torch.equal(orthogonalize(torch.zeros(shape)), torch.zeros(shape))


def test_a_group_of_one_needs_no_network() -> None:
    assert not dist.is_initialized()
    plan = Plan.sharded(pieces_of([0, sum(SIZES)], SHAPES), len(SHAPES))
    assert plan.traffic() == 0
    values = torch.ones(sum(SIZES))
    held = [(piece, piece.of(values)) for piece in plan.pieces[0]]

    def double(owned: dict[int, Tensor]) -> None:
        for matrix_N in owned.values():
            matrix_N.mul_(2)

    Exchange(plan, SHAPES, 0, torch.device("cpu")).transform(held, double)
    assert torch.equal(values, torch.full_like(values, 2))
