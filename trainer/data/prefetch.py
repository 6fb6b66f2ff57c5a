"""Copies micro-batches to a GPU before they are needed, from pinned memory, while the GPU computes.

The thread that prepares a step also starts its copies, on a CUDA stream used for nothing else. The thread that trains
only makes its own stream wait for them. At any time one step is in use and the next one is being copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.models.batch import PackedBatch


@dataclass(frozen=True)
class SentBatches:
    """Micro-batches whose copies have been started.

    arrival: the CUDA event after the last copy; None on a CPU, where nothing is copied.
    """

    batches: list[PackedBatch]
    arrival: torch.Event | None


class DeviceFeed:
    """Copies micro-batches to one device."""

    def __init__(self, device: torch.device):
        self._device = device
        self._copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def adopt_thread(self) -> None:
        """Make this device the current one of the calling thread. Call it once in a thread that calls `send`.

        torch.cuda.stream ends by setting the thread's previous device again. In a new thread that is GPU 0, where every
        rank of the node would then have a CUDA context: half a gigabyte each.
        """
        if self._copy_stream is not None:
            torch.cuda.set_device(self._device)

    def send(self, batches: list[PackedBatch]) -> SentBatches:
        """Start the copies and return without waiting. torch keeps the pinned memory until they have ended."""
        if self._copy_stream is None:
            return SentBatches(batches, None)

        with torch.cuda.stream(self._copy_stream):
            sent = [batch.pinned().to(self._device) for batch in batches]
            return SentBatches(sent, self._copy_stream.record_event())

    def receive(self, sent: SentBatches) -> list[PackedBatch]:
        """Return the batches for use on the caller's current CUDA stream, which waits for them; the caller does not."""
        if sent.arrival is None:
            return sent.batches

        current_stream = torch.cuda.current_stream(self._device)
        current_stream.wait_event(sent.arrival)

        # The memory was allocated on the copy stream. Tell torch's allocator that another stream uses it, too, so that
        # it is not reused while that stream still computes.
        for batch in sent.batches:
            for tensor in batch.tensors().values():
                tensor.record_stream(current_stream)
        return sent.batches
