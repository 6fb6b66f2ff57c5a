"""Brings each matrix together on one rank, its owner, and what the owner makes of it back to all who hold its pieces.

    ZeRO 1, 2    A matrix belongs to the rank that holds most of it. Ranks hold long runs of whole matrices, so only
                 those at the edges travel: at most one less than there are ranks. Their smaller pieces go to the owner
                 and come back, in one all-to-all each way.
    stage 0      Every rank has everything. Matrices are dealt out by their work, and owners broadcast their results.

`traffic` says how many bytes that is in a step. On one rank nothing travels.

Shape suffixes: N elements of a matrix, laid flat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.optim.orthogonalize import work_of
from trainer.optim.pieces import Piece

BYTES = 4  # of a float32

Transform = Callable[[dict[int, Tensor]], None]
"""Changes the owned matrices in place, given by number as (N,) tensors."""


@dataclass(frozen=True)
class Plan:
    """Who holds what, and who owns what: the same on every rank.

    pieces: of every matrix, those of each rank. owners: the owner of each matrix. is_sharded: pieces are held once;
    otherwise every rank holds all matrices.
    """

    pieces: list[list[Piece]]
    owners: list[int]
    is_sharded: bool

    @classmethod
    def sharded(cls, pieces: list[list[Piece]], matrices: int) -> Plan:
        """Let each matrix belong to the rank with its largest piece, the first of several. pieces: of each rank."""
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
        """Deal matrices out, the costliest first, always to the rank that has least to do."""
        work_of_rank = [0] * ranks
        owners = [0] * len(shapes)
        for number in sorted(range(len(shapes)), key=lambda number: -work_of(shapes[number])):
            owner = work_of_rank.index(min(work_of_rank))
            owners[number] = owner
            work_of_rank[owner] += work_of(shapes[number])
        return cls([pieces] * ranks, owners, is_sharded=False)

    def traffic(self) -> int:
        """Return the bytes that ranks receive from others in a step, all ranks together."""
        if not self.is_sharded:
            elements = sum(piece.size for piece in self.pieces[0])
            return BYTES * elements * (len(self.pieces) - 1)

        # Once to the owner, and once back.
        return 2 * BYTES * sum(piece.size for _, piece in self.travelling())

    def travelling(self) -> list[tuple[int, Piece]]:
        """Return each piece that another rank than its matrix's owner holds, with its holder; by matrix and place."""
        found = []
        for holder, pieces in enumerate(self.pieces):
            found += [(holder, piece) for piece in pieces if self.owners[piece.number] != holder]
        return sorted(found, key=lambda one: (one[1].number, one[1].first))


class Exchange:
    """Runs a plan on one rank, whose matrices lie in one tensor (ZeRO 1 and 2) or in several (stage 0).

    device: where the process group's tensors must lie. Matrices of an offloaded optimizer are taken there.
    """

    def __init__(self, plan: Plan, shapes: Sequence[tuple[int, ...]], rank: int, device: torch.device):
        self._plan = plan
        self._shapes = shapes
        self._rank = rank
        self._device = device

        travelling = plan.travelling() if plan.is_sharded else []
        self._anything_travels = bool(travelling)
        self._outgoing = [piece for holder, piece in travelling if holder == rank]
        self._incoming = [(holder, piece) for holder, piece in travelling if plan.owners[piece.number] == rank]
        # all_to_all takes the data of peer 0 first, then that of peer 1, and so on.
        self._outgoing.sort(key=lambda piece: plan.owners[piece.number])
        self._incoming.sort(key=lambda one: one[0])

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

        if len(self._plan.pieces) > 1:
            calls: list[Any] = []
            for piece, values_N in held:
                calls.append(dist.broadcast(values_N, owners[piece.number], async_op=True))
            for call in calls:
                call.wait()

    def _transform_sharded(self, held: list[tuple[Piece, Tensor]], transform: Transform) -> None:
        values_of = {(piece.number, piece.first): values_N for piece, values_N in held}
        outgoing = [values_of[piece.number, piece.first] for piece in self._outgoing]
        received = [torch.empty(piece.size, device=self._device) for _, piece in self._incoming]
        self._swap(outgoing, received, to_owners=True)

        # Whole matrices are changed where they are, those that were cut in memory of their own.
        owned: dict[int, Tensor] = {}
        parts = [(piece, values_N) for piece, values_N in held if self._plan.owners[piece.number] == self._rank]
        parts += [(piece, values_N) for (_, piece), values_N in zip(self._incoming, received, strict=True)]
        for piece, values_N in parts:
            matrix_N = self._whole(owned, piece, values_N)
            if matrix_N is not values_N:
                matrix_N.narrow(0, piece.first, piece.size).copy_(values_N)

        transform(owned)
        for piece, values_N in parts:
            if owned[piece.number] is not values_N:
                values_N.copy_(owned[piece.number].narrow(0, piece.first, piece.size))
        self._swap(received, outgoing, to_owners=False)

    def _whole(self, owned: dict[int, Tensor], piece: Piece, values_N: Tensor) -> Tensor:
        """Return the memory of a piece's matrix, which is that of the piece if that is the whole matrix."""
        size = prod(self._shapes[piece.number])
        if piece.number not in owned:
            owned[piece.number] = values_N if piece.size == size else torch.empty(size, device=self._device)
        return owned[piece.number]

    def _swap(self, sent: list[Tensor], received: list[Tensor], to_owners: bool) -> None:
        """Send pieces to their owners, or back. Every rank takes part, or none."""
        if not self._anything_travels:
            return

        sent_N = torch.cat([torch.empty(0, device=self._device), *(values_N.to(self._device) for values_N in sent)])
        received_N = torch.empty(sum(values_N.numel() for values_N in received), device=self._device)
        to_peers, from_peers = self._sizes_by_peer
        if not to_owners:
            to_peers, from_peers = from_peers, to_peers
        dist.all_to_all_single(received_N, sent_N, from_peers, to_peers)

        for values_N, arrived_N in zip(received, received_N.split([one.numel() for one in received]), strict=True):
            values_N.copy_(arrived_N)

    @cached_property
    def _sizes_by_peer(self) -> tuple[list[int], list[int]]:
        """How many elements go to each rank on the way to the owners, and how many come from each."""
        to_peers = [0] * len(self._plan.pieces)
        from_peers = [0] * len(self._plan.pieces)
        for piece in self._outgoing:
            to_peers[self._plan.owners[piece.number]] += piece.size
        for holder, piece in self._incoming:
            from_peers[holder] += piece.size
        return to_peers, from_peers
