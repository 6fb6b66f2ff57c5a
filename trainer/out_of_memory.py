"""Distinguishes running out of device memory from other errors, and says what to do about it.

torch raises OutOfMemoryError for its own allocations only. cuBLAS, cuDNN, NCCL and the driver allocate memory
themselves, and their failures arrive as a RuntimeError with wording of their own. The same holds for the CPU allocator.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from schemas.errors import ClozelineError, StorageError
from trainer.config.schema import Recipe
from trainer.micro_batch_record import RECORD, Choice, record

_WORDS = re.compile(
    r"(CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_\w*ALLOC(ATION)?_FAILED"
    r"|CUDA error: out of memory"
    r"|Cuda failure( \d+)? 'out of memory'"  # NCCL's
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
)


class DeviceMemoryError(ClozelineError):
    """Training ran out of device memory on this rank. The other ranks only notice that this one has exited."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory could not be allocated."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and _WORDS.search(str(error)) is not None


def device_name(device: torch.device) -> str:
    """Return "cpu", or the name of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@contextlib.contextmanager
def noting_out_of_memory(recipe: Recipe, choice: Choice | None, device: torch.device) -> Iterator[None]:
    """Turn running out of memory into a DeviceMemoryError, and record that the choice of a micro-batch was too large.

    recipe: the phase's. choice: None if the recipe states the micro-batch itself.

    Only the ranks that ran out of memory get here, so this must not make a collective call.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        advice = advice_for(recipe) if choice is None else note_too_large(recipe.run.folder, choice)
        raise DeviceMemoryError(f"{recipe.run.output}: out of memory on {device_name(device)}, {advice}") from error


def advice_for(recipe: Recipe) -> str:
    """Return advice for a recipe that states the size of a micro-batch itself."""
    batch = recipe.batch
    name, size = ("micro_batch", batch.micro_batch) if batch.micro_batch else ("micro_tokens", batch.micro_tokens)
    return (
        f"with batch.{name} {size}. Lower it, or set batch.micro_batch=none and batch.micro_tokens=auto. The same "
        "command then resumes from the last checkpoint."
    )


def note_too_large(run: str, choice: Choice) -> str:
    """Record that training ran out of memory with a choice. Returns advice for the user."""
    path = Path(run) / RECORD
    chosen = f"with {choice.micro_tokens:,} tokens at once, which batch.micro_tokens auto chose."
    try:
        record(run, replace(choice, ran_out_of_memory=True))
    except StorageError as error:
        return f"{chosen} This could not be recorded: {error} Set batch.micro_tokens to half of that number."
    return f"{chosen} {path} records it: the same command resumes from the last checkpoint and takes half."
