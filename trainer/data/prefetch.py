"""Micro-batches on a GPU before they are needed: copied from pinned memory, beside what the GPU computes.

The thread that makes a step ready also starts its copies, on a CUDA stream of their own; the one that trains only lets
its own stream wait for them. At any time one step is in use and the next is on its way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.models.batch import PackedBatch


@dataclass(frozen=True)
class SentBatches:
    """Micro-batches on their way, and the event that tells of their arrival; None on a CPU, where they are already."""

    batches: list[PackedBatch]
    arrival: torch.Event | None


class DeviceFeed:
    """The way to one device."""

    def __init__(self, device: torch.device):
        self._device = device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def adopt_thread(self) -> None:
        """Make this device the current one of the calling thread, which is to call `send`.

        torch.cuda.stream ends by setting the thread's current device again. In a new thread that is GPU 0, where every
        rank of the node would then have a context of its own: half a gigabyte each.
        """
        if self._copies is not None:
            torch.cuda.set_device(self._device)

    def send(self, batches: list[PackedBatch]) -> SentBatches:
        """Start the copies and return at once. torch keeps the pinned memory until they have ended."""
        if self._copies is None:
            return SentBatches(batches, None)
        with torch.cuda.stream(self._copies):
            sent = [batch.pinned().to(self._device) for batch in batches]
            return SentBatches(sent, self._copies.record_event())

    def receive(self, sent: SentBatches) -> list[PackedBatch]:
        """What was sent, to be used by the caller's current CUDA stream."""
        if sent.arrival is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(sent.arrival)
            for batch in sent.batches:
                for tensor in batch.tensors().values():
                    tensor.record_stream(current)  # its memory was the copying stream's and is now this one's
        return sent.batches
