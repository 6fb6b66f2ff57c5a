"""Makes fine-tuning reproducible on GPUs, wherever torch has deterministic kernels.

torch has two deterministic modes. The strict one raises an error at an operation that has no deterministic kernel. The
other one only warns, but it also runs the backward pass of memory-efficient attention with its faster kernel, whose
sums depend on the timing of threads, although there is a deterministic one. So a fine-tuning starts in the strict mode,
tries it with a few features, and changes to the other one only if its model needs an operation without such a kernel.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import torch

from trainer.logs import logger

NO_KERNEL = " does not have a deterministic implementation"
"""What torch's error says after the name of the operation."""


def make_deterministic() -> None:
    """Use deterministic kernels in this process. Call it before the first matrix product on the GPU."""
    # cuBLAS is deterministic with these workspaces alone. The first one takes 24 MB and is faster.
    if os.environ.get("CUBLAS_WORKSPACE_CONFIG") != ":16:8":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

    torch.use_deterministic_algorithms(True)
    # Deterministic mode turns on this debugging aid, which costs a pass over every new tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def choose_kernels(compute: Callable[[], object]) -> None:
    """Try a computation in the strict mode, and change to the other one if an operation has no deterministic kernel.

    The log names the first such operation.
    """
    try:
        compute()
        return
    except RuntimeError as error:
        if NO_KERNEL not in str(error):
            raise
        operation = str(error).split(NO_KERNEL, 1)[0]

    logger.warning(
        "%s has no deterministic kernel on this device. It and attention now use other kernels, so repeated or resumed "
        "runs may differ by rounding.",
        operation,
    )
    warnings.filterwarnings("ignore", message=f".*{NO_KERNEL}")
    warnings.filterwarnings("ignore", message=".*attention defaults to a non-deterministic algorithm")
    torch.use_deterministic_algorithms(True, warn_only=True)
