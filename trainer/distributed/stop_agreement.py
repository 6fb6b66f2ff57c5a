"""Lets all ranks abandon a step before the same micro-batch after any of them was asked to stop.

A step of a large batch may take longer than the 30 seconds that torchrun and Kubernetes leave for saving, so a run must
be able to stop in the middle of one. All ranks have to stop at the same place, because ZeRO 2 and 3 communicate in
every micro-batch.

The protocol: before each micro-batch every rank starts an asynchronous all-reduce (maximum) of one number, 1 if this
rank was asked to stop. Before the next micro-batch, which may be the first of the next step, it waits for that result,
which has usually arrived long ago, and abandons the step if it is 1. A blocking all-reduce would instead make fast
ranks wait in every micro-batch.

    micro-batch      0          1          0 of the next step
    before it        ask        read, ask  read: 1, so all ranks stop

So training stops within two micro-batches of a signal, or within one if there is a single rank. The group uses gloo, on
the CPU, so that no device is synchronized. gloo's own threads communicate, and the main thread makes all calls. The
number is set and read through a NumPy array that shares the tensor's memory.
"""

from __future__ import annotations

import contextlib
import os
import socket
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from schemas.errors import UsageError
from trainer.distributed.collectives import run_on_all_ranks
from trainer.distributed.preemption import StopRequest
from trainer.distributed.torch_internals import set_process_group_timeout

CONNECT_SECONDS = 120.0
"""Seconds that ranks may take to open their connections, which all of them begin at the same time."""


def gloo_error(error: RuntimeError) -> UsageError:
    """Return the error for ranks that cannot connect to each other over gloo."""
    host = socket.gethostname()
    rank = os.environ.get("RANK", "0")
    reason = str(error).splitlines()[0].rstrip(".")
    return UsageError(
        f"The ranks cannot connect over gloo: rank {rank} on {host} reports: {reason}. Gloo listens at the address "
        f"that {host} resolves to, and other machines cannot reach 127.0.1.1. On each node, set GLOO_SOCKET_IFNAME to "
        "the network interface that connects the nodes, as in GLOO_SOCKET_IFNAME=eth0."
    )


def open_host_group(timeout: float) -> Any:
    """Open a gloo group of all ranks in addition to the default one, for calls of one kind or thread. Collective.

    timeout: seconds after which a rank that does not answer is an error, once the ranks are connected.
    Raises UsageError if the ranks cannot connect.
    """
    try:
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=min(timeout, CONNECT_SECONDS)))
    except RuntimeError as error:
        raise gloo_error(error) from error
    set_process_group_timeout(timeout, group)
    return group


class StopAgreement:
    """Shares this rank's stop request so that all ranks stop together. Creating and closing it are collective calls."""

    def __init__(self, request: StopRequest, timeout: float = 1200.0):
        """Open the group. timeout: seconds after which a rank that does not answer is an error.

        Raises UsageError on every rank if one of them cannot connect.
        """
        self._request = request
        self._group: Any = None
        if dist.get_world_size() > 1:
            run_on_all_ranks(lambda: self._connect(timeout))

        # The number that is reduced in place, and the reduction whose result was not read yet.
        self._asked_by_any = np.zeros(1, dtype=np.float32)
        self._pending: Any = None

    @property
    def stop_requested(self) -> bool:
        """Whether this rank was asked to stop."""
        return self._request.asked

    def training_begins(self) -> None:
        """Let the signal handlers know that from now on there is something to save."""
        self._request.training_begins()

    def leaves_step(self) -> bool:
        """Return whether all ranks abandon the step before its next micro-batch. A collective call."""
        if self._group is None:
            return self.stop_requested

        if self._agreed_to_stop():
            return True

        self._start_asking()
        return False

    def close(self) -> None:
        """Release the group's threads and sockets."""
        if self._group is not None:
            # Wait for the last call, so that gloo's threads are idle. It fails if a rank was lost.
            with contextlib.suppress(RuntimeError):
                self._agreed_to_stop()
            dist.destroy_process_group(self._group)
            self._group = None

    def _connect(self, timeout: float) -> None:
        """Open the group. Raises UsageError if the ranks cannot connect."""
        self._group = open_host_group(timeout)

    def _start_asking(self) -> None:
        self._asked_by_any[0] = self.stop_requested
        shared = torch.from_numpy(self._asked_by_any)
        self._pending = dist.all_reduce(shared, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def _agreed_to_stop(self) -> bool:
        """Wait for the last reduction and return its result; False if none was started since the last read."""
        if self._pending is None:
            return False

        self._pending.wait()
        self._pending = None
        return bool(self._asked_by_any[0])
