"""Counts what makes a host wait for its device, and the collective calls, in a piece of code. Runs on a CPU.

On a GPU the host runs ahead of the device: it launches kernels and goes on. A read of a device's value ends that lead,
because the host must wait until the device has computed it. On a CPU nothing waits, but the same calls are made, so
they can be counted there:

    reads            a tensor's value becomes a Python number, a list or a NumPy array, or decides a shape
    synchronizations DeepSpeed's or torch's accelerator is asked to finish everything
    collectives      operators of torch.distributed, by their name
    operators        all operators of ATen: what a GPU's host would launch

Only the calling thread is counted. Tensors that live on the host by design must be read through `host_values`-like
NumPy views, which no torch call sees.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from deepspeed.accelerator import get_accelerator
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READING_METHODS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__array__")
"""Methods of torch.Tensor that return its values to the host."""

READING_OPERATORS = ("nonzero", "masked_select", "is_nonzero", "equal", "_unique2", "unique_dim", "unique_consecutive")
"""Operators of ATen whose result's shape depends on values, or that are a Python bool."""


@dataclass
class Waits:
    """What was counted. reads and collectives: how often each kind was called."""

    reads: Counter[str] = field(default_factory=Counter)
    synchronizations: int = 0
    collectives: Counter[str] = field(default_factory=Counter)
    operators: int = 0


@contextlib.contextmanager
def counted_waits() -> Iterator[Waits]:
    """Count what this thread does in the `with` block."""
    waits = Waits()
    with _synchronizations_counted(waits), _CountedOperators(waits), _CountedReads(waits):
        yield waits


class _CountedReads(TorchFunctionMode):
    """Counts the methods that read a tensor, whoever calls them."""

    def __init__(self, waits: Waits):
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READING_METHODS and args and isinstance(args[0], torch.Tensor):
            self._waits.reads[name] += 1
        return func(*args, **(kwargs or {}))


class _CountedOperators(TorchDispatchMode):
    """Counts ATen's operators, and among them collective calls and those that wait for values."""

    def __init__(self, waits: Waits):
        super().__init__()
        self._waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")
        namespace, operator = name[0], name[1]
        if namespace == "c10d":
            self._waits.collectives[operator.rstrip("_")] += 1
        elif operator in READING_OPERATORS:
            self._waits.reads[operator] += 1
        self._waits.operators += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _synchronizations_counted(waits: Waits) -> Iterator[None]:
    def count(*_: Any, **__: Any) -> None:
        waits.synchronizations += 1

    accelerator: Any = get_accelerator()
    with patch.object(type(accelerator), "synchronize", count):
        yield
