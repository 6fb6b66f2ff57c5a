"""All segmentations of many strings into tokens, summed up at once (the E step of Kudo 2018, arXiv:1804.10959).

The lattice of a string has a node before each character and one at the end. An edge is a token that occurs there: it
leads from the node before its first character to the node after its last one. Strings are sorted by length, the longest
first, so those that have a node j are the first ones. Edges with equal starts and lengths form a block: they lead from
level i to level i + length, each between two nodes of a different string. So a block is one array operation, and a
chunk of strings takes a few hundred of them.

In long strings, sums over paths would exceed the range of floats. Each node therefore has a potential, the lowest sum
of whole binary exponents of the tokens that lead to it, and sums are stored relative to it. This needs no logarithm,
and whole numbers are the same on every processor:

    probability  =  mantissa * 2 ** -cost                     of a token; costs are whole numbers
    potential    =  the lowest sum of costs of any path        from the beginning of the string to a node
    forward      =  (sum of all these paths' probabilities) * 2 ** potential

Shape suffixes: N strings of a chunk, E edges of a chunk, S tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.words.arrow import Ints
from schemas.ragged import offsets_of

Ids = NDArray[np.int32]
Floats = NDArray[np.float64]

MAX_TOKEN = 16  # characters, as in sentencepiece

STRINGS_AT_ONCE = 1 << 14
"""Strings per chunk: few enough for its arrays to stay in the processor's cache."""

POWERS = np.ldexp(1.0, -np.arange(1100))
"""2 ** -n for each n. Below 2 ** -1074 they are 0, so the last one stands for all higher n."""

UNREACHED = np.iinfo(np.int32).max // 2
"""The potential of a node that no path has reached yet. Adding a cost to it does not overflow."""


@dataclass(frozen=True)
class Occurrences:
    """Where the substrings of one length are: substring `token_P[p]` begins at character `positions_P[p]`, sorted."""

    positions_P: Ids
    token_P: Ids


@dataclass(frozen=True)
class Block:
    """The edges `edges` of a chunk: from level `start`, over tokens of `length` characters."""

    start: int
    length: int
    edges: slice


class Chunk:
    """The lattices of N strings, sorted by length, the longest first. Every node is on some path from start to end."""

    def __init__(self, lengths_N: Ints, counts_N: Ints, string_E: Ids, token_E: Ids, block_ends: Ints):
        """`block_ends`: where blocks end among the edges, one for each (start, length) in this order."""
        self._lengths_N = lengths_N
        self._counts_N = counts_N.astype(np.float64)
        self._string_E = string_E
        self._token_E = token_E
        self._block_ends = block_ends

        self._levels = int(lengths_N.max(initial=0))
        # The first `_widths[j]` strings have a node at level j.
        self._widths = np.searchsorted(-lengths_N, -np.arange(self._levels + 1), side="right").tolist()

    def add_expected(self, probability_S: Floats, expected_S: Floats) -> None:
        """Add to `expected_S` how often each token is expected in the strings, over all of their segmentations."""
        mantissa_S, exponent_S = np.frexp(probability_S)
        cost_E = -exponent_S[self._token_E]

        # At first, the factor by which each edge multiplies a sum. The backward pass replaces it by the edge's expected
        # count.
        weight_E = mantissa_S[self._token_E]
        forward = self._sum_forward(weight_E, cost_E)
        self._count_backward(weight_E, forward)
        np.add.at(expected_S, self._token_E, weight_E)

    def _sum_forward(self, weight_E: Floats, cost_E: NDArray[np.int32]) -> list[Floats]:
        """Return the sums over all paths to each node, by level, relative to the nodes' potentials.

        weight_E: the mantissas of the edges' tokens. Changed in place to weights between nodes with potentials.
        """
        potentials = [np.full(width, UNREACHED, dtype=np.int32) for width in self._widths]
        potentials[0][:] = 0
        forward = [np.zeros(width) for width in self._widths]
        forward[0][:] = 1.0

        for blocks in self._blocks_by_end():
            # A level's potentials must be final before the first sum is made relative to them.
            self._lower_potentials(blocks, cost_E, potentials)

            for block in blocks:
                strings = self._string_E[block.edges]
                end = block.start + block.length

                # Sums at both ends are relative to their nodes' potentials, so the edge's weight includes the
                # difference.
                slack = potentials[block.start][strings] + cost_E[block.edges] - potentials[end][strings]
                weight_E[block.edges] *= POWERS[np.minimum(slack, len(POWERS) - 1)]
                forward[end][strings] += forward[block.start][strings] * weight_E[block.edges]
        return forward

    def _count_backward(self, weight_E: Floats, forward: list[Floats]) -> None:
        """Replace the weight of each edge by how often its token is expected there.

        That is the share of all paths that use the edge, times the string's count: (sum of the paths before it) *
        weight * (sum of the paths after it) / (sum of whole paths).
        """
        backward = [np.zeros(width) for width in self._widths]
        self._start_at_ends(backward, forward)

        for blocks in reversed(list(self._blocks_by_end())):
            for block in blocks:
                strings = self._string_E[block.edges]
                end = block.start + block.length

                arriving = backward[end][strings] * weight_E[block.edges]
                backward[block.start][strings] += arriving
                weight_E[block.edges] = forward[block.start][strings] * arriving

    def best_inner(self, probability_S: Floats) -> tuple[Ids, Ids]:
        """Return the tokens of each string's best segmentation, other than the string as one token.

        Returns (strings, tokens) of equal lengths, in any order. Strings must have at least two characters, and few
        enough that the product of their tokens' probabilities does not underflow.
        """
        best = [np.zeros(width) for width in self._widths]
        best[0][:] = 1.0
        last_edge = [np.full(width, -1) for width in self._widths]

        for blocks in self._blocks_by_end():
            for block in blocks:
                strings = self._string_E[block.edges]
                end = block.start + block.length
                found = best[block.start][strings] * probability_S[self._token_E[block.edges]]

                # An edge as long as its string is the whole string as one token.
                is_whole = self._lengths_N[strings] == block.length
                is_better = (found > best[end][strings]) & ~is_whole

                edges = np.flatnonzero(is_better)
                best[end][strings[edges]] = found[edges]
                last_edge[end][strings[edges]] = block.edges.start + edges

        return self._walk_back(last_edge)

    def _walk_back(self, last_edge: list[Ints]) -> tuple[Ids, Ids]:
        """Return the strings and tokens of the edges on the best paths. last_edge: of the best path to each node."""
        strings = []
        tokens = []

        # The current level of each string's walk. It begins at the string's end, and skips the levels inside of its
        # tokens.
        level_N = self._lengths_N.copy()
        for level in range(self._levels, 0, -1):
            here = np.flatnonzero(level_N[: self._widths[level]] == level)
            edges = last_edge[level][here]
            strings.append(here.astype(np.int32))
            tokens.append(self._token_E[edges])
            level_N[here] -= self._length_of_edges(edges)

        return np.concatenate(strings), np.concatenate(tokens)

    def _length_of_edges(self, edges: Ints) -> Ints:
        # Blocks are numbered start * MAX_TOKEN + length - 1.
        block_of_edges = np.searchsorted(self._block_ends, edges, side="right")
        return block_of_edges % MAX_TOKEN + 1

    def keep(self, numbers_S: Ids) -> None:
        """Renumber tokens; tokens with number -1 are removed."""
        token_E = numbers_S[self._token_E]
        is_kept_E = token_E >= 0

        # A block's end moves back by the number of removed edges before it.
        kept_before_E1 = offsets_of(is_kept_E)
        self._block_ends = kept_before_E1[self._block_ends]
        self._token_E = token_E[is_kept_E]
        self._string_E = self._string_E[is_kept_E]

    def _blocks_by_end(self) -> Iterator[list[Block]]:
        """Yield the blocks that lead to level 1, 2 and so on, without empty ones."""
        for end in range(1, self._levels + 1):
            starts = range(max(0, end - MAX_TOKEN), end)
            blocks = [self._block(start, end - start) for start in starts]
            yield [block for block in blocks if block.edges.start < block.edges.stop]

    def _block(self, start: int, length: int) -> Block:
        number = start * MAX_TOKEN + length - 1
        first = int(self._block_ends[number - 1]) if number > 0 else 0
        last = int(self._block_ends[number])
        return Block(start, length, slice(first, last))

    def _lower_potentials(self, blocks: list[Block], cost_E: NDArray[np.int32], potentials: list[Ids]) -> None:
        """Set the potentials of the level to which these blocks lead."""
        for block in blocks:
            strings = self._string_E[block.edges]
            end = block.start + block.length

            arriving = potentials[block.start][strings] + cost_E[block.edges]
            potentials[end][strings] = np.minimum(potentials[end][strings], arriving)

    def _start_at_ends(self, backward: list[Floats], forward: list[Floats]) -> None:
        """Start the backward pass: at the end of each string, its count divided by the sum of all its paths."""
        for level in range(1, self._levels + 1):
            strings = np.flatnonzero(self._lengths_N[: self._widths[level]] == level)
            backward[level][strings] = self._counts_N[strings] / forward[level][strings]


def chunks_of(lengths_N: Ints, counts_N: Ints, occurrences: list[Occurrences]) -> list[Chunk]:
    """Return the lattices of all strings, the longest first, given where tokens of each length occur in them."""
    offsets_N1 = offsets_of(lengths_N)
    chunks = []
    for first in range(0, len(lengths_N), STRINGS_AT_ONCE):
        last = min(first + STRINGS_AT_ONCE, len(lengths_N))
        edges = [_edges_in(layer, offsets_N1[first : last + 1]) for layer in occurrences]
        chunks.append(_chunk(lengths_N[first:last], counts_N[first:last], edges))
    return chunks


def _edges_in(layer: Occurrences, offsets_N1: Ints) -> tuple[Ints, Ints, Ids]:
    """Return (start level, string, token) of the tokens of one length in some strings, by string and start."""
    # Convert the bounds to the positions' type; otherwise numpy would copy all positions to the type of the offsets.
    bounds = offsets_N1[[0, -1]].astype(layer.positions_P.dtype)
    begin, end = np.searchsorted(layer.positions_P, bounds)
    positions = layer.positions_P[begin:end]

    strings = np.searchsorted(offsets_N1, positions, side="right") - 1
    return positions - offsets_N1[strings], strings, layer.token_P[begin:end]


def _chunk(lengths_N: Ints, counts_N: Ints, edges: list[tuple[Ints, Ints, Ids]]) -> Chunk:
    """Return a chunk's lattices. edges: the results of `_edges_in` for tokens of length 1, 2 and so on."""
    blocks = [starts * MAX_TOKEN + length - 1 for length, (starts, _, _) in enumerate(edges, start=1)]
    block_E = np.concatenate(blocks)
    string_E = np.concatenate([strings for _, strings, _ in edges]).astype(np.int32)
    token_E = np.concatenate([tokens for _, _, tokens in edges])

    # Edges come by length, then by string and start. The sort by block is stable, so a block's edges stay in string
    # order.
    order = np.argsort(block_E, kind="stable")
    string_E = string_E[order]
    token_E = token_E[order]

    num_blocks = int(lengths_N.max(initial=0)) * MAX_TOKEN
    block_ends = np.cumsum(np.bincount(block_E, minlength=num_blocks))
    return Chunk(lengths_N, counts_N, string_E, token_E, block_ends)
