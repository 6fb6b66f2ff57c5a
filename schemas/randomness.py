"""Counter-based randomness: every draw is a pure function of (key, counter).

A key is made from identities (seed, purpose, document, epoch, row), never from a worker, a rank or the time, so any
process can draw any number in any order and get the same one. The generator is SplitMix64 (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014): the n-th draw is its finalizer over key + n * GOLDEN.

    key(7, "pairs", document)  ->  an int below 2**64
    numbers(keys_N, counters)  ->  N integers below 2**64
    uniforms(keys_N, counters) ->  N floats in [0, 1)
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: successive counters land far apart
MIX_1 = 0xBF58476D1CE4E5B9  # the constants of the published finalizer
MIX_2 = 0x94D049BB133111EB

U64 = NDArray[np.uint64]


def key(*parts: int | str | bytes) -> int:
    """Return a 64-bit key made from identities: BLAKE2b over the length-prefixed parts. It must never change."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")


def mix(x: U64) -> U64:
    """Return SplitMix64's finalizer of each number, a pseudorandom bijection of uint64. `x` is not changed."""
    shifted = x >> np.uint64(30)
    mixed = x ^ shifted
    mixed *= np.uint64(MIX_1)
    mixed ^= np.right_shift(mixed, np.uint64(27), out=shifted)
    mixed *= np.uint64(MIX_2)
    mixed ^= np.right_shift(mixed, np.uint64(31), out=shifted)
    return mixed


def numbers(keys: U64 | np.uint64, counters: NDArray[Any] | int) -> U64:
    """Return uint64 draws, one for each broadcast pair of key and counter."""
    steps = np.atleast_1d(counters).astype(np.uint64)  # numpy warns if scalars overflow, but not if arrays do
    return mix((steps + np.uint64(1)) * np.uint64(GOLDEN) + np.asarray(keys, dtype=np.uint64))


def uniforms(keys: U64 | np.uint64, counters: NDArray[Any] | int) -> NDArray[np.float64]:
    """Return float64 draws in [0, 1) with 53 random bits, one for each broadcast pair of key and counter."""
    return (numbers(keys, counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def scaled(draws: U64, limits: NDArray[Any] | int) -> U64:
    """Return `draw * limit >> 64`: draws of all 64 bits as integers in [0, limit), for limits up to 2**32.

    The product has up to 96 bits, so it is computed in two halves. The bias is below limit / 2**64.
    """
    factors = np.asarray(limits).astype(np.uint64)
    low = (draws & np.uint64(0xFFFFFFFF)) * factors >> np.uint64(32)
    return (low + (draws >> np.uint64(32)) * factors) >> np.uint64(32)


def permutation(n: int, permutation_key: int) -> NDArray[np.int64]:
    """Return (n,) int64: the numbers 0 to n - 1 in an order that depends only on `permutation_key`."""
    return np.argsort(numbers(np.uint64(permutation_key), np.arange(n)))  # no two of them are equal
