"""Examines the loss of a phase while it trains, at the steps where that is due."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from deepspeed import DeepSpeedEngine

from trainer.anomaly import AnomalyGuard
from trainer.config.phases import Phase, phases_of
from trainer.due import evaluation_is_due, line_is_due
from trainer.evaluate import Evaluation
from trainer.logs import logger
from trainer.loss_doctor import examination
from trainer.metrics.log import Figures
from trainer.metrics.unigram import TrainingText
from trainer.models.batch import PackedBatch
from trainer.optim.lr_schedule import learning_rate_of
from trainer.progress import Progress
from trainer.run_context import RunContext


@dataclass(frozen=True)
class LossExaminer:
    """Compares the loss of one phase with that of word frequencies alone, and logs why it is no better.

    evaluation: None if the run has no held-out data. training_text: word frequencies and size of the phase's rows; if
    None, nothing is examined.

    The held-out loss decides if there is one, except under causal LM: evaluations predict masked tokens, which such a
    phase does not learn.
    """

    context: RunContext
    phase: Phase
    engine: DeepSpeedEngine
    guard: AnomalyGuard
    evaluation: Evaluation | None
    training_text: TrainingText | None

    def baseline_figures(self) -> Figures:
        """Return the loss of word frequencies alone on the training text, by its name in metrics.jsonl."""
        return {} if self.training_text is None else {"unigram_loss": self.training_text.frequencies.loss}

    def is_due(self, step: int, progress: Progress) -> bool:
        """Return whether the loss after `step` is compared with that of word frequencies alone."""
        run_recipe = self.context.run_recipe
        if self.training_text is None or not examination.is_due(self.phase, step, progress.examined_step):
            return False
        if self.held_out is None:
            return line_is_due(run_recipe, self.phase, step)
        return evaluation_is_due(run_recipe, self.phase, step)

    @property
    def held_out(self) -> Evaluation | None:
        """The evaluation whose loss is examined. If None, it is the training loss."""
        return None if self.phase.recipe.objective.kind == "clm" else self.evaluation

    def examine(self, step: int, figures: Figures, progress: Progress, micro_batches: list[PackedBatch]) -> Figures:
        """Compare the loss with that of word frequencies alone, and log why it is no better. A collective call.

        figures: those of the line of metrics. micro_batches: some that were trained on, which are used in a run without
        held-out data.

        Returns {"loss_doctor": name of the likely cause}, or an empty dictionary if the loss is better.
        """
        held_out = self.held_out
        examined = examination.examined_loss(figures, prefix="" if held_out is None else "eval_")
        if examined is None or self.training_text is None:
            return {}

        progress.examined_step = step
        if not examined.is_at_baseline:
            return {}

        self.context.watchdog.at(f"step {step}, looking for why the loss does not fall")
        run = examination.ExaminedRun(
            recipe=self.phase.recipe,
            step=step,
            first_step=self.phase.steps_before + 1,
            learning_rate_at=partial(learning_rate_of, phases_of(self.context.run_recipe)),
            corpus_tokens=self.training_text.tokens,
            tokens=progress.meter.tokens,
            skipped_steps=self.guard.history.skipped,
            interval=progress.interval,
        )
        if held_out is not None:
            micro_batches = held_out.first_batch()
        cause, sentence = examination.diagnosis(run, examined, self.engine, micro_batches)
        logger.info("%s: %s", self.context.run_recipe.run.folder, sentence)
        return {"loss_doctor": cause}
