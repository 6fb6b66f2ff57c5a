"""Computes means over a logging interval: the steps since the last logged line.

Losses and accuracies are sums over all steps divided by the sums of their counts, so each masked token, each labeled
pair and, in replaced-token detection, each token counts once. grad_norm is the mean of the steps' norms. Steps whose
loss is not finite are left out of losses and accuracies, and steps whose gradient norm is not finite out of grad_norm.

A checkpoint holds the sums, so the first line after a resume equals that of an uninterrupted run to the last bit.
"""

from __future__ import annotations

from math import isfinite

from pydantic import BaseModel

from trainer.metrics.places import PlaceSums, place_means, ratio
from trainer.models.place_kinds import PlaceKind
from trainer.step_result import StepResult

REPLACED_TOKEN_NAMES = ("rtd_loss", "rtd_accuracy", "replaced_fraction")
"""The metrics that only a run with replaced-token detection has: means over all tokens. replaced_fraction is the share
of tokens that the generator replaced by other ones."""


class Interval(BaseModel):
    """Sums over the steps of an interval and over all ranks."""

    # Losses and correct predictions, of steps with a finite loss.
    mlm_sum: float = 0.0
    mlm_correct: float = 0.0
    pair_sum: float = 0.0
    pair_correct: float = 0.0

    # Masked tokens and labeled pairs of the same steps, which the sums above are divided by, and all their tokens.
    masked: float = 0.0
    pairs: float = 0.0
    tokens_of_losses: float = 0.0

    # Replaced-token detection, of the same steps: loss, correct predictions and replaced tokens; all tokens, by which
    # these three are divided; and the weight of the mean loss.
    rtd_sum: float = 0.0
    rtd_correct: float = 0.0
    replaced: float = 0.0
    judged: float = 0.0
    rtd_weight: float = 0.0

    # The masked tokens of the same steps, by what the model sees in their place.
    by_place: dict[PlaceKind, PlaceSums] = {}

    # Tokens of all steps: without padding, and with it.
    tokens: float = 0.0
    computed: float = 0.0

    # Finite gradient norms, and how many there are.
    norm_sum: float = 0.0
    norms: int = 0

    def add(self, step: StepResult) -> None:
        """Add one step."""
        self.tokens += step.counts.tokens
        self.computed += step.counts.computed

        if isfinite(step.loss):
            self.mlm_sum += step.mlm_sum
            self.mlm_correct += step.mlm_correct
            self.pair_sum += step.pair_sum
            self.pair_correct += step.pair_correct
            self.masked += step.counts.masked
            self.pairs += step.counts.pairs
            self.tokens_of_losses += step.counts.tokens
            for kind, sums in step.by_place.items():
                self.by_place.setdefault(kind, PlaceSums()).add(sums)

        if isfinite(step.loss) and step.rtd_weight:
            self.rtd_sum += step.rtd_sum
            self.rtd_correct += step.rtd_correct
            self.replaced += step.replaced
            self.judged += step.counts.tokens
            self.rtd_weight = step.rtd_weight

        # DeepSpeed reports -1 for a norm that is not finite.
        if isfinite(step.grad_norm) and step.grad_norm >= 0:
            self.norm_sum += step.grad_norm
            self.norms += 1

    def means(self) -> dict[str, float | None]:
        """Return the metrics of the interval by name, None where nothing was counted.

        REPLACED_TOKEN_NAMES are included only in a run that detects replaced tokens, and PLACE_NAMES only if tokens are
        masked.
        """
        mlm_loss = ratio(self.mlm_sum, self.masked)
        pair_loss = ratio(self.pair_sum, self.pairs)

        rtd_loss = ratio(self.rtd_sum, self.judged)

        # Only a run with a pair objective has a pair loss, and only one that detects replaced tokens has that loss.
        loss = None
        if mlm_loss is not None:
            loss = mlm_loss + (pair_loss or 0.0) + self.rtd_weight * (rtd_loss or 0.0)

        padding_fraction = None
        if self.computed > 0:
            padding_fraction = 1 - self.tokens / self.computed

        rtd = [rtd_loss, ratio(self.rtd_correct, self.judged), ratio(self.replaced, self.judged)]
        detection = dict(zip(REPLACED_TOKEN_NAMES, rtd, strict=True)) if self.judged else {}

        return (
            {
                "loss": loss,
                "mlm_loss": mlm_loss,
                "mlm_accuracy": ratio(self.mlm_correct, self.masked),
                "pair_loss": pair_loss,
                "pair_accuracy": ratio(self.pair_correct, self.pairs),
                "grad_norm": ratio(self.norm_sum, self.norms),
                "padding_fraction": padding_fraction,
            }
            | detection
            | place_means(self.by_place)
        )
