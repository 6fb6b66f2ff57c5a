"""memory:// for several threads. fsspec's own methods go through a dictionary that other threads change meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

METHODS = ("_open", "cat_file", "cp_file", "exists", "find", "info", "ls", "makedirs", "mkdir", "mv", "rm", "rm_file")


class MemoryOfThreads(MemoryFileSystem):
    """fsspec's files in memory, of which one method runs at a time."""

    lock = threading.RLock()


def _locked(name: str) -> Callable[..., Any]:
    method = getattr(MemoryFileSystem, name)

    def called(self: MemoryOfThreads, *arguments: Any, **named: Any) -> Any:
        with self.lock:
            return method(self, *arguments, **named)

    return called


for method_name in METHODS:
    setattr(MemoryOfThreads, method_name, _locked(method_name))


def register() -> None:
    """Have memory:// lead here in this process."""
    fsspec.register_implementation("memory", MemoryOfThreads, clobber=True)
