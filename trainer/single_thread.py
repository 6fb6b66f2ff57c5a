"""Computing on one thread, where the order of a sum decides the last bits of a result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def single_thread() -> Iterator[None]:
    """Let torch's own kernels and its linear algebra use one thread within the block.

    With more, they divide sums between the threads, so that a result depends on how many there are.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
