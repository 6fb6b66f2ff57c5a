"""Rolls a run back to its last checkpoint after too many bad steps, and decides when to give up."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.errors import ClozelineError
from trainer.config.schema import Recipe
from trainer.logs import logger


class AnomalyError(ClozelineError):
    """Too many consecutive steps were bad, and rolling back did not help."""

    everywhere = True


@dataclass(frozen=True)
class Rollback:
    """How many times a run was rolled back to the checkpoint of `to_step`, and how many batches it skips from there."""

    to_step: int = -1
    times: int = 0
    skipped_batches: int = 0

    def again(self, to_step: int, bad_step: int) -> Rollback:
        """Return the rollback to make after bad steps up to `bad_step`.

        Rollbacks to the same checkpoint add up: batches skipped before stay skipped, and the batches trained since then
        are skipped as well.
        """
        before = self if self.to_step == to_step else Rollback(to_step)
        return Rollback(to_step, before.times + 1, before.skipped_batches + bad_step - to_step)


def announce_rollback(run_recipe: Recipe, rollback: Rollback, bad_step: int) -> None:
    """Log a rollback. Raises AnomalyError if there were already anomaly.max_rollbacks to the same checkpoint."""
    anomaly = run_recipe.anomaly
    what_happened = f"{run_recipe.run.output}: {anomaly.max_skips} steps in a row up to step {bad_step} made no update"

    if rollback.times > anomaly.max_rollbacks:
        raise AnomalyError(
            f"{what_happened}, and going back to step {rollback.to_step} {anomaly.max_rollbacks} times did not help. "
            "Lower optimizer.lr, or change in [anomaly] what counts as a bad step; the command then continues from "
            f"step {rollback.to_step}."
        )
    logger.info(
        "%s. Going back to step %d; %d steps of data are left out.",
        what_happened,
        rollback.to_step,
        rollback.skipped_batches,
    )
