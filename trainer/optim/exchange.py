"""Gathers each matrix on one rank, its owner, and sends the owner's result back to the ranks that hold its pieces.

    ZeRO 1, 2    A matrix belongs to the rank that holds its largest piece. Ranks hold long runs of whole matrices, so
                 only the matrices that are split between ranks are sent: at most one less than there are ranks. Their
                 smaller pieces go to the owner and come back, with one all-to-all each way.
    stage 0      Every rank has everything. Matrices are assigned to owners so that they have equal work, and owners
                 broadcast their results.

`traffic` returns how many bytes are sent in a step. On one rank nothing is sent.

Shape suffixes: N elements of a matrix, laid flat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.optim.orthogonalize import work_of
from trainer.optim.pieces import Piece

BYTES = 4  # of a float32

Transform = Callable[[dict[int, Tensor]], None]
"""Changes the matrices that a rank owns in place. They are given by number, as (N,) tensors."""


class Travelling(NamedTuple):
    """A piece that is held by another rank than the owner of its matrix. holder: the rank that has it."""

    holder: int
    piece: Piece


@dataclass(frozen=True)
class Plan:
    """Which rank holds which pieces, and which rank owns which matrix. Every rank has the same plan.

    pieces: for each rank, the pieces that it holds. owners: for each matrix, the rank that owns it. is_sharded: whether
    each piece is held by one rank only; otherwise every rank holds all matrices.
    """

    pieces: list[list[Piece]]
    owners: list[int]
    is_sharded: bool

    @classmethod
    def sharded(cls, pieces: list[list[Piece]], matrices: int) -> Plan:
        """Assign each matrix to the rank with its largest piece, or the first such rank. pieces: those of each rank."""
        largest = [0] * matrices
        owners = [0] * matrices

        for rank, pieces_of_rank in enumerate(pieces):
            for piece in pieces_of_rank:
                if piece.size > largest[piece.number]:
                    largest[piece.number] = piece.size
                    owners[piece.number] = rank
        return cls(pieces, owners, is_sharded=True)

    @classmethod
    def replicated(cls, pieces: list[Piece], shapes: Sequence[tuple[int, ...]], ranks: int) -> Plan:
        """Assign matrices greedily, the costliest first, each to the rank with the least work so far."""
        work = [work_of(shape) for shape in shapes]
        costliest_first = sorted(range(len(shapes)), key=lambda number: -work[number])

        # Ties go to the lower number, both among matrices and among ranks, so every rank makes the same plan.
        work_of_rank = [0] * ranks
        owners = [0] * len(shapes)
        for number in costliest_first:
            owner = work_of_rank.index(min(work_of_rank))
            owners[number] = owner
            work_of_rank[owner] += work[number]
        return cls([pieces] * ranks, owners, is_sharded=False)

    def traffic(self) -> int:
        """Return the bytes that all ranks together receive from others in a step."""
        if not self.is_sharded:
            elements = sum(piece.size for piece in self.pieces[0])
            return BYTES * elements * (len(self.pieces) - 1)

        # Each piece is sent to the owner once, and back once.
        return 2 * BYTES * sum(one.piece.size for one in self.travelling())

    def travelling(self) -> list[Travelling]:
        """Return each piece that is not held by the owner of its matrix, sorted by matrix and place."""
        found = []
        for holder, pieces in enumerate(self.pieces):
            found += [Travelling(holder, piece) for piece in pieces if self.owners[piece.number] != holder]
        return sorted(found, key=lambda one: (one.piece.number, one.piece.first))


class Exchange:
    """Runs a plan on one rank, whose matrices are in one tensor (ZeRO 1 and 2) or in several (stage 0).

    device: where the process group's tensors must be. Matrices of an offloaded optimizer are copied there.
    """

    def __init__(self, plan: Plan, shapes: Sequence[tuple[int, ...]], rank: int, device: torch.device):
        self._plan = plan
        self._shapes = shapes
        self._rank = rank
        self._device = device

        # Decided from the pieces of all ranks, so that either all of them make a collective call or none does.
        travelling = plan.travelling() if plan.is_sharded else []
        self._anything_travels = bool(travelling)

        # On the way to the owners: the pieces that this rank sends and those that it receives.
        self._outgoing = [one.piece for one in travelling if one.holder == rank]
        self._incoming = [one for one in travelling if plan.owners[one.piece.number] == rank]

        # all_to_all takes the data of peer 0 first, then that of peer 1, and so on. Both sorts are stable, so what two
        # ranks exchange is in the same order on both.
        self._outgoing.sort(key=lambda piece: plan.owners[piece.number])
        self._incoming.sort(key=lambda one: one.holder)

    def transform(self, held: list[tuple[Piece, Tensor]], transform: Transform) -> None:
        """Replace the held pieces by those of the transformed matrices. A collective call.

        held: each piece that this rank holds, with a view of its elements.
        """
        if self._plan.is_sharded:
            self._transform_sharded(held, transform)
        else:
            self._transform_replicated(held, transform)

    def _transform_replicated(self, held: list[tuple[Piece, Tensor]], transform: Transform) -> None:
        owners = self._plan.owners
        owned = {piece.number: values_N for piece, values_N in held if owners[piece.number] == self._rank}
        transform(owned)

        ranks = len(self._plan.pieces)
        if ranks == 1:
            return

        # Start all broadcasts at once, because a single one rarely saturates the network.
        calls: list[Any] = []
        for piece, values_N in held:
            calls.append(dist.broadcast(values_N, owners[piece.number], async_op=True))
        for call in calls:
            call.wait()

    def _transform_sharded(self, held: list[tuple[Piece, Tensor]], transform: Transform) -> None:
        values_of = {(piece.number, piece.first): values_N for piece, values_N in held}
        outgoing = [values_of[piece.number, piece.first] for piece in self._outgoing]
        received = [torch.empty(one.piece.size, device=self._device) for one in self._incoming]
        self._swap(outgoing, received, to_owners=True)

        # All pieces of the matrices that this rank owns: those that it holds, and those that have arrived.
        parts = [(piece, values_N) for piece, values_N in held if self._plan.owners[piece.number] == self._rank]
        parts += [(one.piece, values_N) for one, values_N in zip(self._incoming, received, strict=True)]

        # A matrix that this rank holds completely is changed in place; a split one is assembled in new memory.
        owned: dict[int, Tensor] = {}
        for piece, values_N in parts:
            matrix_N = self._whole(owned, piece, values_N)
            if matrix_N is not values_N:
                matrix_N.narrow(0, piece.first, piece.size).copy_(values_N)

        transform(owned)

        # And back the same way: from the matrices to their pieces, and from the owners to the holders.
        for piece, values_N in parts:
            matrix_N = owned[piece.number]
            if matrix_N is not values_N:
                values_N.copy_(matrix_N.narrow(0, piece.first, piece.size))
        self._swap(received, outgoing, to_owners=False)

    def _whole(self, owned: dict[int, Tensor], piece: Piece, values_N: Tensor) -> Tensor:
        """Return the memory of a piece's matrix, which is the piece's own if the piece is the whole matrix."""
        size = prod(self._shapes[piece.number])
        if piece.number not in owned:
            owned[piece.number] = values_N if piece.size == size else torch.empty(size, device=self._device)
        return owned[piece.number]

    def _swap(self, sent: list[Tensor], received: list[Tensor], to_owners: bool) -> None:
        """Send pieces to their owners, or back. A collective call, which all ranks skip if no piece has to be sent."""
        if not self._anything_travels:
            return

        # Begin with an empty tensor, because torch.cat needs at least one.
        nothing = torch.empty(0, device=self._device)
        sent_N = torch.cat([nothing, *(values_N.to(self._device) for values_N in sent)])

        received_sizes = [values_N.numel() for values_N in received]
        received_N = torch.empty(sum(received_sizes), device=self._device)

        to_peers, from_peers = self._sizes_by_peer
        if not to_owners:
            to_peers, from_peers = from_peers, to_peers
        dist.all_to_all_single(received_N, sent_N, from_peers, to_peers)

        for values_N, arrived_N in zip(received, received_N.split(received_sizes), strict=True):
            values_N.copy_(arrived_N)

    @cached_property
    def _sizes_by_peer(self) -> tuple[list[int], list[int]]:
        """How many elements go to each rank on the way to the owners, and how many come from each."""
        to_peers = [0] * len(self._plan.pieces)
        from_peers = [0] * len(self._plan.pieces)
        for piece in self._outgoing:
            to_peers[self._plan.owners[piece.number]] += piece.size
        for one in self._incoming:
            from_peers[one.holder] += one.piece.size
        return to_peers, from_peers
