"""Holds what a step, an evaluation or a logging interval computed as sums over all ranks, and derives means from them.

Losses and accuracies are sums over all steps divided by the sums of their counts, so each token to predict, each
labeled pair and, in replaced-token detection, each token counts once.

A checkpoint holds the sums of an interval, so the first line after a resume equals that of an uninterrupted run to the
last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isfinite
from typing import Any

from pydantic import BaseModel

from schemas.errors import DataError

PLACE_NAMES = ("mlm_loss_masked", "mlm_loss_kept", "mlm_loss_random", "mlm_accuracy_masked")
"""The metrics by what the model sees in the place of a token to predict (PLACE_KINDS)."""

REPLACED_TOKEN_NAMES = ("rtd_loss", "rtd_accuracy", "replaced_fraction")
"""The metrics that only a run with replaced-token detection has: means over all tokens. replaced_fraction is the share
of tokens that the generator replaced by other ones."""

NAMES_BY_KIND = ("mlm_loss", "perplexity", "mlm_accuracy", "mlm_loss_masked", "mlm_accuracy_masked")
"""Figures of an evaluation that depend on the kind of masking, and are logged for each kind. XLNet has none for places
with [MASK]."""

LARGEST_EXPONENT = 700.0
"""The largest loss whose perplexity is computed: exp(710) overflows a float."""


@dataclass(frozen=True)
class Sums:
    """Sums over any number of micro-batches, steps and ranks. What does not apply to a model is 0.

    On a device they are one float64 vector in the order of these fields, because ranks exchange them in one collective
    call and the host reads them in one copy. The first are those of `trainer.models.pretraining.Losses.stacked`:
    cross-entropy and correct predictions of the masked LM, of pair labels and of replaced-token detection, the replaced
    tokens, and for each kind of place its cross-entropy, correct predictions and number. Then come the counts: tokens
    to predict, labeled pairs, real tokens, and tokens with padding. The last one is of evaluations alone: the
    cross-entropy of the tokens to predict under word frequencies.
    """

    mlm_sum: float = 0.0
    mlm_correct: float = 0.0
    pair_sum: float = 0.0
    pair_correct: float = 0.0
    rtd_sum: float = 0.0
    rtd_correct: float = 0.0
    replaced: float = 0.0
    masked_sum: float = 0.0
    masked_correct: float = 0.0
    masked_places: float = 0.0
    kept_sum: float = 0.0
    kept_correct: float = 0.0
    kept_places: float = 0.0
    random_sum: float = 0.0
    random_correct: float = 0.0
    random_places: float = 0.0
    predicted: float = 0.0
    pairs: float = 0.0
    tokens: float = 0.0
    computed: float = 0.0
    unigram_sum: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(own + others for own, others in zip(vars(self).values(), vars(other).values(), strict=True)))

    def means(self, detects_replaced: bool) -> dict[str, float | None]:
        """Return losses and accuracies by their names in metrics.jsonl, None where nothing was counted.

        REPLACED_TOKEN_NAMES are included only if the model detects replaced tokens, and PLACE_NAMES only if tokens are
        masked.
        """
        means = {
            "mlm_loss": ratio(self.mlm_sum, self.predicted),
            "mlm_accuracy": ratio(self.mlm_correct, self.predicted),
            "pair_loss": ratio(self.pair_sum, self.pairs),
            "pair_accuracy": ratio(self.pair_correct, self.pairs),
        }
        if detects_replaced and self.tokens:
            sums = (self.rtd_sum, self.rtd_correct, self.replaced)
            means |= {name: total / self.tokens for name, total in zip(REPLACED_TOKEN_NAMES, sums, strict=True)}
        if self.masked_places or self.kept_places or self.random_places:
            means["mlm_loss_masked"] = ratio(self.masked_sum, self.masked_places)
            means["mlm_loss_kept"] = ratio(self.kept_sum, self.kept_places)
            means["mlm_loss_random"] = ratio(self.random_sum, self.random_places)
            means["mlm_accuracy_masked"] = ratio(self.masked_correct, self.masked_places)
        return means

    def loss(self, rtd_weight: float) -> float:
        """Return the loss of a global batch. There may be no pair labels. rtd_weight: of replaced-token detection."""
        rtd_loss = self.rtd_sum / max(self.tokens, 1)
        return self.mlm_sum / self.predicted + self.pair_sum / max(self.pairs, 1) + rtd_weight * rtd_loss


@dataclass(frozen=True)
class StepResult:
    """What one step computed over all ranks.

    loss: of the global batch. grad_norm: before clipping. fault: why the step made no update, None if it made one.
    rtd_weight: what the loss of replaced-token detection is multiplied by; 0 in a model that does not detect any.
    """

    step: int
    sums: Sums
    loss: float
    grad_norm: float
    fault: str | None
    rtd_weight: float = 0.0


class Interval(BaseModel):
    """Sums over the steps since the last logged line.

    sums: of steps with a finite loss. tokens, computed: of all steps, without padding and with it. norm_sum, norms: the
    finite gradient norms and their number.
    """

    sums: Sums = Sums()
    rtd_weight: float = 0.0
    tokens: float = 0.0
    computed: float = 0.0
    norm_sum: float = 0.0
    norms: int = 0

    def add(self, step: StepResult) -> None:
        self.tokens += step.sums.tokens
        self.computed += step.sums.computed
        self.rtd_weight = step.rtd_weight
        if isfinite(step.loss):
            self.sums += step.sums

        # DeepSpeed reports -1 for a norm that is not finite.
        if isfinite(step.grad_norm) and step.grad_norm >= 0:
            self.norm_sum += step.grad_norm
            self.norms += 1

    def means(self) -> dict[str, float | None]:
        """Return the metrics of the interval by name, None where nothing was counted."""
        means = self.sums.means(detects_replaced=self.rtd_weight != 0)
        loss = means["mlm_loss"]
        if loss is not None:
            loss += (means["pair_loss"] or 0.0) + self.rtd_weight * (means.get("rtd_loss") or 0.0)
        padding_fraction = 1 - self.tokens / self.computed if self.computed else None
        others = {"grad_norm": ratio(self.norm_sum, self.norms), "padding_fraction": padding_fraction}
        return {"loss": loss} | means | others


def evaluation_figures(sums: Sums, detects_replaced: bool) -> dict[str, Any]:
    """Return the figures of an evaluation with one kind of masking by their names in metrics.jsonl, without `eval_`."""
    mlm_loss = sums.mlm_sum / sums.predicted
    return {"mlm_loss": mlm_loss, "perplexity": exp(min(mlm_loss, LARGEST_EXPONENT))} | sums.means(detects_replaced)


def check_any_predicted(sums: Sums, otherwise: str) -> None:
    """Raise DataError with the message `otherwise` on all ranks if nothing was to be predicted, and so has no loss."""
    if sums.predicted:
        return
    error = DataError(otherwise)
    # The sums are over all ranks, so every rank raises this.
    error.everywhere = True
    raise error


def ratio(total: float, count: float) -> float | None:
    return None if count == 0 else total / count
