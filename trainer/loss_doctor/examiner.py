"""Examines the loss of a phase while it trains, at the steps where that is due."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from deepspeed import DeepSpeedEngine

from trainer.anomaly import AnomalyGuard
from trainer.checkpoint.state import TrainingState
from trainer.config.phases import Phase, phases_of
from trainer.data.counts import TrainingText
from trainer.due import evaluation_is_due, line_is_due
from trainer.evaluate import Evaluation, EvaluationResult
from trainer.logs import logger
from trainer.loss_doctor import examination
from trainer.loss_doctor.examination import ExaminedLoss
from trainer.metrics.log import Figures
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

    def must_wait(self, evaluation: EvaluationResult) -> bool:
        """Return whether an examination after this evaluation has to wait until it is rerun."""
        return self.held_out is not None and evaluation.interrupted

    def examine(self, step: int, figures: Figures, progress: Progress, micro_batches: list[PackedBatch]) -> Figures:
        """Examine the loss after a step of training, and count the step as examined. As `examine_state` otherwise."""
        if self.loss_in(figures) is None:
            return {}
        progress.examined_step = step
        return self.examine_state(progress.state_at(step, self.guard.history), figures, micro_batches)

    def examine_state(self, state: TrainingState, figures: Figures, micro_batches: list[PackedBatch]) -> Figures:
        """Compare the loss with that of word frequencies alone, and log why it is no better. A collective call.

        state: after the examined step, with the interval of its line of metrics. figures: those of that line.
        micro_batches: some that were trained on, which are used in a run without held-out data.

        Returns {"loss_doctor": name of the likely cause}, or an empty dictionary if the loss is better or unknown. The
        result follows from the arguments and the weights, so it is the same if an interrupted evaluation is rerun.
        """
        examined = self.loss_in(figures)
        if examined is None or self.training_text is None or not examined.is_at_baseline:
            return {}

        step = state.step
        self.context.watchdog.at(f"step {step}, looking for why the loss does not fall")
        run = examination.ExaminedRun(
            recipe=self.phase.recipe,
            step=step,
            first_step=self.phase.steps_before + 1,
            learning_rate_at=partial(learning_rate_of, phases_of(self.context.run_recipe)),
            corpus_tokens=self.training_text.tokens,
            tokens=state.tokens,
            skipped_steps=state.anomaly.skipped,
            interval=state.interval,
        )
        if self.held_out is not None:
            micro_batches = self.held_out.first_batch()
        assert micro_batches, "an examination without held-out data needs batches that were trained on"
        cause, sentence = examination.diagnosis(run, examined, self.engine, micro_batches)
        logger.info("%s: %s", self.context.run_recipe.run.folder, sentence)
        return {"loss_doctor": cause}

    def is_still_at_baseline(self, figures: Figures, step: int) -> bool:
        """Return whether the loss is no better than that of word frequencies, after more steps than a trial has."""
        examined = self.loss_in(figures)
        return examined is not None and examined.is_at_baseline and step >= examination.first_examination(self.phase)

    def loss_in(self, figures: Figures) -> ExaminedLoss | None:
        """Return the loss that is examined, from the figures of a line of metrics. None if they do not have it."""
        return examination.examined_loss(figures, prefix="" if self.held_out is None else "eval_")
