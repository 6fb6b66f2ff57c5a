"""A training in lines: what `--describe` says on a terminal, and what a run logs before its first step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from schemas import progress
from schemas.charts import short
from schemas.manifest import read_manifest
from schemas.terminal import counted, in_hours
from trainer.config.load import recipe_comment, recipe_names
from trainer.config.phases import Phase, phases_of
from trainer.config.schema import Recipe
from trainer.data.folder import PairFolder
from trainer.data.share import places_before
from trainer.describe import RANKS, count_parameters, finished_folders, why_unfinished
from trainer.distributed.process_group import device_of_rank
from trainer.logs import IN_FILE_ONLY, logger
from trainer.metrics.presentation import keep_running, three_digits
from trainer.models.pretraining import PretrainingModel


def description_lines(recipe: Recipe, config: str, described: dict[str, Any]) -> Iterator[str]:
    """Yield lines about a recipe. config: its file or name. described: what `describe_recipe` returned."""
    yield (
        f"{config}: {described['family']}, {described['parameters']:,} parameters, "
        f"{described['parameters_without_heads']:,} without heads; {described['vocabulary']:,} tokens in the vocabulary"
    )
    for number, phase in enumerate(phases_of(recipe), start=1):
        if recipe.phases:
            yield f"  phase {number}"
        figures = described["phases"][number - 1] if recipe.phases else described
        shown = described.get("steps") if not recipe.phases else None
        steps = shown if isinstance(shown, int) else phase.last_step - phase.steps_before

        rows, tokens = totals(phase.recipe)
        yield f"  data    {_data(phase.recipe, figures['length'], rows, tokens)}"
        if "missing" in figures:
            yield f"          {figures['missing']}"
        yield f"  length  {shown if isinstance(shown, str) else _length(phase.recipe, steps, rows, tokens)}"

        flops = figures["flops_per_token"]
        is_known = tokens and not isinstance(shown, str)
        whole = f", {short(flops * _tokens_of(phase.recipe, steps, rows, tokens))} in all" if is_known else ""
        yield f"  FLOPs   {short(flops)} a token{whole}"
    yield f"  memory  {_memory(recipe, described)}"
    if recipe.run.max_hours is not None:
        yield f"  time    {in_hours(recipe.run.max_hours)} (run.max_hours)"
    elif config in recipe_names() and recipe_comment(config, "Hardware"):
        yield f"  time    as the recipe ships, {recipe_comment(config, 'Hardware')}"


def totals(recipe: Recipe) -> tuple[int, int]:
    """Return the rows and tokens of a phase's pairs; 0 unless all are finished."""
    folders = finished_folders(recipe)
    if len(folders) < len(recipe.data.folders):
        return 0, 0
    found = [read_manifest(folder, "pairs").totals for folder in folders]
    return sum(one["rows"] for one in found), sum(one["tokens"] for one in found)


def _data(recipe: Recipe, longest: int, rows: int, tokens: int) -> str:
    if rows:
        return f"{rows:,} rows of up to {longest} tokens, {tokens:,} tokens: {', '.join(recipe.data.folders)}"
    finished = finished_folders(recipe)
    missing = [why_unfinished(folder) for folder in recipe.data.folders if folder not in finished]
    return f"rows of up to {longest} tokens are assumed; {'; '.join(missing)}"


def _length(recipe: Recipe, steps: int, rows: int, tokens: int) -> str:
    batch = recipe.batch
    unit, whole = ("rows", rows) if batch.global_tokens is None else ("tokens", tokens)
    passes = f": {three_digits(places_before(batch, steps) / whole)} passes over the data" if whole else ""
    return f"{counted(steps, 'step')} of {batch.size:,} {unit}{passes}"


def _tokens_of(recipe: Recipe, steps: int, rows: int, tokens: int) -> float:
    """Return how many tokens some steps train on. rows, tokens: of the data."""
    places = places_before(recipe.batch, steps)
    return places * tokens / rows if recipe.batch.global_tokens is None else places


def _memory(recipe: Recipe, described: dict[str, Any]) -> str:
    stage = recipe.engine.zero_stage
    needed, what = described["memory_bytes"], f"micro-batches of {described['micro_batch_tokens'] or 0:,} tokens"
    if needed is None:
        needed, what = described["bytes_per_rank"][f"zero_{stage}"], "without activations, as the micro-batch is chosen"
    one, several = (f"{short(needed[str(ranks)])}B" for ranks in RANKS)
    as_1 = ", which is 1 in 16 bits" if stage == 0 and recipe.engine.precision != "fp32" else ""
    return f"{one} on one rank, {several} on each of {RANKS[1]} (engine.zero_stage {stage}{as_1}; {what})"


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
