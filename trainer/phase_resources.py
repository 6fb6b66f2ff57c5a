"""Opens what one phase of a run trains with: its data, its engine and the run's metrics."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from trainer.build_model import build_initial_model, fill_in_initial_weights, warn_of_vocabulary
from trainer.checkpoint.resume import write_history
from trainer.checkpoint.run_folder import RECIPE, describe_run
from trainer.checkpoint.state import TrainingState
from trainer.config.phases import Phase
from trainer.data.counts import open_frequencies
from trainer.data.folder import PairFolder
from trainer.data.share import RankShare, share_of
from trainer.data.stream import Stream, build_stream
from trainer.distributed.collectives import run_on_rank_0
from trainer.distributed.process_group import device_of_rank
from trainer.due import is_evaluated
from trainer.engine import build_engine
from trainer.evaluate import Evaluation, open_evaluation
from trainer.export.verify_rows import check_exportable
from trainer.metrics.log import MetricsLog
from trainer.metrics.monitors import Tell, name_run
from trainer.metrics.speed import mfu_of_one_token
from trainer.run_context import RunContext


@dataclass(frozen=True)
class PhaseData:
    """The data that one rank reads in one phase, and the loss of word frequencies alone on its text, if known."""

    folders: list[PairFolder]
    share: RankShare
    stream: Stream
    evaluation: Evaluation | None
    unigram_loss: float | None


def open_data(phase: Phase, folders: list[PairFolder], resources: contextlib.ExitStack, begins: bool) -> PhaseData:
    """Open the training and evaluation data of a phase until `resources` close. begins: the run has no checkpoint."""
    share = share_of(phase.recipe, dist.get_rank(), dist.get_world_size(), folders)

    stream = build_stream(phase.recipe, folders, share, device_of_rank())
    resources.callback(stream.close)

    frequencies = open_frequencies(phase.recipe, folders, begins)
    evaluation = open_evaluation(phase.recipe, folders, share, frequencies, device_of_rank())
    if evaluation is not None:
        resources.callback(evaluation.close)

    return PhaseData(folders, share, stream, evaluation, None if frequencies is None else frequencies.loss)


def open_engine(context: RunContext, phase: Phase, data: PhaseData, begins: bool) -> DeepSpeedEngine:
    """Build the run's model and an engine that trains it by the phase's recipe. A collective call.

    begins: the run has no checkpoint, so it needs initial weights. Otherwise the weights are zeros until the checkpoint
    is loaded.
    """
    run_recipe = context.run_recipe

    # W&B reads the run's name from the environment while DeepSpeed builds the engine.
    run_on_rank_0(lambda: name_run(run_recipe.run.folder, run_recipe.deepspeed.settings))
    model = build_initial_model(phase.recipe, data.folders)
    if begins:
        first = data.folders[0]
        run_on_rank_0(lambda: check_exportable(first.folder, first.vocabulary, model.shape))
        warn_of_vocabulary(run_recipe, first.vocabulary, first.folder)

    engine = build_engine(model, phase.recipe, data.share)
    if begins:
        context.watchdog.at("drawing initial weights")
        fill_in_initial_weights(engine, run_recipe, data.folders)
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
            describe_run(context.run_recipe, folders[0])
        write_history(run.folder, state.changes)
        mfu = mfu_of_one_token(phase.recipe, folders, dist.get_world_size())
        metrics = MetricsLog(run.folder, state.step, run.max_steps, mfu, tell_monitors, evaluated)
        metrics.objective = phase.recipe.objective.kind
        opened.append(metrics)

    run_on_rank_0(write_and_open)
    return opened[0] if opened else None


def close_metrics(metrics: MetricsLog) -> None:
    """Close the metrics. Disk errors are ignored, because they were reported when the lines were logged."""
    with contextlib.suppress(OSError):
        metrics.close()
