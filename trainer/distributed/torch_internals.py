"""Wraps every private function of torch that the trainer calls, each in one public function.

Checked against torch 2.13. A test refuses private attributes of torch anywhere else, so that only this file has to
change with an upgrade of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d


def set_process_group_timeout(seconds: float, group: Any = None) -> None:
    """Set how many seconds a collective of `group` may take before torch ends it; None is the default group.

    The public interface sets a timeout only when a group is created. Uses `_set_pg_timeout` of
    torch/distributed/distributed_c10d.py.
    """
    distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def default_store() -> Any:
    """Return the key-value store (a torch.distributed.Store) through which the default process group was created.

    Raises ValueError if there is no process group yet. Uses `_get_default_store` of
    torch/distributed/distributed_c10d.py.
    """
    return distributed_c10d._get_default_store()


# ---- One operation on many tensors ----

# torch's own optimizers use these functions. On a GPU one kernel works on many tensors, and on any device one call
# replaces a Python loop.
_foreach: Any = torch


def norms_of(tensors: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of each tensor, as a one-dimensional tensor with one value for each."""
    return torch.stack(_foreach._foreach_norm(tensors))


def multiply_all(tensors: Sequence[Tensor], factors: Tensor | Sequence[Tensor]) -> None:
    """Multiply each tensor in place, by one factor for all or by one for each."""
    _foreach._foreach_mul_(tensors, factors)
