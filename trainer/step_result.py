"""What one training step computed, as plain numbers on the host: counts and sums over a global batch, and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.errors import DataError
from trainer.metrics.places import PlaceSums
from trainer.models.place_kinds import PlaceKind


@dataclass(frozen=True)
class BatchCounts:
    """Sums over a global batch.

    masked: tokens to predict. pairs: rows whose pair label is predicted. tokens: real tokens.
    computed: tokens with padding.
    """

    masked: float
    pairs: float
    tokens: float
    computed: float


@dataclass(frozen=True)
class StepResult:
    """What one step computed, over all ranks.

    The sums are those of trainer.models.pretraining.Losses. loss: the loss of the global batch. grad_norm: before
    clipping. fault: why the step made no update, None if it made one. rtd_weight: what the mean of rtd_sum is
    multiplied by in the loss; 0 in a model that does not detect replaced tokens. by_place: the masked tokens' sums,
    split by what the model sees in their place.
    """

    step: int
    counts: BatchCounts
    mlm_sum: float
    mlm_correct: float
    pair_sum: float
    pair_correct: float
    loss: float
    grad_norm: float
    fault: str | None
    rtd_sum: float = 0.0
    rtd_correct: float = 0.0
    replaced: float = 0.0
    rtd_weight: float = 0.0
    by_place: Mapping[PlaceKind, PlaceSums] = field(default_factory=dict)


def check_masked(counts: BatchCounts, step: int) -> None:
    """Raise DataError on all ranks if a global batch has nothing to predict and therefore no loss."""
    if counts.masked:
        return

    error = DataError(
        f"The batch of step {step} has no masked token: its rows hold only unknown words, or their stored masks "
        "are empty. Use a vocabulary that covers the text, or rebuild the pairs."
    )
    # The counts are those of the whole batch, so every rank raises this.
    error.everywhere = True
    raise error


def normalized_loss(mlm_sum: float, pair_sum: float, weighted_rtd_sum: float, counts: BatchCounts) -> float:
    """Divide each sum of losses by its count in the global batch, and add the results up. There may be no pair labels.

    weighted_rtd_sum: already multiplied by the weight of replaced-token detection.
    """
    return mlm_sum / counts.masked + pair_sum / max(counts.pairs, 1) + weighted_rtd_sum / max(counts.tokens, 1)
