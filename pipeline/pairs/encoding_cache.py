"""Encoded strings, and a cache of them that looks up many strings in one call.

A large Python dictionary takes half a microsecond to look up a string, mostly waiting for memory, one string after the
other. The cache stores a string of at most 16 bytes as two integers, its key, in a hash table of arrays. So comparing
keys compares strings, and thousands of lookups wait for memory at the same time.

Shape suffixes: N strings of a call, T tokens of all strings, S slots of the table. N1 has one element more than N. Key
arrays have two columns.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.words.arrow import Bools, Bytes, Ints, bytes_of
from schemas.ragged import offsets_of, take_ranges
from schemas.randomness import GOLDEN, MIX_1, MIX_2, U64

KEY_BYTES = 16
MISSING = -1

_WORD_BYTES = 8
_COLUMNS = KEY_BYTES // _WORD_BYTES
_FIRST_SLOTS = 1 << 12
_MIXERS = (np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2))

# Masks for the lowest 0, 1, ... 8 bytes of a word.
_LOWEST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(_WORD_BYTES + 1)], dtype=np.uint64)

MarkWords = Callable[[list[str], list[list[str]]], NDArray[np.int8]]
"""A function from texts and the words of each to marks of all characters of all words (word_segmentation.py)."""


class EncodedStrings(NamedTuple):
    """N strings end to end: string i is ids_T[offsets_N1[i] : offsets_N1[i + 1]].

    marks_T has the mark of each token's first character, according to the encoder's `mark_words`. It is None if there
    is no such function.
    """

    ids_T: NDArray[np.int32]
    offsets_N1: Ints
    marks_T: NDArray[np.int8] | None

    def take(self, indices: Ints) -> EncodedStrings:
        """Return the strings with these indices, in this order."""
        starts = self.offsets_N1[indices]
        lengths = self.offsets_N1[indices + 1] - starts

        ids_T = take_ranges(self.ids_T, starts, lengths)
        marks_T = None
        if self.marks_T is not None:
            marks_T = take_ranges(self.marks_T, starts, lengths)
        return EncodedStrings(ids_T, offsets_of(lengths), marks_T)


def concatenate(parts: list[EncodedStrings], with_marks: bool) -> EncodedStrings:
    """Return the strings of all parts in order. If `with_marks`, all parts must have marks_T."""
    no_id = np.zeros(0, dtype=np.int32)
    ids_T = np.concatenate([no_id, *[part.ids_T for part in parts]])
    lengths = [np.diff(part.offsets_N1) for part in parts]
    offsets_N1 = offsets_of(np.concatenate([np.zeros(0, dtype=np.int64), *lengths]))

    marks_T = None
    if with_marks:
        marks = [part.marks_T for part in parts if part.marks_T is not None]
        marks_T = np.concatenate([np.zeros(0, dtype=np.int8), *marks])
    return EncodedStrings(ids_T, offsets_N1, marks_T)


def merge_encoded(zeros: EncodedStrings, ones: EncodedStrings, from_ones_N: NDArray[np.bool_]) -> EncodedStrings:
    """Merge two lists of strings: take the next of `ones` where `from_ones_N` is true, else the next of `zeros`."""
    both = concatenate([zeros, ones], with_marks=zeros.marks_T is not None)
    ones_before_N = offsets_of(from_ones_N)[:-1]
    zeros_before_N = np.arange(len(from_ones_N)) - ones_before_N
    zeros_count = len(zeros.offsets_N1) - 1
    return both.take(np.where(from_ones_N, zeros_count + ones_before_N, zeros_before_N))


class EncodingCache:
    """Distinct strings and their ids, numbered in the order in which they were added.

    Not thread-safe: `add` changes several attributes, one after the other.
    """

    def __init__(self, with_marks: bool = False):
        """Make an empty cache. `with_marks`: whether strings come with `marks_T`."""
        self.bytes = 0  # of strings and ids
        self._numbers_of_keys = KeyTable()
        self._numbers_of_others: dict[str, int] = {}  # strings without a key; see keys_of
        self._ids = GrowingArray(np.int32)
        self._offsets = GrowingArray(np.int64)
        self._offsets.append(np.zeros(1, dtype=np.int64))
        self._marks = GrowingArray(np.int8) if with_marks else None

    def __len__(self) -> int:
        """Return the number of strings."""
        return len(self._offsets.values) - 1

    @property
    def encoded(self) -> EncodedStrings:
        """All strings of the cache, in the order of their numbers."""
        marks_T = None if self._marks is None else self._marks.values
        return EncodedStrings(self._ids.values, self._offsets.values, marks_T)

    def find(self, strings: pa.Array) -> Ints:
        """Return (N,) int64: the numbers of strings, MISSING for those that the cache does not contain."""
        keys, has_key_N = keys_of(strings)
        numbers_N = np.full(len(strings), MISSING)
        numbers_N[has_key_N] = self._numbers_of_keys.find(keys[has_key_N])

        others = strings.filter(pa.array(~has_key_N)).to_pylist()
        found = map(self._numbers_of_others.get, others, repeat(MISSING))
        numbers_N[~has_key_N] = np.fromiter(found, np.int64, len(others))
        return numbers_N

    def add(self, strings: pa.Array, encoded: EncodedStrings) -> Ints:
        """Add N distinct strings that the cache does not contain, and return their numbers, (N,) int64.

        `encoded` has the ids of these strings, in the same order.
        """
        first = len(self)
        numbers_N = np.arange(first, first + len(strings))
        keys, has_key_N = keys_of(strings)
        self._numbers_of_keys.add(keys[has_key_N], numbers_N[has_key_N])
        others = strings.filter(pa.array(~has_key_N)).to_pylist()
        self._numbers_of_others.update(zip(others, numbers_N[~has_key_N].tolist(), strict=True))

        self.bytes += len(bytes_of(strings)[0]) + encoded.ids_T.nbytes
        self._offsets.append(self._offsets.values[-1] + encoded.offsets_N1[1:])
        self._ids.append(encoded.ids_T)
        if self._marks is not None and encoded.marks_T is not None:
            self._marks.append(encoded.marks_T)
        return numbers_N


class GrowingArray:
    """An array that values are appended to. Its memory doubles when it is full."""

    def __init__(self, dtype: Any):
        self._memory: NDArray[Any] = np.zeros(1024, dtype=dtype)
        self._length = 0

    @property
    def values(self) -> NDArray[Any]:
        """The values so far. A view: it stays valid and unchanged when more values are appended."""
        return self._memory[: self._length]

    def append(self, values: NDArray[Any]) -> None:
        """Append values."""
        end = self._length + len(values)
        if end > len(self._memory):
            larger = np.zeros(max(end, 2 * len(self._memory)), dtype=self._memory.dtype)
            larger[: self._length] = self.values
            self._memory = larger

        self._memory[self._length : end] = values
        self._length = end


def keys_of(strings: pa.Array) -> tuple[U64, Bools]:
    """Return (N, 2) uint64 keys, and (N,) bool: which strings have one, those of 1 to 16 bytes without NUL.

    A key is the string's bytes, padded with NUL.
    """
    text, offsets_N1 = bytes_of(strings)
    starts_N = offsets_N1[:-1]
    lengths_N = np.diff(offsets_N1)
    has_key_N = (lengths_N > 0) & (lengths_N <= KEY_BYTES)
    if len(text) > 0 and text.min() == 0:
        nuls_before_N1 = np.searchsorted(np.flatnonzero(text == 0), offsets_N1)
        has_key_N &= np.diff(nuls_before_N1) == 0

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
        return (slots + 1) & (len(self._numbers_S) - 1)


def _words_at_every_byte(text: Bytes) -> U64:
    """Return (T + 16,) uint64: the 8 bytes that begin at each byte of a text, and at each of 16 NULs after it."""
    padded = np.zeros(len(text) + KEY_BYTES + _WORD_BYTES, dtype=np.uint8)
    padded[: len(text)] = text
    words = np.ndarray(shape=(len(text) + KEY_BYTES,), dtype="<u8", buffer=padded, strides=(1,))
    return words
