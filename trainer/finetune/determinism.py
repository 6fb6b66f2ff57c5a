"""Makes fine-tuning reproducible on GPUs, wherever torch has deterministic kernels.

torch has two deterministic modes. The strict one raises an error at an operation that has no deterministic kernel. The
other one only warns, but it also runs the backward pass of memory-efficient attention with its faster kernel, whose
sums depend on the timing of threads, although there is a deterministic one. So a fine-tuning starts in the strict mode,
and changes to the other one only if its model needs an operation without a deterministic kernel.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from trainer.logs import logger

NO_KERNEL = " does not have a deterministic implementation"
"""What torch's error says after the name of the operation."""

Result = TypeVar("Result")


def make_deterministic() -> None:
    """Use deterministic kernels in this process. Call it before the first use of the GPU."""
    # cuBLAS reads this variable when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)

    # Deterministic mode turns on this debugging aid, which costs a pass over every new tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def computed(compute: Callable[[], Result]) -> Result:
    """Return what a function computes, with deterministic kernels as far as there are any.

    compute: is called again from its beginning if an operation turns out to have no deterministic kernel. The rest of
    the process then uses the other kernel for it, which is logged.
    """
    try:
        return compute()
    except RuntimeError as error:
        if NO_KERNEL not in str(error):
            raise
        operation = str(error).split(NO_KERNEL, 1)[0]

    logger.warning(
        "%s is not deterministic on this device, so repeated or continued trainings may differ by rounding.", operation
    )
    warnings.filterwarnings("ignore", message=f".*{NO_KERNEL}")
    warnings.filterwarnings("ignore", message=".*attention defaults to a non-deterministic algorithm")
    torch.use_deterministic_algorithms(True, warn_only=True)
    return compute()
