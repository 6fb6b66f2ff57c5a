"""Random numbers for many documents at once, equal in value and order to those of `Draws` with each document's key.

Each call draws one number, or several, for all documents or for some of them. `which` selects those: an index into
arrays of A elements, in which each document occurs at most once.

Shape suffix: A documents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schemas.randomness import U64, Draws, numbers

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Which = Ints | Bools | slice
ALL = slice(None)


class DrawsInStep:
    """The random streams of A documents, and how many numbers each has drawn."""

    def __init__(self, key_A: U64, drawn_A: Ints | None = None):
        """Start at the beginning of each key's stream, or after `drawn_A` numbers."""
        self._key_A = key_A
        self._drawn_A = np.zeros(len(key_A), dtype=np.int64) if drawn_A is None else drawn_A

    def only(self, which: Which) -> DrawsInStep:
        """Return the streams of these documents alone, at their current positions."""
        return DrawsInStep(self._key_A[which], self._drawn_A[which])

    def of_one(self, a: int) -> Draws:
        """Return the stream of one document, at its current position."""
        draws = Draws(int(self._key_A[a]))
        draws.skip(int(self._drawn_A[a]))
        return draws

    def numbers(self, which: Which = ALL) -> U64:
        """Return (A,) uint64: the next random number of each selected document, as `Draws.number` does."""
        drawn = numbers(self._key_A[which], self._drawn_A[which])
        self._drawn_A[which] += 1
        return drawn

    def below(self, limit: Ints | int, which: Which = ALL) -> Ints:
        """Return the next draw of each document as an integer in [0, limit), as `Draws.below` does.

        That is number * limit >> 64. The product has up to 96 bits, so it is computed in two halves. limit < 2**32.
        """
        number = self.numbers(which)
        limits = np.asarray(limit).astype(np.uint64)
        low = (number & np.uint64(0xFFFFFFFF)) * limits >> np.uint64(32)
        high = (number >> np.uint64(32)) * limits
        return ((high + low) >> np.uint64(32)).astype(np.int64)

    def fair_coins(self, coins: Ints, which: Ints) -> Ints:
        """Toss `coins` fair coins for each document, and return how many show heads, as `nsp_sop.fair_coins` does."""
        heads = np.zeros(len(coins), dtype=np.int64)
        left = coins.copy()
        tossing = np.flatnonzero(left)

        while len(tossing) > 0:
            tossed = np.minimum(left[tossing], 64)
            unused_bits = (64 - tossed).astype(np.uint64)
            lowest_bits = self.numbers(which[tossing]) << unused_bits
            heads[tossing] += np.bitwise_count(lowest_bits)

            left[tossing] -= tossed
            tossing = tossing[left[tossing] > 0]
        return heads
