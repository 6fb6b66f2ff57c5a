"""Counts operations that make a host wait for its device, and collective calls, in a block of code. Runs on a CPU.

On a GPU the host runs ahead of the device: it launches kernels and continues. Reading a value from the device ends that
lead, because the host must wait until the device has computed it. On a CPU nothing waits, but the same calls are made,
so they can be counted there:

    reads            a tensor's value becomes a Python number, a list or a NumPy array, or decides a shape
    synchronizations the host waits for the device (DeepSpeed's accelerator, torch.cuda, torch.accelerator), a stream,
                     an event, or a copy between host and device that is not asynchronous
    collectives      operators of torch.distributed, by name

Functions that wait are replaced by stand-ins that only count, since a CPU has nothing to wait for. On a CPU all tensors
are on one device, so a copy between host and device is counted only if a test uses torch's device "meta" in place of a
GPU. Functions that were imported under another name before counting began are not counted either.

Only calls of the calling thread are counted, except that stand-ins count in all threads. Code that reads tensors which
are on the host by design must use NumPy views, which this module does not count.
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

COPYING_OPERATORS = ("_to_copy", "copy_")
"""ATen operators that can copy a tensor to another device."""


@dataclass
class Waits:
    """The counts: calls by kind. The kinds of synchronizations are "device", "stream", "event" and "copy"."""

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
        name = func._schema.name.split("::")
        namespace, operator = name[0], name[1]
        if namespace == "c10d":
            self._waits.collectives[operator.rstrip("_")] += 1
        elif operator in READING_OPERATORS:
            self._waits.reads[operator] += 1
        elif operator in COPYING_OPERATORS and _is_waited_for(operator, args, kwargs or {}):
            self._waits.synchronizations["copy"] += 1
        return func(*args, **(kwargs or {}))


def _is_waited_for(operator: str, args: Any, kwargs: Any) -> bool:
    """Return whether a call of a copying operator copies between devices and makes the host wait."""
    if operator == "copy_":
        target, source = args[0].device, args[1]
        is_asynchronous = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    else:
        source = args[0]
        target = torch.device(kwargs.get("device") or source.device)
        is_asynchronous = kwargs.get("non_blocking", False)
    is_pinned = source.device.type == "cpu" and source.is_pinned()
    return host_waits_for_copy(source.device.type, target.type, is_pinned, is_asynchronous)


def host_waits_for_copy(source: str, target: str, is_pinned: bool, is_asynchronous: bool) -> bool:
    """Return whether the host waits for a copy.

    source, target: device types, such as "cuda". is_pinned: whether a source on the host is in pinned memory.
    is_asynchronous: whether the copy has non_blocking=True. From memory that is not pinned the host waits anyway.
    """
    if source == target:
        return False
    if source == "cpu":
        return not (is_pinned and is_asynchronous)
    return target == "cpu" and not is_asynchronous


@contextlib.contextmanager
def _synchronizations_counted(waits: Waits) -> Iterator[None]:
    """Replace functions that wait with stand-ins that count."""

    def counting(kind: str) -> Callable[..., None]:
        def count(*_: Any, **__: Any) -> None:
            waits.synchronizations[kind] += 1

        return count

    accelerator: Any = get_accelerator()
    places = [
        (type(accelerator), "device"),
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
