"""A hash table from short strings to numbers that looks up all strings of a chunk at once, in array operations.

A large Python dictionary takes half a microsecond to look up a string, mostly waiting for memory, one string after the
other. Here a string of at most 16 bytes is stored as two integers. So comparing keys compares strings, and thousands of
lookups wait for memory at the same time.

Shape suffixes: N strings, S slots. Key arrays have two columns.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.pairs.pieces import Bools, Bytes, Ints, bytes_of
from schemas.randomness import U64

KEY_BYTES = 16
MISSING = -1

_WORD_BYTES = 8
_COLUMNS = KEY_BYTES // _WORD_BYTES
_FIRST_SLOTS = 1 << 12
_MIXERS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of SplitMix64

# Masks for the lowest 0, 1, ... 8 bytes of a word.
_LOWEST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(_WORD_BYTES + 1)], dtype=np.uint64)


def keys_of(strings: pa.Array) -> tuple[U64, Bools]:
    """Return (N, 2) uint64 keys, and (N,) bool: which strings have one, those of 1 to 16 bytes without NUL.

    A key is the string's bytes, padded with NUL.
    """
    text, offsets_N1 = bytes_of(strings)
    starts_N = offsets_N1[:-1]
    lengths_N = np.diff(offsets_N1)
    has_key_N = (lengths_N > 0) & (lengths_N <= KEY_BYTES)
    if len(text) > 0 and text.min() == 0:
        has_key_N &= ~_holds_nul(text, offsets_N1)

    words_at = _words_at_every_byte(text)
    keys = np.empty((len(strings), _COLUMNS), dtype=np.uint64)
    for column in range(_COLUMNS):
        begin = column * _WORD_BYTES  # of this column's bytes, in each string
        own_bytes_N = np.clip(lengths_N - begin, 0, _WORD_BYTES)

        # The 8 bytes at a position may extend into the next string, so only the string's own are kept.
        keys[:, column] = words_at[starts_N + begin] & _LOWEST_BYTES[own_bytes_N]
    return keys, has_key_N


class KeyTable:
    """Distinct keys, each with a number. Not thread-safe.

    Open addressing with linear probing (Knuth, The Art of Computer Programming, volume 3, section 6.4): a key is in the
    first slot that was free when it was added, starting from its hash. At most half of the slots are taken.
    """

    def __init__(self) -> None:
        self._count = 0
        self._make_slots(_FIRST_SLOTS)

    def find(self, keys: U64) -> Ints:
        """Return (N,) int64: the numbers of keys, MISSING for those that the table does not contain."""
        numbers_N = np.full(len(keys), MISSING)
        wanted = np.arange(len(keys))  # the keys that are not resolved yet
        slots = self._first_slots(keys)  # the slot in which each is searched

        while len(wanted) > 0:
            found = self._numbers_S[slots].astype(np.int64)
            is_taken = found != MISSING
            is_match = is_taken & (self._keys_S[slots] == keys[wanted]).all(axis=1)
            numbers_N[wanted[is_match]] = found[is_match]

            # A free slot means that the table lacks the key. A slot with another key means to continue with the next
            # slot.
            continues = is_taken & ~is_match
            wanted = wanted[continues]
            slots = self._next_slots(slots[continues])
        return numbers_N

    def add(self, keys: U64, numbers_N: Ints) -> None:
        """Add N distinct keys that the table does not contain."""
        self._count += len(keys)
        slots_needed = 2 * self._count
        if slots_needed > len(self._numbers_S):
            self._grow(slots_needed)
        self._insert(keys, numbers_N.astype(np.int32))

    def _grow(self, slots_needed: int) -> None:
        """Move all keys to a larger table of two to four times the slots needed, so that this is rare."""
        taken = np.flatnonzero(self._numbers_S != MISSING)
        old_keys = self._keys_S[taken]
        old_numbers = self._numbers_S[taken]

        next_power_of_two = 1 << (2 * slots_needed - 1).bit_length()
        self._make_slots(next_power_of_two)
        self._insert(old_keys, old_numbers)

    def _make_slots(self, count: int) -> None:
        """Make empty slots; `count` is a power of two."""
        self._numbers_S = np.full(count, MISSING, dtype=np.int32)
        self._keys_S = np.zeros((count, _COLUMNS), dtype=np.uint64)

    def _insert(self, keys: U64, numbers_N: NDArray[np.int32]) -> None:
        waiting = np.arange(len(keys))
        slots = self._first_slots(keys)
        while len(waiting) > 0:
            # Several keys may want the same free slot. All write to it, the last write wins, and the key found there
            # keeps the slot.
            is_free = self._numbers_S[slots] == MISSING
            self._numbers_S[slots[is_free]] = numbers_N[waiting[is_free]]
            has_slot = self._numbers_S[slots] == numbers_N[waiting]
            self._keys_S[slots[has_slot]] = keys[waiting[has_slot]]

            waiting = waiting[~has_slot]
            slots = self._next_slots(slots[~has_slot])

    def _first_slots(self, keys: U64) -> Ints:
        """Return (N,) int64: the hash of each key, from the upper bits of products with odd constants."""
        mixed = keys[:, 0] * _MIXERS[0]
        mixed ^= keys[:, 1] * _MIXERS[1]
        mixed ^= mixed >> np.uint64(32)
        mixed *= _MIXERS[2]
        bits = len(self._numbers_S).bit_length() - 1
        mixed >>= np.uint64(64 - bits)
        return mixed.astype(np.int64)

    def _next_slots(self, slots: Ints) -> Ints:
        """Return the slots after these, wrapping around at the end."""
        return (slots + 1) & (len(self._numbers_S) - 1)


def _words_at_every_byte(text: Bytes) -> U64:
    """Return (T + 16,) uint64: the 8 bytes that begin at each byte of a text, and at each of 16 NULs after it."""
    padded = np.zeros(len(text) + KEY_BYTES + _WORD_BYTES, dtype=np.uint8)
    padded[: len(text)] = text
    words = np.ndarray(shape=(len(text) + KEY_BYTES,), dtype="<u8", buffer=padded, strides=(1,))
    return words


def _holds_nul(text: Bytes, offsets_N1: Ints) -> Bools:
    """Return (N,) which strings hold a NUL byte."""
    places = np.flatnonzero(text == 0)
    return np.diff(np.searchsorted(places, offsets_N1)) > 0
