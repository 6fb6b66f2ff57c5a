"""Faults in one rank's forward passes, such as a bad device or a bad row would make, and in its disk.

They are worded FAULT:RANK:FIRST:LAST[,...], for the model's forward passes FIRST to LAST of that rank, those of
evaluations counted too. `nan` makes the loss NaN, `spike` the gradient 1000 times as large, `poison` changes one
weight, `stop` stops the process as SIGSTOP does, `die` kills it, `ask` sends it SIGTERM, `interrupt` SIGINT,
`sluggish` makes it sleep for a quarter of a second, `exhaust` lets it ask for more memory than there is.

Those of a disk count the rank's files of checkpoints, one each: `full` refuses the writes into file FIRST to LAST as a
full disk does. `hold:RANK:FILE:PASS` lets writes into that file wait until the rank's forward pass of that number,
which comes only if training continues. `unwritable` refuses metrics.jsonl, `noflock` and `badflock` make its
file locks fail as on file systems without them and on broken ones. `unreachable` takes the network from it that gloo
would use.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from trainer.models.pretraining import PretrainingModel

SIGNALS = {"stop": signal.SIGSTOP, "die": signal.SIGKILL, "ask": signal.SIGTERM, "interrupt": signal.SIGINT}

LONGEST_HOLD = 60.0  # seconds


@contextmanager
def faulty(worded: str) -> Iterator[None]:
    """While it lasts, this rank's models have its faults."""
    faults = Faults(worded)
    hooks = [register_module_forward_pre_hook(faults.before), register_module_forward_hook(faults.after)]  # type: ignore[arg-type]
    try:
        with faulty_disk(faults):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def faulty_disk(faults: Faults) -> Iterator[None]:
    """While it lasts, this rank's system calls have its faults."""
    os_write = os.write
    fsync = os.fsync
    flock = fcntl.flock
    written: set[int] = set()
    synced = 0

    def write(handle: int, data: Any) -> int:
        nonlocal synced
        if not os.readlink(f"/proc/self/fd/{handle}").endswith(".safetensors"):
            return os_write(handle, data)
        faults.hold(synced + 1)
        written.add(handle)
        if faults.has("full", synced + 1):
            synced += 1
            written.remove(handle)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os_write(handle, data)

    def sync(fd: Any) -> None:
        nonlocal synced
        fsync(fd)
        if fd in written:
            synced += 1
            written.remove(fd)

    def lock(handle: Any, operation: int) -> None:
        for kind, number in (("noflock", errno.ENOSYS), ("badflock", errno.EIO)):
            if faults.has(kind, 1):
                raise OSError(number, os.strerror(number))
        flock(handle, operation)

    replace = os.replace

    def rename(src: Any, dst: Any, **options: Any) -> None:
        if str(dst).endswith("/metrics.jsonl") and faults.has("unwritable", 1):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        replace(src, dst, **options)

    os.replace = rename
    os.write = write
    os.fsync = sync
    fcntl.flock = lock
    if faults.has("unreachable", 1):
        os.environ["GLOO_SOCKET_IFNAME"] = "none0"
    try:
        yield
    finally:
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
        os.write = os_write
        os.fsync = fsync
        fcntl.flock = flock
        os.replace = replace


class Faults:
    """Hooks of all modules; only the whole model's passes count."""

    def __init__(self, worded: str):
        parts = [fault.split(":") for fault in worded.split(",") if fault]
        mine = [(kind, int(first), int(last)) for kind, rank, first, last in parts if rank == os.environ["RANK"]]
        self._mine = [fault for fault in mine if fault[0] != "hold"]
        self._held_until = {file: forward for kind, file, forward in mine if kind == "hold"}
        self._passes = 0

    def before(self, module: torch.nn.Module, inputs: tuple) -> None:
        if not isinstance(module, PretrainingModel):
            return
        self._passes += 1
        if self._at_work("poison"):
            with torch.no_grad():
                assert module.mlm_head.bias is not None
                module.mlm_head.bias[3] += 0.25
        if self._at_work("sluggish"):
            time.sleep(0.25)
        if self._at_work("exhaust"):
            torch.empty(2**50, dtype=torch.uint8)
        for kind, number in SIGNALS.items():
            if self._at_work(kind):
                os.kill(os.getpid(), number)

    def after(self, module: torch.nn.Module, inputs: tuple, losses: tuple) -> object:
        if not isinstance(module, PretrainingModel):
            return None
        if self._at_work("nan"):
            return losses._replace(mlm_sum=losses.mlm_sum * float("nan"))  # type: ignore[attr-defined]
        if self._at_work("spike"):
            losses.mlm_sum.register_hook(lambda gradient: gradient * 1000)  # type: ignore[attr-defined]
        return None

    def hold(self, file: int) -> None:
        """Wait for the pass until which a file is held, for a minute at most."""
        deadline = time.monotonic() + LONGEST_HOLD
        while self._passes < self._held_until.get(file, 0):
            if time.monotonic() > deadline:
                raise OSError(errno.ETIMEDOUT, "training does not go on while a file is written")
            time.sleep(0.005)

    def has(self, kind: str, number: int) -> bool:
        return any(mine == kind and first <= number <= last for mine, first, last in self._mine)

    def _at_work(self, kind: str) -> bool:
        return self.has(kind, self._passes)
