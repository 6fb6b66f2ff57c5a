"""Finds the likely cause of a loss that stays at the baseline of word frequencies, from what a run has measured.

Causes are tried in the order of CAUSES, and a cause that explains others comes before them. For example, a model whose
weights hardly move also has collapsed output, so the collapse is tried later.

Most limits below were chosen by hand, not measured, and say so. docs/troubleshooting.md lists them for users.

This module needs neither torch nor DeepSpeed, because the report uses its texts as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LEAST_MASKED_SHARE = 0.5
"""If a run predicts less than this fraction of the tokens that its recipe asks for, its masks are at fault. A little
less is normal, because the number of masked tokens is rounded for each row. Chosen by hand, not measured."""

LEAST_PREDICTED_SHARE = 0.02
"""If fewer of the tokens are predicted, whatever the recipe asks for, a step has too little to learn from. Chosen by
hand, not measured; recipes predict 15% and more."""

LEAST_MOVEMENT = 0.5
"""The least that updates must have been able to move a weight, in standard deviations of the initial weights. Chosen by
hand, not measured."""

LARGE_UPDATE = 0.5
"""The mean update's movement of a weight, in the same unit, above which the learning rate is too high. The shipped
recipes have 0.002 to 0.15 at their peak; the limit was chosen by hand."""

SPIKE = 0.5
"""Nats above the baseline beyond which a loss has spiked: the model has lost even the word frequencies. Chosen by hand,
not measured."""

MANY_SKIPS = 0.01
"""The share of steps without an update above which the learning rate is suspected. Chosen by hand, not measured."""

MANY_EPOCHS = 20.0
"""Passes over the rows above which they are too few. Chosen by hand, not measured."""

LOW_RANK = 5.0
"""If the effective rank of the vectors at predicted places is below this, they have collapsed. In a small run (two
layers, width 64) it was 1.4 to 1.8 at the baseline, and 6 to 7 once the loss was 1.0 to 1.3 nats below it."""

COPIED = 0.5
"""If the loss at kept places is below this share of the loss at [MASK], the model copies. Chosen by hand, not
measured."""

LEAST_STEPS = 500
"""A run that has taken fewer steps may be at the baseline and still on its way down, whatever its batch: `tiny` is at
it after 60 steps and 0.2 nats below after 70. Chosen by hand."""

LARGE_BATCH_TOKENS = 4_096
FEW_STEPS = 5_000
"""With batches of LARGE_BATCH_TOKENS or more, a run of fewer steps may end before its loss leaves the baseline.
Both were chosen by hand, not measured."""


@dataclass(frozen=True)
class Measurements:
    """What is known about a run when it is examined after `step`. Losses are in nats.

    baseline: the loss of a model that only knows word frequencies. loss: the model's, at places that show [MASK] if
    there are any. kept_loss: the model's at tokens that were left unchanged; None if there are none. masked_share: the
    share of tokens that were predicted. recipe_share: the smallest share that the recipe asks for at any step.
    movement: the most that updates can have moved a weight, in standard deviations of the initial weights. update: the
    same for the mean update. skipped_steps: those that made no update. epochs: how often the phase's rows were passed,
    by the mean size of a step. batch_tokens: mean tokens of a step. effective_rank: see effective_rank.py.
    """

    step: int
    baseline: float
    loss: float
    kept_loss: float | None
    masked_share: float
    recipe_share: float
    movement: float
    update: float
    skipped_steps: int
    epochs: float
    batch_tokens: float
    effective_rank: float


@dataclass(frozen=True)
class Cause:
    """A likely cause: whether measurements show it, what was measured, and what to do.

    finding is a format string with the names of Measurements.
    """

    is_shown: Callable[[Measurements], bool]
    finding: str
    advice: str


def _hits_little(m: Measurements) -> bool:
    return m.masked_share < max(LEAST_MASKED_SHARE * m.recipe_share, LEAST_PREDICTED_SHARE)


def _hardly_moves(m: Measurements) -> bool:
    return m.movement < LEAST_MOVEMENT


def _moves_too_far(m: Measurements) -> bool:
    # A model whose weights have hardly moved is above the baseline as well, but `_hardly_moves` is tried before this.
    return m.loss > m.baseline + SPIKE or m.skipped_steps > MANY_SKIPS * m.step or m.update > LARGE_UPDATE


def _repeats_rows(m: Measurements) -> bool:
    return m.epochs > MANY_EPOCHS


def _copies(m: Measurements) -> bool:
    return m.kept_loss is not None and m.kept_loss < COPIED * m.loss


def _has_collapsed(m: Measurements) -> bool:
    return m.effective_rank < LOW_RANK


def _has_few_steps(m: Measurements) -> bool:
    return m.step < LEAST_STEPS or (m.batch_tokens >= LARGE_BATCH_TOKENS and m.step < FEW_STEPS)


CAUSES: dict[str, Cause] = {
    "masks": Cause(
        _hits_little,
        "{masked_share:.2%} of the tokens are predicted, and the recipe asks for {recipe_share:.2%}",
        "check masking.prob, masking.max_predictions, and the pairs for unknown words",
    ),
    "learning_rate_low": Cause(
        _hardly_moves,
        "all updates together can have moved a weight by {movement:.2g} standard deviations of the initial ones",
        "raise optimizer.lr or shorten schedule.warmup_steps",
    ),
    "learning_rate_high": Cause(
        _moves_too_far,
        "the loss is at {loss:.2f}, {skipped_steps} steps made no update, and an update can move a weight by "
        "{update:.2g} standard deviations of the initial ones",
        "lower optimizer.lr or lengthen schedule.warmup_steps",
    ),
    "repeated_rows": Cause(
        _repeats_rows,
        "the rows were passed {epochs:.0f} times",
        "use more text, or --dupe_factor for other pairs of the same",
    ),
    "copying": Cause(
        _copies,
        "the loss is {kept_loss:.2f} at tokens that were left as they are, so the model copies instead of predicting",
        'set masking.replacement = "100/0/0", use smaller batches, and see docs/troubleshooting.md',
    ),
    "few_steps": Cause(
        _has_few_steps,
        "{step} steps of {batch_tokens:.0f} tokens, so far, are few",
        "train for more steps, with smaller batches if they are large",
    ),
    "collapsed_output": Cause(
        _has_collapsed,
        "the model gives nearly the same vector everywhere (effective rank {effective_rank:.1f})",
        "use smaller batches, or start from better weights (model.init_from), and see docs/troubleshooting.md",
    ),
    "unknown": Cause(
        lambda _: True,
        "nothing that was measured explains it",
        "check that the words are not in random order, train longer, and see docs/troubleshooting.md",
    ),
}
"""All causes by their name in metrics.jsonl (`loss_doctor`), in the order in which they are tried."""


def likely_cause(measurements: Measurements) -> str:
    """Return the name of the first cause that the measurements show."""
    return next(name for name, cause in CAUSES.items() if cause.is_shown(measurements))


def worded(name: str, measurements: Measurements) -> str:
    """Return a cause as one sentence that says what was measured, what it means and what to do."""
    cause = CAUSES[name]
    finding = cause.finding.format(**vars(measurements))
    return (
        f"step {measurements.step}: the loss of predicted tokens ({measurements.loss:.2f}) is no better than that of "
        f"word frequencies alone ({measurements.baseline:.2f}). Likely cause: {name.replace('_', ' ')}. "
        f"{_sentence(finding)} {_sentence(cause.advice)}"
    )


def advice(name: str) -> str:
    """Return what to do about a cause as a sentence; empty for a name that this version does not know."""
    cause = CAUSES.get(name)
    return "" if cause is None else _sentence(cause.advice)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
