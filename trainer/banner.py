"""What a run says before its first step: the model, the data, the length, the machine and the folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch.distributed as dist

from schemas import progress
from schemas.terminal import counted
from trainer.config.phases import Phase
from trainer.data.folder import PairFolder
from trainer.data.share import places_before
from trainer.describe import count_parameters
from trainer.distributed.process_group import device_of_rank
from trainer.logs import IN_FILE_ONLY, logger
from trainer.metrics.presentation import keep_running, three_digits
from trainer.models.pretraining import PretrainingModel


def announce_training(
    phase: Phase, folders: list[PairFolder], model: PretrainingModel, step: int, last_step: int | None
) -> None:
    """Log what is trained from the step after `step` on: on a terminal, and in the log file. Rank 0 calls this.

    model: on any device. last_step: of this process; None while it is not known.
    """
    with keep_running("What is trained"):
        extra = None if progress.is_terminal(sys.stdout) else IN_FILE_ONLY
        for line in training_lines(phase, folders, model, step, last_step):
            logger.info("%s", line, extra=extra)
        recipe = phase.recipe
        where = f"{dist.get_world_size()} x {device_of_rank().type}, {recipe.engine.precision}; {recipe.run.output}"
        logger.info("  in      %s", where, extra=extra)


def training_lines(
    phase: Phase, folders: list[PairFolder], model: PretrainingModel, step: int, last_step: int | None
) -> Iterator[str]:
    """Yield lines about the model, the data and the length; arguments as in `announce_training`."""
    recipe = phase.recipe
    vocabulary = folders[0].vocabulary.size
    without_heads = count_parameters(model.encoders()[0])
    yield (
        f"{recipe.model.family}: {count_parameters(model):,} parameters, {without_heads:,} without heads; "
        f"{vocabulary:,} tokens in the vocabulary"
    )

    totals = {unit: sum(folder.manifest.totals[unit] for folder in folders) for unit in ("rows", "tokens")}
    names = ", ".join(folder.folder for folder in folders)
    yield f"  data    {totals['rows']:,} rows, {totals['tokens']:,} tokens: {names}"

    batch = recipe.batch
    unit = "rows" if batch.global_tokens is None else "tokens"
    of_batch = f"of {batch.size:,} {unit}"
    if last_step is None:
        yield f"  length  steps {of_batch}, as many as the hours allow"
        return

    end = min(last_step, phase.last_step)
    passes = places_before(batch, end - phase.steps_before) / totals[unit]
    resumed = f", from step {step + 1:,}" if step > phase.steps_before else ""
    first = f"{phase.steps_before + 1:,} to " if phase.steps_before else ""
    yield f"  length  {first}{counted(end, 'step')} {of_batch}{resumed}: {three_digits(passes)} passes over the data"
