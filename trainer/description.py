"""What `--describe` says on a terminal: the figures of describe.py as lines. Elsewhere they are printed as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from schemas.charts import short
from schemas.manifest import read_manifest
from schemas.terminal import counted, in_hours
from trainer.config.load import recipe_comment, recipe_names
from trainer.config.phases import phases_of
from trainer.config.schema import Recipe
from trainer.data.share import places_before
from trainer.describe import RANKS, finished_folders, why_unfinished
from trainer.metrics.presentation import three_digits


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
    return f"{one} on one rank, {several} on each of {RANKS[1]} (engine.zero_stage {stage}; {what})"
