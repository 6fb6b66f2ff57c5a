"""Faults in one rank's forward passes, such as a bad device or a bad row would make.

They are worded FAULT:RANK:FIRST:LAST[,...], for the model's forward passes FIRST to LAST of that rank, those of
evaluations counted too. `nan` makes the loss NaN, `spike` the gradient 1000 times as large, `poison` changes one
weight, `stop` stops the process as SIGSTOP does, `die` kills it, `ask` sends it SIGTERM, `interrupt` SIGINT.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from trainer.models.pretraining import PretrainingModel

SIGNALS = {"stop": signal.SIGSTOP, "die": signal.SIGKILL, "ask": signal.SIGTERM, "interrupt": signal.SIGINT}


@contextmanager
def faulty(worded: str) -> Iterator[None]:
    """While it lasts, this rank's models have its faults."""
    faults = Faults(worded)
    hooks = [register_module_forward_pre_hook(faults.before), register_module_forward_hook(faults.after)]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class Faults:
    """Hooks of all modules; only the whole model's passes count."""

    def __init__(self, worded: str):
        parts = [fault.split(":") for fault in worded.split(",") if fault]
        self._mine = [(kind, int(first), int(last)) for kind, rank, first, last in parts if rank == os.environ["RANK"]]
        self._passes = 0

    def before(self, module: torch.nn.Module, inputs: tuple) -> None:
        if not isinstance(module, PretrainingModel):
            return
        self._passes += 1
        if self._at_work("poison"):
            with torch.no_grad():
                module.mlm_head.bias[3] += 0.25
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

    def _at_work(self, kind: str) -> bool:
        return any(mine == kind and first <= self._passes <= last for mine, first, last in self._mine)
