"""What happens around the steps of a seed: saves, stops and progress lines."""

from __future__ import annotations

from math import isfinite
from time import perf_counter
from typing import Any

from transformers import TrainerCallback

from schemas import progress, storage
from schemas.errors import ClozelineError, PreemptedError
from trainer.distributed.collectives import run_on_rank_0
from trainer.finetune.inputs import record_inputs
from trainer.finetune.job import Job
from trainer.finetune.task import Task
from trainer.finetune.task_file import dump_task
from trainer.logs import IN_FILE_ONLY, log_file, logger
from trainer.metrics.presentation import duration

SECONDS_BETWEEN_LINES = 30.0
"""Seconds between two lines of progress within an epoch."""


class DivergedError(ClozelineError):
    """The loss, or what the model computes, is NaN or infinite. Training cannot recover from that."""

    everywhere = True


def diverged(task: Task, what: str) -> DivergedError:
    """Return the error for values that are not finite. what: the beginning of its message."""
    return DivergedError(f"{what}. Lower training.lr, which is {task.training.lr}, or raise training.warmup_ratio.")


def record_start(job: Job) -> None:
    """Write inputs.json and task.toml. From now on, the output folder belongs to this fine-tuning.

    One that failed before it trained anything, for example because of damaged weights or of a service that it should
    log to, owns nothing, so that the corrected command may use the folder.
    """
    record_inputs(job.output, job.inputs)
    storage.publish(str(job.output / "task.toml"), dump_task(job.task).encode())


class SeedEvents(TrainerCallback):
    """Saves every `save_every` steps and when the ranks agree to stop, tells the watchdog, and logs the progress."""

    def __init__(self, job: Job, seed: int, batches: Any):
        """batches: the order of the training set, whose `epoch` this sets."""
        self.job = job
        self.seed = seed
        self.batches = batches
        self.stopping = False
        self.bar: progress.Bar | None = None
        self._restart_line(0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        # The services that Trainer logs to have started, so nothing is left that could fail before the first step.
        run_on_rank_0(lambda: record_start(self.job))
        if state.is_world_process_zero:
            log_file.open(self.job.output)
            self.bar = progress.Bar(f"seed {self.seed}", state.max_steps, " steps", done=state.global_step)
        self._restart_line(state.global_step)
        if 0 < state.global_step < state.max_steps:
            logger.info("Seed %d continues at step %d of %d.", self.seed, state.global_step, state.max_steps)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        # Trainer's own way to tell the sampler fails on several ranks after a resume.
        self.batches.epoch = state.global_step // self._steps_an_epoch(state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.job.watchdog.at(f"seed {self.seed}, step {state.global_step + 1}")

    def on_substep_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.job.watchdog.progress()

    on_prediction_step = on_substep_end

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.bar is not None:
            self.bar.close()

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.bar is not None:
            self.bar.advance()
        self.stopping |= self.job.stop.leaves_step()

        # The end of an epoch is evaluated first, because a resume would begin with the next one.
        if state.global_step % self._steps_an_epoch(state) != 0:
            control.should_save |= self.stopping or state.global_step % self.job.task.training.save_every == 0

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.stopping and state.global_step < state.max_steps:
            raise PreemptedError(
                f"stopped in seed {self.seed} after step {state.global_step} of {state.max_steps}, which is "
                "saved. The same command continues."
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        if "loss" not in logs:
            self._restart_line(state.global_step)  # the time of an evaluation is not that of steps
            return
        if not isfinite(logs["loss"]):
            raise diverged(self.job.task, f"the loss of seed {self.seed} is {logs['loss']} at step {state.global_step}")
        if self.bar is not None:
            self.bar.note(f"loss {logs['loss']:.4f}")
        if perf_counter() - self._last_line > SECONDS_BETWEEN_LINES:
            self._say_progress(state, logs["loss"])

    def _steps_an_epoch(self, state: Any) -> int:
        return state.max_steps // state.num_train_epochs

    def _say_progress(self, state: Any, loss: float) -> None:
        training = self.job.task.training
        speed = (state.global_step - self._step_of_line) * training.batch / (perf_counter() - self._last_line)
        logger.info(
            "seed %d, epoch %d of %d: step %d of %d, loss %.4f, %.1f examples per second, about %s left",
            self.seed,
            (state.global_step - 1) // self._steps_an_epoch(state) + 1,
            state.num_train_epochs,
            state.global_step,
            state.max_steps,
            loss,
            speed,
            duration((state.max_steps - state.global_step) * training.batch / speed),
            extra=IN_FILE_ONLY if self.bar is not None and self.bar.is_drawn else None,
        )
        self._restart_line(state.global_step)

    def _restart_line(self, step: int) -> None:
        self._last_line = perf_counter()
        self._step_of_line = step
