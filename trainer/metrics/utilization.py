"""Computes how much of the devices' peak FLOPs a phase uses: MFU and HFU (trainer/models/flops.py defines both)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from deepspeed.accelerator import get_accelerator

from trainer.config.schema import Recipe
from trainer.data.folder import PairFolder
from trainer.models.families import encoder_shape
from trainer.models.flops import ExecutedWork, executed_flops, flops_per_token, peak_flops
from trainer.models.shape import EncoderShape


@dataclass(frozen=True)
class Utilization:
    """The cost of a phase's tokens, and the peak of its devices.

    mean_seen: how many tokens a real token attends to on average. masked: the share of tokens that are predicted.
    peak: FLOPs per second of all devices together. recompute: engine.recompute.
    """

    shape: EncoderShape
    mean_seen: float
    masked: float
    peak: float
    recompute: bool = False

    def mfu(self, tokens_per_second: float) -> float:
        """Return the model FLOPs utilization. tokens_per_second: real tokens, over all devices."""
        return tokens_per_second * flops_per_token(self.shape, self.mean_seen, self.masked) / self.peak

    def hfu(self, tokens_per_second: float, work: ExecutedWork) -> float | None:
        """Return the hardware FLOPs utilization, None if nothing was computed.

        work: of one rank. It is similar on the others, because rows are assigned to ranks evenly (data/share.py).
        """
        if work.tokens == 0:
            return None
        executed_per_token = executed_flops(self.shape, work, self.mean_seen, self.recompute) / work.tokens
        return tokens_per_second * executed_per_token / self.peak


def utilization_of(recipe: Recipe, folders: list[PairFolder], world_size: int) -> Utilization | None:
    """Return the utilization of a phase, None if the peak is not known: on CPUs, on unknown GPUs, and in fp32."""
    accelerator = get_accelerator()
    is_cuda = accelerator is not None and accelerator.device_name() == "cuda"
    if not is_cuda or recipe.engine.precision == "fp32":
        return None

    peak = peak_flops(torch.cuda.get_device_name())
    if peak is None:
        return None

    shape = encoder_shape(recipe.model, folders[0].vocabulary.size)
    seen = mean_seen(folders)
    predicted = 1.0 if recipe.objective.kind == "clm" else recipe.masking.prob
    return Utilization(shape, seen, predicted, world_size * peak, recipe.engine.recompute)


def mean_seen(folders: list[PairFolder]) -> float:
    """Return how many tokens a token attends to on average.

    Each of a row's n tokens attends to n, so this is the sum of squared lengths divided by the sum of lengths.
    """
    tokens = 0
    squares = 0
    for folder in folders:
        rows_by_length = folder.manifest.statistics["lengths"]
        for length, rows in enumerate(rows_by_length):
            tokens += length * rows
            squares += length * length * rows

    return squares / tokens
