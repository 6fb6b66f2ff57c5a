"""The tensor files of a checkpoint: one for the weights, and one for each moment that the optimizer keeps.

Suffixes: N float32 elements.
"""

from __future__ import annotations

from torch import Tensor

from trainer.checkpoint.layout import WEIGHTS_FILE
from trainer.checkpoint.safetensors_io import Shapes, TensorLayout, layout_of
from trainer.checkpoint.snapshot import Snapshot
from trainer.distributed.zero import MOMENTS, ParameterSlice

MOMENT_OF_FILE = {f"{moment}.safetensors": moment for moment in MOMENTS}
TENSOR_FILES = (WEIGHTS_FILE, *MOMENT_OF_FILE)


def shapes_in(file_name: str, shapes: Shapes, moment_shapes: dict[str, Shapes]) -> Shapes:
    """Return the shapes in a tensor file: of all weights, or of the weights that have the file's moment."""
    if file_name == WEIGHTS_FILE:
        return shapes
    return moment_shapes[MOMENT_OF_FILE[file_name]]


def values_of(part: ParameterSlice, file_name: str) -> Tensor | None:
    """Return a slice's values for a tensor file, (N,), or None if the file is for a moment that the parameter lacks."""
    if file_name == WEIGHTS_FILE:
        return part.weights
    return part.moments.get(MOMENT_OF_FILE[file_name])


def layouts_of(snapshot: Snapshot) -> dict[str, TensorLayout]:
    """Return the layout of each tensor file, by name. Files with the same tensors share one layout object."""
    layout_of_weights = layout_of(snapshot.shapes)
    layouts = {}
    for file_name in TENSOR_FILES:
        shapes = shapes_in(file_name, snapshot.shapes, snapshot.moment_shapes)
        layouts[file_name] = layout_of_weights if shapes == snapshot.shapes else layout_of(shapes)
    return layouts
