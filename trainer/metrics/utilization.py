"""Computes which share of the devices' peak FLOPs a phase uses for its model: MFU (trainer/models/flops.py)."""

from __future__ import annotations

import torch
from deepspeed.accelerator import get_accelerator

from trainer.config.schema import Recipe
from trainer.data.dataset import PairFolder
from trainer.models.families import encoder_shape
from trainer.models.flops import flops_per_token, peak_flops


def mfu_of_one_token(recipe: Recipe, folders: list[PairFolder], world_size: int) -> float | None:
    """Return the MFU of a phase at one real token per second over all devices.

    None if their peak is not known: on CPUs, on unknown GPUs, and in fp32.
    """
    accelerator = get_accelerator()
    is_cuda = accelerator is not None and accelerator.device_name() == "cuda"
    if not is_cuda or recipe.engine.precision == "fp32":
        return None

    peak = peak_flops(torch.cuda.get_device_name())
    if peak is None:
        return None

    shape = encoder_shape(recipe.model, folders[0].vocabulary.size)
    predicted = 1.0 if recipe.objective.kind == "clm" else recipe.masking.prob
    return flops_per_token(shape, mean_seen(folders), predicted) / (world_size * peak)


def mean_seen(folders: list[PairFolder]) -> float:
    """Return how many tokens a token attends to on average.

    Each of a row's n tokens attends to n, so this is the sum of squared lengths divided by the sum of lengths.
    """
    tokens = 0
    squares = 0
    for folder in folders:
        for length, rows in enumerate(folder.manifest.statistics["lengths"]):
            tokens += length * rows
            squares += length * length * rows
    return squares / tokens
