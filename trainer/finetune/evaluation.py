"""Runs a model on sets of examples. The ranks divide the batches among them, and every rank gets all predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from schemas.errors import ClozelineError
from trainer.finetune.batches import evaluation_batches
from trainer.finetune.determinism import with_deterministic_kernels
from trainer.finetune.examples import Example
from trainer.finetune.kinds.kind import Feature, Floats, Kind

FEATURES_AT_ONCE = 64
"""Features per batch in evaluation."""


class DivergedError(ClozelineError):
    """The loss, or what the model computes, is NaN or infinite. Training cannot recover from that."""

    everywhere = True


@dataclass(frozen=True)
class ExampleSet:
    """Examples, and the features that the task's kind made from them."""

    examples: Sequence[Example]
    features: list[Feature]


@torch.inference_mode()
def predict(model: Any, kind: Kind[Any, Any], examples: ExampleSet, progress: Callable[[], None]) -> list[Any]:
    """Return the predictions for all examples, in the order of the examples. A collective call.

    progress: called after each batch. Raises DivergedError on all ranks if a score is not finite, as after an update
    that was too large.
    """
    model.eval()
    device = next(model.parameters()).device
    rank, ranks = dist.get_rank(), dist.get_world_size()

    own: dict[int, Floats] = {}
    for batch in evaluation_batches(examples.features, FEATURES_AT_ONCE)[rank::ranks]:
        features = [examples.features[number] for number in batch]
        columns = {name: values.to(device) for name, values in kind.batch(features).items()}
        with autocast(device, kind.task.training.precision):
            output = with_deterministic_kernels(partial(model, **columns))
        own.update(zip(batch, kind.scores(output, features), strict=True))
        progress()

    scores = gathered(own)
    ordered = [scores[number] for number in range(len(examples.features))]
    if not all(np.isfinite(score).all() for score in ordered):
        training = kind.task.training
        raise DivergedError(
            f"the model computes scores that are NaN or infinite. Lower training.lr, which is {training.lr}, or raise "
            "training.warmup_ratio."
        )
    return kind.predictions(examples.examples, examples.features, ordered)


def gathered(own: dict[int, Floats]) -> dict[int, Floats]:
    """Return the scores of all ranks, by index of the feature. A collective call."""
    if dist.get_world_size() == 1:
        return own
    parts: list[dict[int, Floats]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, own)
    return {number: scores for part in parts for number, scores in part.items()}


def autocast(device: torch.device, precision: str) -> Any:
    """Return the autocast context of a forward pass: bfloat16 for precision "bf16", disabled otherwise."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
