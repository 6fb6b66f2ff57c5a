"""How ranks agree to stop between two micro-batches of a step.

A step of a large batch may take longer than the 30 seconds that torchrun and Kubernetes leave for saving. All ranks
must leave it before the same micro-batch, for ZeRO 2 and 3 communicate in each.

A blocking question before each micro-batch would make fast ranks wait. So each rank starts an all-reduce of one number
before a micro-batch and reads its result before the next one. It runs on the CPU in a gloo group, so no device is
synchronized, and is done long before it is read. A step therefore ends within two micro-batches of a signal; with
one rank, within one.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from schemas.errors import UsageError
from trainer.distributed.collectives import run_on_all_ranks
from trainer.distributed.preemption import StopRequest

MEETING = 120.0
"""Seconds that ranks have to open their connections; all of them arrive there together."""


def gloo_error(error: RuntimeError) -> UsageError:
    """Return the error for ranks that cannot reach one another over gloo."""
    host = socket.gethostname()
    reason = str(error).splitlines()[0].rstrip(".")
    return UsageError(
        f"The ranks cannot meet over gloo: rank {os.environ.get('RANK', '0')} on {host} says {reason}. Gloo listens at "
        f"the address that {host} resolves to, and other machines cannot reach 127.0.1.1. Set GLOO_SOCKET_IFNAME to "
        "the network interface between the nodes on each of them, as in GLOO_SOCKET_IFNAME=eth0."
    )


class StopAgreement:
    """A rank's stop request, and what the ranks agreed on. Making and closing one are collective calls."""

    def __init__(self, request: StopRequest, timeout: float = 1200.0):
        """timeout: seconds after which a rank that does not answer is an error.

        Raises UsageError on every rank when one of them cannot join the group.
        """
        self._request = request
        self._group: Any = None
        if dist.get_world_size() > 1:
            run_on_all_ranks(lambda: self._meet(timeout))
        self._asked_by_any = torch.zeros(1)
        self._pending: Any = None

    def _meet(self, timeout: float) -> None:
        """Open the group. Raises UsageError when the ranks cannot reach one another."""
        patience = min(timeout, MEETING)
        try:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience))
        except RuntimeError as error:
            raise gloo_error(error) from error
        distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), self._group)

    @property
    def stop_requested(self) -> bool:
        """Whether this rank was asked to stop."""
        return self._request.asked

    def training_begins(self) -> None:
        """Tell the signal handlers that there is something to save from now on."""
        self._request.training_begins()

    def leaves_step(self, micro_batch: int, micro_batches: int) -> bool:
        """Return whether all ranks leave the step before `micro_batch`, counted from 0. A collective call."""
        if self._group is None:
            return self.stop_requested
        if self._agreed():
            return True
        if micro_batch + 1 < micro_batches:
            self._ask()
        return False

    def close(self) -> None:
        """Give the group's threads and sockets back."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def _ask(self) -> None:
        self._asked_by_any.fill_(float(self.stop_requested))
        self._pending = dist.all_reduce(self._asked_by_any, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def _agreed(self) -> bool:
        """The answer to the last question."""
        if self._pending is None:
            return False
        self._pending.wait()
        self._pending = None
        return bool(self._asked_by_any)
