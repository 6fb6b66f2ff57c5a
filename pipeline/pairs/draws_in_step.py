"""The random numbers of many documents at once: for each the same ones, in the same order, as `Draws` of its key.

Each call draws one number, or several, for all documents or for some of them. `which` names those, as an index into
arrays of A elements, with each document once.

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
    """The streams of A documents, and how many numbers each has drawn."""

    def __init__(self, key_A: U64, drawn_A: Ints | None = None):
        """Start at the beginning of each key's stream, or after `drawn_A` numbers."""
        self._key_A = key_A
        self._drawn_A = np.zeros(len(key_A), dtype=np.int64) if drawn_A is None else drawn_A

    def only(self, which: Which) -> DrawsInStep:
        """Return the streams of these documents alone, from where they are."""
        return DrawsInStep(self._key_A[which], self._drawn_A[which])

    def of_one(self, a: int) -> Draws:
        """Return the stream of one document, from where it is."""
        draws = Draws(int(self._key_A[a]))
        draws.skip(int(self._drawn_A[a]))
        return draws

    def numbers(self, which: Which = ALL) -> U64:
        """Return the next random number of each document, as `Draws.number` does."""
        drawn = numbers(self._key_A[which], self._drawn_A[which])
        self._drawn_A[which] += 1
        return drawn

    def below(self, limit: Ints | int, which: Which = ALL) -> Ints:
        """Return the next draw of each document as an integer in [0, limit), as `Draws.below` does.

        That is number * limit >> 64, here in two halves of 32 bits because the product has up to 96. limit < 2**32.
        """
        number = self.numbers(which)
        limits = np.asarray(limit).astype(np.uint64)
        low = (number & np.uint64(0xFFFFFFFF)) * limits >> np.uint64(32)
        high = (number >> np.uint64(32)) * limits
        return ((high + low) >> np.uint64(32)).astype(np.int64)

    def fair_coins(self, coins: Ints, which: Ints) -> Ints:
        """Return how many of these numbers of fair coins show heads, as `nsp_sop.fair_coins` does."""
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
