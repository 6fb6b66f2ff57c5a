"""Values of a device on their way to the host, which continues meanwhile and reads them later."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """A copy of a device's tensor into pinned memory of the host, in the background. On a CPU, a plain copy."""

    def __init__(self, values_N: Tensor):
        """Start the copy, after everything that the device was already asked to compute. values_N: one dimension."""
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
