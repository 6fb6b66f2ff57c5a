"""A bounded, thread-safe memory for what a process has learned about the files that it reads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class RecentValues(Generic[_Value]):
    """The values of the `size` most recently requested keys."""

    def __init__(self, size: int):
        self._size = size
        self._values: OrderedDict[Hashable, _Value] = OrderedDict()
        self._lock = threading.Lock()

    def remembered(self, key: Hashable) -> _Value | None:
        """Return the value of a key if it is remembered."""
        with self._lock:
            return self._values.get(key)

    def get(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """Return the value of a key; if it is not remembered, call `make` for it.

        Two threads may make the same value at the same time: the lock is not held meanwhile, because `make` reads
        files.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]

        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value
