"""Computes on one thread, for results whose last bits depend on the order of a sum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def single_thread() -> Iterator[None]:
    """Let torch's own kernels and its linear algebra use one thread within the block.

    With more threads, they split sums between them, so the rounding of a result depends on the number of threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
