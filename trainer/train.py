"""Trains a run phase by phase; `pretrain` is where training begins.

Every start is a resume: a run that is started again, the next phase, and a rollback after bad steps all begin from the
newest checkpoint that verifies. The loop of a phase is in loop.py, and one training step in step.py.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from schemas import progress
from schemas.errors import ClozelineError
from schemas.terminal import counted
from trainer.anomaly import AnomalyGuard
from trainer.attention_choice import attention_of, recorded_attention
from trainer.build_model import build_initial_model, fill_in_initial_weights, warn_of_vocabulary
from trainer.checkpoint.format import FoundCheckpoint
from trainer.checkpoint.resume import announce, resume, write_history
from trainer.checkpoint.run_folder import describe_run
from trainer.checkpoint.run_lock import live_run_named
from trainer.checkpoint.state import TrainingState, check_recipe
from trainer.checkpoint.text_facts import keep_text_facts
from trainer.config.phases import Phase, phase_after, phases_of
from trainer.config.record import RECIPE
from trainer.config.schema import Recipe, RunSection
from trainer.data.counts import open_frequencies
from trainer.data.folder import PairFolder, open_folders
from trainer.data.share import RankShare, places_before, share_of
from trainer.data.stream import Stream, build_stream
from trainer.describe import count_parameters
from trainer.distributed.collectives import run_on_rank_0
from trainer.distributed.deepspeed_internals import release_engine_memory
from trainer.distributed.process_group import device_of_rank, start_distributed
from trainer.distributed.stop import StopRequest
from trainer.distributed.threads import Threads, cores_of_rank, kept_threads, spare_busy_cores
from trainer.engine import build_engine, warn_of_slow_precision
from trainer.evaluate import Evaluation, is_evaluated, open_evaluation
from trainer.export.verify import check_exportable
from trainer.length import Hours
from trainer.logs import IN_FILE_ONLY, logger
from trainer.loop import Loop, phase_to_train
from trainer.metrics.log import MetricsLog, read_metrics
from trainer.metrics.monitors import Tell, monitors_of, name_run
from trainer.metrics.presentation import keep_running, three_digits
from trainer.metrics.speed import mfu_of_one_token
from trainer.metrics.starts import facts_of_data, note_start
from trainer.micro_batches import noting_out_of_memory, too_large_micro_batch, too_large_model, with_micro_batches
from trainer.models.pretraining import PretrainingModel
from trainer.models.starting_weights import empty_model
from trainer.profile import NOTHING, Recording
from trainer.run_context import RunContext, newest_checkpoint, open_run

FEW_UPDATES = 100
"""A phase with fewer updates causes a line in the log."""


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


def pretrain(recipe: Recipe, stop: StopRequest, recording: Recording = NOTHING, started: float | None = None) -> None:
    """Train a recipe from its newest checkpoint, or from the start, to run.stop_at or run.max_steps.

    recording: which steps to profile. started: when run.max_hours began, by `perf_counter`; now by default.

    Raises PreemptedError on every rank, after everything is saved, if any of them was asked to stop.
    """
    started = perf_counter() if started is None else started
    with live_run_named(recipe.run.folder):
        start_distributed(recipe.engine.timeout_seconds, stop)
    spare_busy_cores()
    warn_of_slow_precision(recipe.engine.precision)

    with open_run(recipe, stop, recording) as context:
        if recipe.run.max_hours is not None:
            context.hours = Hours(context.run_recipe, started)
        step = train_phases(context)

    run = context.run_recipe.run
    of_all = f" of {run.max_steps}" if step <= run.max_steps else ""
    logger.info("%s: step %d%s is saved.", run.output, step, of_all)


def train_phases(context: RunContext) -> int:
    """Train phase after phase, rolling back where needed, and return the last step."""
    rollback = Rollback()
    bad_step: int | None = None
    step = 0
    has_trained = False

    while bad_step is not None or step < context.last_step:
        checkpoint = newest_checkpoint(context)
        step = 0 if checkpoint is None else checkpoint.state.step
        if checkpoint is not None and not has_trained:
            check_recipe(checkpoint.path, checkpoint.state, context.run_recipe)
        if not has_trained:
            run_on_rank_0(partial(tell_lost_steps, context.run_recipe.run, step))
        if context.hours is not None and checkpoint is not None and not has_trained:
            context.set_length(context.hours.resume(checkpoint))
        phases = phases_of(context.run_recipe)

        if bad_step is not None:
            rollback = rollback.again(step, bad_step)
            announce_rollback(context.run_recipe, rollback, bad_step)

        # A later checkpoint's own state already counts the batches that were skipped before it.
        skipped_batches = rollback.skipped_batches if rollback.to_step == step else 0

        # A phase that ends in this process makes its evaluation.
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


def tell_lost_steps(run: RunSection, step: int) -> None:
    """Log how many steps of an earlier start were not saved, and are trained again. step: that of the checkpoint."""
    logged = max((line["step"] for line in read_metrics(run.folder)), default=0)
    if logged > step:
        logger.info("%s: steps %d to %d were not saved, and are trained again.", run.output, step + 1, logged)


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


def begun(
    state: TrainingState,
    context: RunContext,
    engine: DeepSpeedEngine,
    checkpoint: FoundCheckpoint | None,
    skipped_batches: int,
) -> TrainingState:
    """Return the state from which this process trains: with further batches to skip, its threads and its speed.

    If the last step was reached before, no step uses what has changed in the recipe since, so it is not recorded.
    """
    threads = kept_threads(Threads(state.threads, state.cores), cores_of_rank())
    changes: dict[str, Any] = {"threads": threads.number, "cores": threads.cores}
    changes["skipped_batches"] = state.skipped_batches + skipped_batches
    if context.hours is not None and context.hours.speed is not None:
        changes["speed"] = context.hours.speed._asdict()
    if device_of_rank().type == "cuda":
        changes["attention"] = attention_of(engine)

    if checkpoint is not None and state.step >= context.last_step:
        run = context.run_recipe.run
        is_paused = context.last_step == run.stop_at
        end = f"run.stop_at is {run.stop_at}" if is_paused else f"run.max_steps is {run.max_steps}"
        logger.info("%s: step %d was reached before, and %s, so nothing is trained.", run.output, state.step, end)
        changes |= {"recipe": checkpoint.state.recipe, "changes": checkpoint.state.changes}
    return state.model_copy(update=changes)


def warn_of_few_updates(phase: Phase) -> None:
    """Log a line if a phase has so few updates that it changes its model little, or spends them all on its warm-up."""
    steps = phase.last_step - phase.steps_before
    warmup = phase.recipe.schedule.warmup_of(phase.schedule_steps)
    if steps >= FEW_UPDATES and warmup < phase.schedule_steps:
        return

    run, batch = phase.recipe.run, phase.recipe.batch
    key = "global_batch" if batch.global_batch is not None else "global_tokens"
    reason = "so few teach a model little" if steps < FEW_UPDATES else "all of them belong to the warm-up of the rate"
    limit = "run.max_epochs or run.max_steps" if run.max_epochs else "run.max_steps"
    if run.max_hours and phase.last_step < run.max_steps:
        limit = "run.max_hours"
    logger.info(
        "%s: %s updates of batch.%s %s with a warm-up of %d: %s. A smaller batch makes more of the same text; a "
        "larger %s trains longer.",
        run.output,
        f"{steps:,}",
        key,
        f"{batch.size:,}",
        warmup,
        reason,
        limit,
    )


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
        for folder in folders:
            resources.callback(folder.close)
        device = device_of_rank()
        phase, choice = with_micro_batches(phase, folders, device)
        share = share_of(phase.recipe, dist.get_rank(), dist.get_world_size(), folders)
        stream, evaluation, unigram_loss = open_data(phase, folders, share, resources, begins=checkpoint is None)

        context.watchdog.at("building the engine")
        with noting_out_of_memory(lambda: too_large_model(phase.recipe, device)):
            engine = open_engine(context, phase, folders, share, checkpoint)
            resources.callback(engine.destroy)

            context.watchdog.at("preparing the weights" if checkpoint is None else "loading the checkpoint")
            state = resume(engine, context.run_recipe, phase, folders, checkpoint)
        state = begun(state, context, engine, checkpoint, skipped_batches)
        if checkpoint is not None:
            announce(phase, state, checkpoint, resumes=not follows_on)
        else:
            warn_of_few_updates(phase)

        metrics = open_metrics(context, phase, folders, state, monitors_of(engine, state.recipe))
        if metrics is not None:
            resources.callback(metrics.close)

        guard = AnomalyGuard(engine, context.run_recipe.anomaly, state.anomaly, phase.recipe.optimizer.clip)
        loop = Loop(context, phase, engine, stream, evaluation, guard, metrics, state, unigram_loss)
        with noting_out_of_memory(lambda: too_large_micro_batch(phase.recipe, choice, device)):
            return loop.run()


# What a phase opens


def open_data(
    phase: Phase, folders: list[PairFolder], share: RankShare, resources: contextlib.ExitStack, begins: bool
) -> tuple[Stream, Evaluation | None, float | None]:
    """Open the training and evaluation data of a phase until `resources` close. begins: the run has no checkpoint.

    The last value is the loss of word frequencies alone on the text of the phase, if it is known.
    """
    stream = build_stream(phase.recipe, folders, share, device_of_rank())
    resources.callback(stream.close)

    frequencies = open_frequencies(phase.recipe, folders, begins)
    evaluation = open_evaluation(phase.recipe, folders, share, frequencies, device_of_rank())
    if evaluation is not None:
        resources.callback(evaluation.close)

    return stream, evaluation, None if frequencies is None else frequencies.loss


def open_engine(
    context: RunContext, phase: Phase, folders: list[PairFolder], share: RankShare, checkpoint: FoundCheckpoint | None
) -> DeepSpeedEngine:
    """Build the run's model and an engine that trains it by the phase's recipe. A collective call.

    checkpoint: None if the run begins, so that it needs initial weights. Otherwise the weights are zeros until the
    checkpoint is loaded.
    """
    begins = checkpoint is None
    run_recipe = context.run_recipe

    # W&B reads the run's name from the environment while DeepSpeed builds the engine.
    run_on_rank_0(lambda: name_run(run_recipe.run.folder, run_recipe.deepspeed.settings))
    model = build_initial_model(phase.recipe, folders, recorded_attention(phase, checkpoint))
    if begins:
        first = folders[0]
        run_on_rank_0(lambda: check_exportable(first.folder, first.vocabulary, model.shape))
        warn_of_vocabulary(run_recipe, first.vocabulary, first.folder)

    engine = build_engine(model, phase.recipe, share)
    if begins:
        context.watchdog.at("drawing initial weights")
        fill_in_initial_weights(engine, run_recipe, folders)
    return engine


def open_metrics(
    context: RunContext, phase: Phase, folders: list[PairFolder], state: TrainingState, tell_monitors: Tell
) -> MetricsLog | None:
    """Open the run's metrics on rank 0, cut back to `state`, and write next to them what an export needs.

    Returns None on other ranks. Raises StorageError on every rank if rank 0 cannot write. A collective call.
    """
    run = context.run_recipe.run
    opened: list[MetricsLog] = []

    evaluated = is_evaluated(context.run_recipe, phase, state.step)

    # run_on_rank_0 sends what it returns to all ranks. The log holds open files, so it is kept in a list instead.
    def write_and_open() -> None:
        # A run that is over keeps the recipe that its steps used.
        if state.step < context.last_step or not (Path(run.folder) / RECIPE).exists():
            describe_run(context.run_recipe, folders)
        else:
            keep_text_facts(run.folder, [folder.manifest for folder in folders])
        write_history(run.folder, state.changes)
        if state.step < context.last_step:
            model = empty_model(phase.recipe.model, folders[0].vocabulary.size)
            note_start(
                run.folder,
                state,
                evaluated,
                ranks=dist.get_world_size(),
                parameters=count_parameters(model),
                **facts_of_data(folders, phase.recipe.evaluation.pairs),
            )
            with keep_running("What is trained"):
                announce_training(phase, folders, model, state.step, context.known_length)
        metrics = MetricsLog(run.folder, state.step, context.known_length, evaluated)
        opened.append(metrics)
        metrics.objective = phase.recipe.objective.kind
        metrics.mfu_of_one_token = mfu_of_one_token(phase.recipe, folders, dist.get_world_size())
        metrics.tell = tell_monitors

    run_on_rank_0(write_and_open)
    return opened[0] if opened else None


def announce_training(
    phase: Phase, folders: list[PairFolder], model: PretrainingModel, step: int, last_step: int | None
) -> None:
    """Log what is trained from the step after `step` on: on a terminal, and in the log file. Rank 0 calls this.

    model: on any device. last_step: of this process; None while it is not known.
    """
    recipe, batch = phase.recipe, phase.recipe.batch
    totals = {unit: sum(folder.manifest.totals[unit] for folder in folders) for unit in ("rows", "tokens")}
    unit = "rows" if batch.global_tokens is None else "tokens"
    of_batch = f"of {batch.size:,} {unit}"
    length = f"steps {of_batch}, as many as the hours allow"
    if last_step is not None:
        end = min(last_step, phase.last_step)
        passes = three_digits(places_before(batch, end - phase.steps_before) / totals[unit])
        resumed = f", from step {step + 1:,}" if step > phase.steps_before else ""
        first = f"{phase.steps_before + 1:,} to " if phase.steps_before else ""
        length = f"{first}{counted(end, 'step')} {of_batch}{resumed}: {passes} passes over the data"

    without_heads = count_parameters(model.encoders()[0])
    lines = [
        f"{recipe.model.family}: {count_parameters(model):,} parameters, {without_heads:,} without heads; "
        f"{folders[0].vocabulary.size:,} tokens in the vocabulary",
        f"  data    {totals['rows']:,} rows, {totals['tokens']:,} tokens: "
        f"{', '.join(folder.folder for folder in folders)}",
        f"  length  {length}",
        f"  in      {dist.get_world_size()} x {device_of_rank().type}, {recipe.engine.precision}; {recipe.run.output}",
    ]
    extra = None if progress.is_terminal(sys.stdout) else IN_FILE_ONLY
    for line in lines:
        logger.info("%s", line, extra=extra)
