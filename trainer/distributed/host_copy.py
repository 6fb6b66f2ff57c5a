"""Copies values from a device to the host in the background, for the host to read later."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """A copy of a device's tensor in pinned host memory, made in the background. On a CPU, a plain copy."""

    def __init__(self, values_N: Tensor):
        """Queue the copy on the current stream, after the work that is already queued. values_N: one-dimensional."""
        self._arrival: torch.Event | None = None
        if values_N.device.type == "cpu":
            self._host_N = values_N.clone()
            return

        self._host_N = torch.empty(values_N.shape, dtype=values_N.dtype, pin_memory=True)
        self._host_N.copy_(values_N, non_blocking=True)
        self._arrival = torch.Event(values_N.device)
        self._arrival.record()

    def read(self) -> list[float]:
        """Wait for the copy and return its values."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._host_N.tolist()
