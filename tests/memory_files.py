"""A thread-safe memory:// file system. fsspec's own iterates over a dictionary that other threads change meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

METHODS = ("_open", "cat_file", "cp_file", "exists", "find", "info", "ls", "makedirs", "mkdir", "mv", "rm", "rm_file")


class MemoryOfThreads(MemoryFileSystem):
    """fsspec's in-memory file system, with a lock so that only one method runs at a time."""

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
    """Make memory:// use this file system in this process."""
    fsspec.register_implementation("memory", MemoryOfThreads, clobber=True)
