"""Computes the figures of an evaluation on held-out pairs from its sums over all ranks.

Shape suffix: 20, the sums of trainer.models.pretraining.Losses, then masked tokens, labeled rows and tokens, and the
labels' cross-entropy under word frequencies.
"""

from __future__ import annotations

from math import exp

from schemas.errors import DataError
from schemas.masking import KINDS
from trainer.metrics.interval import REPLACED_TOKEN_NAMES
from trainer.metrics.log import Figures
from trainer.metrics.places import MASKED_NAMES, place_means, place_sums
from trainer.models.pretraining import SUMS

LARGEST_EXPONENT = 700.0
"""The largest loss whose perplexity is computed: exp(710) overflows a float."""

NAMES_BY_KIND = ("mlm_loss", "perplexity", "mlm_accuracy", *MASKED_NAMES)
"""Figures that depend on the kind of masking, and are logged for each kind. XLNet has none for places with [MASK]."""


def check_any_masked(sums_by_kind: list[list[float]], folder: str) -> None:
    """Raise DataError on all ranks if the held-out rows have nothing to predict and therefore no loss."""
    for kind, sums_20 in zip(KINDS, sums_by_kind, strict=True):
        masked = sums_20[SUMS]
        if masked:
            continue

        error = DataError(
            f"evaluation.pairs {folder} has no token that masks of kind {kind} can be drawn on: its rows hold only "
            "unknown words. Use a vocabulary that covers the text, or hold out other text."
        )
        # The sums are over all ranks, so every rank raises this.
        error.everywhere = True
        raise error


def figures(sums_20: list[float]) -> Figures:
    """Return means over masked tokens and over labeled rows; the latter are None if there is no labeled row.

    REPLACED_TOKEN_NAMES, which are means over all tokens, are included only for a model that detects replaced tokens,
    and PLACE_NAMES only if tokens are masked.
    """
    mlm_sum, mlm_correct, pair_sum, pair_correct = sums_20[:4]
    rtd_sums = sums_20[4:7]
    by_place = place_sums(sums_20[7:SUMS])
    masked, pairs, judged, _unigram_sum = sums_20[SUMS:]
    mlm_loss = mlm_sum / masked
    detection = {name: total / judged for name, total in zip(REPLACED_TOKEN_NAMES, rtd_sums, strict=True) if judged}
    return (
        {
            "mlm_loss": mlm_loss,
            "perplexity": exp(min(mlm_loss, LARGEST_EXPONENT)),
            "mlm_accuracy": mlm_correct / masked,
            "pair_loss": pair_sum / pairs if pairs else None,
            "pair_accuracy": pair_correct / pairs if pairs else None,
        }
        | detection
        | place_means(by_place)
    )
