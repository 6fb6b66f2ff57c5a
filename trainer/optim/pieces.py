"""Finds the pieces of whole tensors that a rank updates, after DeepSpeed has replaced them with its own tensors.

Some optimizers need a quantity of a whole matrix: its norm (LAMB), or the mean of squared ratios (StableAdamW). Under
ZeRO 1 and 2 each rank holds one contiguous part of a flat float32 tensor per parameter group, in which matrices begin
and end anywhere. This module finds which elements of which matrix a rank holds, and where.

Shape suffixes: N elements of one matrix or vector, laid flat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor

from trainer.distributed.deepspeed_internals import flat_slice_of, is_in_flat_group

RowCounts = Mapping[Tensor, Sequence[int]]
"""The number of rows of each matrix, in order, for parameters that stack several matrices."""


@dataclass(frozen=True)
class Piece:
    """All or part of whole tensor number `number`, as it is held on a rank.

    Its `size` elements begin at `start` in the flattened tensor that the rank holds, and at `first` in the flattened
    whole tensor.
    """

    number: int
    start: int
    first: int
    size: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return a view of these elements, (N,)."""
        return tensor.view(-1)[self.start : self.start + self.size]


@dataclass(frozen=True)
class HeldElements:
    """The part of a parameter that this rank updates.

    Its `size` elements begin at `first` in the flattened parameter, and at `start` in `tensor`.
    """

    tensor: Tensor
    start: int
    first: int
    size: int


class Pieces:
    """The pieces that this rank holds of all whole tensors in some parameter groups.

    Whole tensors are numbered in the order of the groups' parameters, whether this rank holds them or not, so a number
    means the same tensor on every rank.

    shapes: of each whole tensor, by number. of_tensor: the pieces in each tensor that this rank updates. is_sharded:
    whether each rank has different pieces (ZeRO 1 and 2); otherwise every rank has all tensors in full.
    """

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.of_tensor: dict[Tensor, list[Piece]] = {}
        self.is_sharded = False

    def add_group(self, tensors: list[Tensor], parameters: list[Any], row_counts: RowCounts) -> None:
        """Add the tensors of a group.

        tensors: those that the group holds now. parameters: the model's, from which the group was made. row_counts: of
        parameters that stack several matrices; each of these matrices counts as a whole tensor.
        """
        for place, parameter in enumerate(parameters):
            held = _held_elements(tensors, place, parameter)
            shapes = _shapes_of_parts(parameter, row_counts)

            pieces = list(_pieces_by_part(held, shapes, len(self.shapes)))
            self.of_tensor.setdefault(held.tensor, []).extend(pieces)
            self.shapes += shapes
            if is_in_flat_group(parameter):
                self.is_sharded = True


def _held_elements(tensors: list[Tensor], place: int, parameter: Any) -> HeldElements:
    """Return the part that this rank updates of the parameter at `place` in its group.

    tensors: those that the group holds now. Without ZeRO there is one for each parameter: the parameter itself or its
    float32 copy. ZeRO has one flat tensor for the whole group.
    """
    if not is_in_flat_group(parameter):
        return HeldElements(tensors[place], start=0, first=0, size=parameter.numel())

    start, first, size = flat_slice_of(parameter)
    return HeldElements(tensors[0], start, first, size)


def _shapes_of_parts(parameter: Tensor, row_counts: RowCounts) -> list[tuple[int, ...]]:
    """Return the shape of a parameter, or of each matrix that it stacks. Raises ValueError if their rows do not fit."""
    rows, *others = parameter.shape or (1,)
    counts = row_counts.get(parameter, [rows])
    if sum(counts) != rows:
        raise ValueError(f"matrices of {list(counts)} rows do not make a parameter of {rows} rows")
    return [(count, *others) for count in counts]


def _pieces_by_part(held: HeldElements, shapes: list[tuple[int, ...]], first_number: int) -> Iterator[Piece]:
    """Cut held elements where one whole tensor ends and the next begins. Tensors are numbered from `first_number`.

    Example: of two matrices of 10 elements, the 12 elements from element 5 on are 5 of matrix 0 and 7 of matrix 1.
    """
    held_end = held.first + held.size
    begin = 0

    for number, shape in enumerate(shapes, start=first_number):
        end = begin + prod(shape)
        first = max(begin, held.first)
        last = min(end, held_end)
        if first < last:
            yield Piece(number, held.start + first - held.first, first - begin, last - first)
        begin = end
