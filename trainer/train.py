"""Trains a run phase by phase; `pretrain` is where training begins.

Every start is a resume: a run that is started again, the next phase, and a rollback after bad steps all begin from the
newest checkpoint that verifies. What a phase opens is in phase_resources.py, the loop of a phase in loop.py, and one
training step in step.py.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any

from schemas.errors import ClozelineError
from schemas.manifest import read_manifest
from trainer.anomaly import AnomalyGuard, AnomalyHistory
from trainer.checkpoint.resume import announce, resume
from trainer.checkpoint.state import FoundCheckpoint, TrainingState
from trainer.config.phases import Phase, phase_after, phases_of
from trainer.config.schema import Recipe
from trainer.data.folder import open_folders
from trainer.distributed.collectives import run_on_rank_0
from trainer.distributed.deepspeed_internals import release_engine_memory
from trainer.distributed.process_group import device_of_rank, start_distributed
from trainer.distributed.stop import StopRequest
from trainer.distributed.threads import Threads, cores_of_rank, kept_threads, spare_busy_cores
from trainer.due import is_evaluated
from trainer.engine import warn_of_slow_precision
from trainer.horizon import Speed, fixed_steps, steps_of_checkpoint, with_steps
from trainer.logs import logger
from trainer.loop import Loop
from trainer.metrics.monitors import monitors_of
from trainer.micro_batches import with_micro_batches
from trainer.out_of_memory import noting_out_of_memory
from trainer.pace import Pace, StepsChangedError
from trainer.phase_resources import close_metrics, open_data, open_engine, open_metrics
from trainer.rehearsal import rehearse
from trainer.rollback import Rollback, announce_rollback
from trainer.run_context import RunContext, last_step_of, newest_checkpoint, open_run

FEW_UPDATES = 100
"""A phase with fewer updates causes a line in the log."""


def pretrain(recipe: Recipe, stop: StopRequest, profile_steps: int = 0) -> None:
    """Train a recipe from its newest checkpoint, or from the start, to run.stop_at or run.max_steps.

    profile_steps: how many steps to record (trainer/profile.py).

    Raises PreemptedError on every rank, after everything is saved, if any of them was asked to stop.
    """
    started = perf_counter()
    start_distributed(recipe.engine.timeout_seconds, stop)
    spare_busy_cores()
    warn_of_slow_precision(recipe.engine.precision)

    with open_run(recipe, stop, profile_steps) as context:
        if recipe.run.max_hours is not None:
            context = with_fixed_steps(context, started)
        step = None
        while step is None:
            try:
                step = train_phases(context, phases_of(context.run_recipe))
            except StepsChangedError as changed:
                release_engine_memory()
                context = of_length(context, changed.steps)

    run = context.run_recipe.run
    of_all = f" of {run.max_steps}" if step <= run.max_steps else ""
    logger.info("%s: step %d%s is saved.", run.output, step, of_all)


def with_fixed_steps(context: RunContext, started: float) -> RunContext:
    """Return the context with the number of steps that fits into run.max_hours: the checkpoint's, or measured now.

    started: when `pretrain` was called, by `perf_counter`. A collective call.

    Raises UsageError on every rank if no step fits, if the schedule does not fit into the steps, or if the run began
    with another value of run.max_hours.
    """
    recipe = context.run_recipe
    checkpoint = newest_checkpoint(context)
    if checkpoint is not None:
        steps = steps_of_checkpoint(recipe, checkpoint)
        speed = Speed(**checkpoint.state.speed) if checkpoint.state.speed else None
        seconds_before = checkpoint.state.seconds
    else:
        logger.info("%s: measuring how many steps fit into run.max_hours %g.", recipe.run.output, recipe.run.max_hours)
        speed = rehearse_run(context)
        elapsed = run_on_rank_0(lambda: perf_counter() - started)
        steps = fixed_steps(recipe, speed, elapsed)
        seconds_before = 0.0
        release_engine_memory()

    pace = Pace(recipe, speed, seconds_before, started) if speed is not None else None
    return of_length(replace(context, pace=pace), steps)


def of_length(context: RunContext, steps: int) -> RunContext:
    """Return the context of a run of `steps` steps."""
    recipe = with_steps(context.run_recipe, steps)
    return replace(context, run_recipe=recipe, last_step=last_step_of(recipe))


def rehearse_run(context: RunContext) -> Speed:
    """Measure how fast the run will train, with an engine and data opened just for that. A collective call."""
    started = perf_counter()
    (phase,) = phases_of(context.run_recipe)
    with contextlib.ExitStack() as resources:
        context.watchdog.at("opening the data, to measure the speed")
        folders = open_folders(phase.recipe)
        device = device_of_rank()
        phase, choice = with_micro_batches(phase, folders, device)
        data = open_data(phase, folders, resources, begins=True)

        context.watchdog.at("building the engine, to measure the speed")
        engine = open_engine(context, phase, data, begins=True)
        resources.callback(engine.destroy)

        guard = AnomalyGuard(engine, context.run_recipe.anomaly, AnomalyHistory(), phase.recipe.optimizer.clip)
        loop = Loop(context, phase, engine, data.stream, data.evaluation, guard, metrics=None)
        with noting_out_of_memory(phase.recipe, choice, device):
            return rehearse(loop, start=perf_counter() - started)


def train_phases(context: RunContext, phases: list[Phase]) -> int:
    """Train phase after phase, rolling back where needed, and return the last step."""
    rollback = Rollback()
    bad_step: int | None = None
    step = 0
    has_trained = False

    while bad_step is not None or step < context.last_step:
        checkpoint = newest_checkpoint(context)
        step = step_of(checkpoint)

        if bad_step is not None:
            rollback = rollback.again(step, bad_step)
            announce_rollback(context.run_recipe, rollback, bad_step)

        # A later checkpoint's own state already counts the batches that were skipped before it.
        skipped_batches = rollback.skipped_batches if rollback.to_step == step else 0

        # In this process, no phase has ended without its evaluation.
        phase = phase_after(phases, step) if has_trained else phase_to_train(context.run_recipe, phases, checkpoint)
        # False if the last checkpoint of the previous phase did not verify, because training then repeats part of it.
        follows_on = has_trained and bad_step is None and 0 < step == phase.steps_before
        if follows_on:
            logger.info("Phase %d of %d begins after step %d.", phases.index(phase) + 1, len(phases), step)

        bad_step = run_phase(context, phase, checkpoint, skipped_batches, follows_on)
        has_trained = True
        release_engine_memory()
        step = max(step, min(phase.last_step, context.last_step))

    return step


def phase_to_train(run_recipe: Recipe, phases: list[Phase], checkpoint: FoundCheckpoint | None) -> Phase:
    """Return the phase of the next step, or the one before it to make its last evaluation, which a stop cut short.

    The kind of masks and the word frequencies may be others in the next phase. If the rows of the one before are gone,
    or held-out pairs were given only now, the evaluation is made in the next phase. A collective call.
    """
    if checkpoint is None:
        return phases[0]
    state = checkpoint.state
    phase = phase_after(phases, state.step)
    was_due = state.step == phase.steps_before > 0 and state.recipe.get("evaluation.pairs") is not None
    if not was_due or is_evaluated(run_recipe, phase, state.step):
        return phase

    ended = phases[phases.index(phase) - 1]
    return ended if run_on_rank_0(lambda: rows_are_there(ended, state)) else phase


def rows_are_there(phase: Phase, state: TrainingState) -> bool:
    """Return whether the pairs of a phase can be read, and are those that the checkpoint was trained on."""
    try:
        found = [read_manifest(folder, "pairs").fingerprint for folder in phase.recipe.data.folders]
    except ClozelineError:
        return False
    return found == state.identity.get("data")


def begun(state: TrainingState, context: RunContext, skipped_batches: int) -> TrainingState:
    """Return the state from which this process trains: with further batches to skip, its threads and its speed."""
    threads = kept_threads(Threads(state.threads, state.cores), cores_of_rank())
    changes: dict[str, Any] = {"threads": threads.number, "cores": threads.cores}
    changes["skipped_batches"] = state.skipped_batches + skipped_batches
    if context.pace is not None:
        changes["speed"] = asdict(context.pace.speed)
    return state.model_copy(update=changes)


def untrained(state: TrainingState, saved: TrainingState, context: RunContext) -> TrainingState:
    """Return the state of a run whose last step was reached before, and log that.

    No step uses what has changed in the recipe since, so it is not recorded.
    """
    run = context.run_recipe.run
    end = f"run.stop_at is {run.stop_at}" if context.last_step == run.stop_at else f"run.max_steps is {run.max_steps}"
    logger.info("%s: step %d was reached before, and %s, so nothing is trained.", run.output, state.step, end)
    return state.model_copy(update={"recipe": saved.recipe, "changes": saved.changes})


def warn_of_few_updates(phase: Phase) -> None:
    """Log a line if a phase has so few updates that it changes its model little, or spends them all on its warm-up."""
    steps = phase.last_step - phase.steps_before
    warmup = phase.recipe.schedule.warmup_of(phase.schedule_steps)
    if steps >= FEW_UPDATES and warmup < phase.schedule_steps:
        return

    batch = phase.recipe.batch
    key = "global_batch" if batch.global_batch is not None else "global_tokens"
    reason = (
        "so few teach a model little"
        if steps < FEW_UPDATES
        else "all of them belong to the warm-up of the learning rate"
    )
    logger.info(
        "%s: %s updates of batch.%s %s with a warm-up of %d: %s. A smaller batch.%s makes more of the same text; "
        "run.max_steps, or epochs in a step of a fine-tuning, trains longer.",
        phase.recipe.run.output,
        f"{steps:,}",
        key,
        f"{batch.size:,}",
        warmup,
        reason,
        key,
    )


def step_of(checkpoint: FoundCheckpoint | None) -> int:
    """Return the step of a checkpoint, 0 if there is none."""
    if checkpoint is None:
        return 0
    _, state, _ = checkpoint
    return state.step


def run_phase(
    context: RunContext, phase: Phase, checkpoint: FoundCheckpoint | None, skipped_batches: int, follows_on: bool
) -> int | None:
    """Train one phase from a checkpoint, or from the start, to its last step or the run's.

    skipped_batches: how many batches to leave out in addition to those that the checkpoint's state counts. follows_on:
    the previous phase ended in this process, so the start is not announced as a resume.
    Returns None, or the bad step from which the run has to roll back.
    """
    with contextlib.ExitStack() as resources:
        context.watchdog.at("opening the data")
        folders = open_folders(phase.recipe)
        device = device_of_rank()
        phase, choice = with_micro_batches(phase, folders, device)
        data = open_data(phase, folders, resources, begins=checkpoint is None)

        context.watchdog.at("building the engine")
        engine = open_engine(context, phase, data, begins=checkpoint is None)
        resources.callback(engine.destroy)

        context.watchdog.at("loading the checkpoint")
        state = resume(engine, context.run_recipe, phase, data.folders, checkpoint)
        state = begun(state, context, skipped_batches)
        if checkpoint is not None:
            if state.step >= context.last_step:
                state = untrained(state, checkpoint.state, context)
            announce(phase, state, checkpoint, resumes=not follows_on)
        else:
            warn_of_few_updates(phase)

        metrics = open_metrics(context, phase, data.folders, state, monitors_of(engine))
        if metrics is not None:
            resources.callback(close_metrics, metrics)

        # The guard changes its copy of the history; the state keeps what the checkpoint holds.
        guard = AnomalyGuard(
            engine, context.run_recipe.anomaly, state.anomaly.model_copy(), phase.recipe.optimizer.clip
        )
        loop = Loop(context, phase, engine, data.stream, data.evaluation, guard, metrics, data.unigram_loss)
        with noting_out_of_memory(phase.recipe, choice, device):
            return loop.run(state, min(phase.last_step, context.last_step))
