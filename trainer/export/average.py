"""Writes the weights of a checkpoint into one file, or the mean of several, for `export --average K`.

The mean of late checkpoints is closer to the center of the loss valley that a run moves in, so it often scores better
than the last of them, especially before the learning rate has decayed (Izmailov et al., arXiv:1803.05407). NeoBERT was
evaluated with such means.

All files are read in parallel, piece by piece, so that memory does not grow with the model. Sums are float64, and the
mean is rounded to float32 once.

Suffixes: N float32 elements.
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from schemas import storage
from schemas.errors import CheckpointError, StorageError, UsageError
from trainer.checkpoint.format import steps_saved
from trainer.checkpoint.rank_files import RankFiles
from trainer.checkpoint.safetensors_io import layout_of
from trainer.export.folder import scratch_folder

WEIGHTS_FILE = "model.safetensors"

PIECE = 1 << 22
"""Elements that are averaged at once: 48 MiB with their float64 sums, whatever the number of checkpoints."""


def last_steps(run: str, step: int | None, count: int) -> list[int]:
    """Return the steps of a run's last `count` checkpoints up to `step`, oldest first. step: None for the newest.

    run: a folder or a URL. Raises UsageError if the run keeps fewer.
    """
    with storage.storage_errors_of(run):
        saved = steps_saved(run)
        keep = _kept_by(run)

    # An older checkpoint was kept only because it is the best, and may be from much earlier.
    recent = saved[-keep:]
    steps = [one for one in recent if step is None or one <= step]
    if len(steps) < count:
        until = "" if step is None else f" up to step {step}"
        held = ", ".join(map(str, steps)) or "none"
        others = ""
        if keep < count:
            others = f", or train with checkpoint.keep of at least {count}"
        elif len(recent) >= count:
            others = ", or give a later --step"
        raise UsageError(
            f"--average {count}: {run} keeps {len(steps)} recent checkpoints{until} ({held}), and its checkpoint.keep "
            f"is {keep}. Average fewer{others}."
        )
    return steps[-count:]


def _kept_by(run: str) -> int:
    """Return checkpoint.keep of the run's recipe."""
    recipe = tomllib.loads(storage.read(storage.join(run, "recipe.toml")).decode())
    return recipe["checkpoint"]["keep"]


@contextlib.contextmanager
def folder_of_weights(checkpoints: list[Path]) -> Iterator[Path]:
    """Yield a temporary folder whose file WEIGHTS_FILE holds the weights of a checkpoint, or the mean of several.

    Raises CheckpointError if they are not of one model, and StorageError if the file cannot be written.
    """
    with scratch_folder() as folder:
        files = [RankFiles(path) for path in checkpoints]
        try:
            write_average(files, folder / WEIGHTS_FILE)
        except OSError as error:
            needed = 4 * sum(prod(shape) for shape in files[-1].shapes.values())
            raise StorageError(
                f"The weights cannot be written to {folder.parent}: {error.strerror}. They need {needed:,} bytes "
                "there, beside those of the export. Set TMPDIR to a folder with room."
            ) from error
        yield folder


def write_average(files: list[RankFiles], path: Path) -> None:
    """Write the mean weights of checkpoints into a safetensors file.

    Raises CheckpointError if they are not of one model, and OSError.
    """
    shapes = files[-1].shapes
    for one in files:
        if one.shapes != shapes:
            raise CheckpointError(
                f"{one.folder} holds other tensors than {files[-1].folder}, so they have no mean. Average fewer."
            )

    with path.open("wb") as target:
        target.write(layout_of(shapes).header)
        for name, shape in shapes.items():
            size = prod(shape)
            for start in range(0, size, PIECE):
                mean_N = _mean(files, name, start, min(PIECE, size - start))
                target.write(mean_N.numpy().data)


def _mean(files: list[RankFiles], name: str, start: int, count: int) -> Tensor:
    """Return the mean of some elements of a parameter over all checkpoints, (N,) float32."""
    sum_N = torch.zeros(count, dtype=torch.float64)
    for one in files:
        sum_N += one.read(name, start, count)
    return (sum_N / len(files)).float()
