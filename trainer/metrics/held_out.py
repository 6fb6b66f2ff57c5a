"""Computes the figures of an evaluation on held-out pairs from its sums over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from typing import NamedTuple

from schemas.errors import DataError
from trainer.metrics.interval import REPLACED_TOKEN_NAMES
from trainer.metrics.log import Figures
from trainer.metrics.loss_sums import LossSums
from trainer.metrics.places import MASKED_NAMES, place_means
from trainer.models.pretraining import SUMS

LARGEST_EXPONENT = 700.0
"""The largest loss whose perplexity is computed: exp(710) overflows a float."""

NAMES_BY_KIND = ("mlm_loss", "perplexity", "mlm_accuracy", *MASKED_NAMES)
"""Figures that depend on the kind of masking, and are logged for each kind. XLNet has none for places with [MASK]."""


class EvaluationCounts(NamedTuple):
    """What the sums of losses are divided by.

    masked: tokens to predict. pairs: rows whose pair label is predicted. judged: tokens, 0 in a model that does not
    detect replaced ones.
    """

    masked: float
    pairs: float
    judged: float


class EvaluationSums(NamedTuple):
    """The sums of an evaluation with one kind of masking, over all its rows.

    unigram_sum: the cross-entropy of the tokens to predict under word frequencies.
    """

    losses: LossSums
    counts: EvaluationCounts
    unigram_sum: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> EvaluationSums:
        """Return the sums by name. values: those of `Losses.stacked`, then of EvaluationCounts, then unigram_sum."""
        return cls(LossSums.from_values(values[:SUMS]), EvaluationCounts(*values[SUMS:-1]), values[-1])


def check_any_masked(sums_by_kind: Mapping[str, EvaluationSums], folder: str) -> None:
    """Raise DataError on all ranks if the held-out rows have nothing to predict and therefore no loss."""
    for kind, sums in sums_by_kind.items():
        if sums.counts.masked:
            continue

        error = DataError(
            f"evaluation.pairs {folder} has no token that masks of kind {kind} can be drawn on: its rows hold only "
            "unknown words. Use a vocabulary that covers the text, or hold out other text."
        )
        # The sums are over all ranks, so every rank raises this.
        error.everywhere = True
        raise error


def figures(sums: EvaluationSums) -> Figures:
    """Return means over masked tokens and over labeled rows; the latter are None if there is no labeled row.

    REPLACED_TOKEN_NAMES, which are means over all tokens, are included only for a model that detects replaced tokens,
    and PLACE_NAMES only if tokens are masked.
    """
    losses, counts, _ = sums
    mlm_loss = losses.mlm_sum / counts.masked

    detection = {}
    if counts.judged:
        rtd_sums = (losses.rtd_sum, losses.rtd_correct, losses.replaced)
        detection = {name: total / counts.judged for name, total in zip(REPLACED_TOKEN_NAMES, rtd_sums, strict=True)}

    return (
        {
            "mlm_loss": mlm_loss,
            "perplexity": exp(min(mlm_loss, LARGEST_EXPONENT)),
            "mlm_accuracy": losses.mlm_correct / counts.masked,
            "pair_loss": losses.pair_sum / counts.pairs if counts.pairs else None,
            "pair_accuracy": losses.pair_correct / counts.pairs if counts.pairs else None,
        }
        | detection
        | place_means(losses.by_place)
    )
