"""Host memory: checks before a model is built that its weights can fit, and reads how much memory is available."""

from __future__ import annotations

import os
from pathlib import Path

from schemas.errors import UsageError
from trainer.config.schema import ModelSection, Recipe
from trainer.models.families import encoder_shape
from trainer.models.parameter_count import count_model

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
"""Where Linux reports memory: of the machine, and of the container that this process may run in (cgroup version 2)."""

WEIGHT_BYTES = 4  # the optimizer keeps float32 weights, whatever engine.precision is


def check_memory(recipe: Recipe, path: str) -> None:
    """Raise UsageError if the weights alone are larger than this machine's memory.

    On CPUs each rank holds the weights (in ZeRO stage 3, all ranks together), and on GPUs checkpoints pass through host
    memory. Gradients, the optimizer and activations need more, possibly on another device; `--describe` counts them.
    path: names the recipe in the message.
    """
    model = recipe.model
    needed_bytes = WEIGHT_BYTES * minimum_parameters(model)
    available_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed_bytes <= available_bytes:
        return

    raise UsageError(
        f"{path}: the weights of model.num_hidden_layers {model.num_hidden_layers:,}, "
        f"model.hidden_size {model.hidden_size:,} and model.intermediate_size {model.intermediate_size:,} take "
        f"{needed_bytes / 1e9:,.0f} GB, but this machine has {available_bytes / 1e9:,.0f} GB of memory. "
        "Make the model smaller, or use a larger machine."
    )


def minimum_parameters(model: ModelSection) -> int:
    """Return the number of parameters of a [model]. Without vocab_size, a vocabulary of one token is assumed."""
    return count_model(encoder_shape(model, model.vocab_size or 1))


def available_bytes() -> int:
    """Return the bytes that processes of this machine, or of this container, can still allocate without swapping."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if MEMINFO.exists():
        # Unlike free pages, this includes the page cache, which the system frees when memory is needed.
        available = 1024 * _numbers_in(MEMINFO).get("MemAvailable:", 0) or available

    limit = _text_of(CGROUP / "memory.max")
    used = _text_of(CGROUP / "memory.current")
    if limit.isdecimal() and used.isdecimal():
        reclaimable = _numbers_in(CGROUP / "memory.stat").get("inactive_file", 0)
        available = min(available, int(limit) - int(used) + reclaimable)
    return max(0, available)


def _text_of(path: Path) -> str:
    """Return a small file's text, empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _numbers_in(path: Path) -> dict[str, int]:
    """Return the numbers of a file whose lines begin with a name and a whole number."""
    lines = [line.split() for line in _text_of(path).splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
