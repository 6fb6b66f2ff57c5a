"""Counts operations that make a host wait for its device, and collective calls, in a block of code. Runs on a CPU.

On a GPU the host runs ahead of the device: it launches kernels and continues. Reading a value from the device ends that
lead, because the host must wait until the device has computed it. On a CPU nothing waits, but the same calls are made,
so they can be counted there:

    reads            a tensor's value becomes a Python number, a list or a NumPy array, or decides a shape
    synchronizations the host waits for the device (DeepSpeed's accelerator, torch.cuda, torch.accelerator), a stream
                     or an event
    collectives      operators of torch.distributed, by name

Only calls of the calling thread are counted, except for synchronizations. Code that reads tensors which are on the host
by design must use NumPy views, which this module does not count.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
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
"""ATen operators that return a Python bool, or a tensor whose shape depends on values."""


@dataclass
class Waits:
    """The counts: calls by kind. The kinds of synchronizations are "device", "stream" and "event"."""

    reads: Counter[str] = field(default_factory=Counter)
    synchronizations: Counter[str] = field(default_factory=Counter)
    collectives: Counter[str] = field(default_factory=Counter)


@contextlib.contextmanager
def counted_waits() -> Iterator[Waits]:
    """Count the calls of this thread in the `with` block."""
    waits = Waits()
    with _synchronizations_counted(waits), _CountedOperators(waits), _CountedReads(waits):
        yield waits


class _CountedReads(TorchFunctionMode):
    """Counts calls of the methods that read a tensor, from any code."""

    def __init__(self, waits: Waits):
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READING_METHODS and args and isinstance(args[0], torch.Tensor):
            self._waits.reads[name] += 1
        return func(*args, **(kwargs or {}))


class _CountedOperators(TorchDispatchMode):
    """Counts collective calls, and operators that wait for values."""

    def __init__(self, waits: Waits):
        super().__init__()
        self._waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, operator = func._schema.name.split("::")[:2]
        if namespace == "c10d":
            self._waits.collectives[operator.rstrip("_")] += 1
        elif operator in READING_OPERATORS:
            self._waits.reads[operator] += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _synchronizations_counted(waits: Waits) -> Iterator[None]:
    """Replace functions that wait with stand-ins that count."""

    def counting(kind: str) -> Callable[..., None]:
        def count(*_: Any, **__: Any) -> None:
            waits.synchronizations[kind] += 1

        return count

    places = [
        (type(get_accelerator()), "device"),
        (torch.cuda, "device"),
        (torch.accelerator, "device"),
        (torch.cuda.Stream, "stream"),
        (torch.cuda.Event, "event"),
    ]
    with contextlib.ExitStack() as stack:
        for owner, kind in places:
            stack.enter_context(patch.object(owner, "synchronize", counting(kind)))

        # The methods of these two classes are implemented in C and cannot be patched, but the classes can.
        for name, kind in (("Stream", "stream"), ("Event", "event")):
            stand_in = type(name, (getattr(torch, name),), {"synchronize": counting(kind)})
            stack.enter_context(patch.object(torch, name, stand_in))
        yield
