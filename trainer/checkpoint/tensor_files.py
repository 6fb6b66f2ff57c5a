"""The tensor files of a checkpoint: one for the weights, and one for each moment of the optimizer.

Suffixes: N float32 elements.
"""

from __future__ import annotations

from torch import Tensor

from trainer.checkpoint.layout import WEIGHTS_FILE
from trainer.distributed.zero import MOMENTS, ParameterSlice

MOMENT_OF_FILE = {f"{moment}.safetensors": moment for moment in MOMENTS}
TENSOR_FILES = (WEIGHTS_FILE, *MOMENT_OF_FILE)


def values_of(part: ParameterSlice, file_name: str) -> Tensor:
    """Return a slice's values for a tensor file, (N,)."""
    if file_name == WEIGHTS_FILE:
        return part.weights
    return part.moments[MOMENT_OF_FILE[file_name]]
