"""Random numbers one at a time, in plain integers: what the arrays of schemas/randomness.py are compared with."""

from __future__ import annotations

from schemas.randomness import GOLDEN, MIX_1, MIX_2

_BITS = (1 << 64) - 1


class Draws:
    """Draws numbers from one key, one at a time: the same as `numbers(key, 0)`, `numbers(key, 1)`, ..."""

    def __init__(self, draw_key: int):
        self._state = draw_key

    def number(self) -> int:
        """Return the next draw, an int below 2**64."""
        self._state = (self._state + GOLDEN) & _BITS
        x = self._state
        x = ((x ^ (x >> 30)) * MIX_1) & _BITS
        x = ((x ^ (x >> 27)) * MIX_2) & _BITS
        return x ^ (x >> 31)

    def uniform(self) -> float:
        """Return the next draw as a float in [0, 1)."""
        return (self.number() >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        """Return the next draw as an int in [0, n). The bias of this product is below n / 2**64."""
        return (self.number() * n) >> 64
