"""`python -m trainer` with faults in one rank, such as a bad device or a bad row would make.

    faulty_run.py FAULT:RANK:FIRST:LAST[,...] <the trainer's own flags>
In the model's forward passes FIRST to LAST of that rank: `nan` makes the loss NaN, `spike` the gradient 1000 times as
large, `poison` changes one weight, `stop` stops the process as SIGSTOP does, `die` kills it, `ask` sends it SIGTERM.
Passes of evaluations are counted too.
"""

import os
import signal
import sys

import torch

from trainer.command_line import main
from trainer.models.pretraining import PretrainingModel

FAULTS = [fault.split(":") for fault in sys.argv[1].split(",")]
passes = 0


def at_work(fault: str) -> bool:
    mine = [f for f in FAULTS if f[0] == fault and f[1] == os.environ.get("RANK", "0")]
    return any(int(first) <= passes <= int(last) for _, _, first, last in mine)


def before(module: torch.nn.Module, inputs: tuple) -> None:
    global passes
    if not isinstance(module, PretrainingModel):
        return
    passes += 1
    if at_work("poison"):
        with torch.no_grad():
            module.mlm_head.bias[3] += 0.25
    for fault, number in (("stop", signal.SIGSTOP), ("die", signal.SIGKILL), ("ask", signal.SIGTERM)):
        if at_work(fault):
            os.kill(os.getpid(), number)


def after(module: torch.nn.Module, inputs: tuple, losses: tuple) -> object:
    if not isinstance(module, PretrainingModel):
        return None
    if at_work("nan"):
        return losses._replace(mlm_sum=losses.mlm_sum * float("nan"))  # type: ignore[attr-defined]
    if at_work("spike"):
        losses.mlm_sum.register_hook(lambda gradient: gradient * 1000)  # type: ignore[attr-defined]
    return None


torch.nn.modules.module.register_module_forward_pre_hook(before)
torch.nn.modules.module.register_module_forward_hook(after)  # type: ignore[arg-type]
raise SystemExit(main(sys.argv[2:]))
