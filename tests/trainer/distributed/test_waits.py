"""Every way in which a host waits for its device is counted, and what does not wait is not."""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.accelerator import get_accelerator

from tests.trainer.distributed.waits import counted_waits


def test_each_synchronization_is_counted_by_its_kind() -> None:
    accelerator: Any = get_accelerator()
    nothing: Any = None  # no stream of CUDA can be made here
    with counted_waits() as waits:
        accelerator.synchronize()
        torch.cuda.synchronize()
        torch.accelerator.synchronize()
        torch.cuda.Stream.synchronize(nothing)
        torch.cuda.Event.synchronize(nothing)
        torch.Stream("cpu").synchronize()
        event = torch.Event()
        event.synchronize()
    assert waits.synchronizations == {"device": 3, "stream": 2, "event": 2} and isinstance(event, torch.Event)


def test_copies_to_a_device_are_counted() -> None:
    """A "meta" tensor stands in for one of a GPU. The host's memory is not pinned, so non_blocking changes nothing."""
    host = torch.ones(3)
    device = torch.empty(3, device="meta")
    with counted_waits() as waits:
        host.to("meta")
        host.to("meta", non_blocking=True)
        device.copy_(host)
        device.copy_(host, non_blocking=True)
    assert waits.synchronizations == {"copy": 4}

    with counted_waits() as waits:
        host.clone().copy_(host)
        host.to(torch.float64)
        device.clone().to(torch.bfloat16)
        device.add(device)
    assert not waits.synchronizations
