"""What a run's folder says about the run, for its report: read at any time, also while it trains or after it was moved.

A folder at a URL is read through a copy of its small files: checkpoints stay where they are.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from schemas import storage
from schemas.errors import DataError
from trainer.checkpoint.format import best_step
from trainer.config.record import HISTORY, RECIPE, RecipeChange
from trainer.metrics.curves import SCORES_FILE
from trainer.metrics.log import METRICS_FILE, Metrics, is_evaluation, read_lines, read_metrics
from trainer.metrics.ranks import RANKS_FILE, RankReport, read_ranks
from trainer.metrics.starts import STARTS_FILE, Start, read_starts

BLANKS_FILE = "blanks.json"

SMALL_FILES = (RECIPE, HISTORY, METRICS_FILE, RANKS_FILE, STARTS_FILE, SCORES_FILE, BLANKS_FILE)


class Blanks(BaseModel):
    """Sentences whose blanks a model filled in that was exported when `step` was the last one: (sentence, words)."""

    step: int
    filled: list[tuple[str, str]]


class ShownLength(BaseModel):
    stop_at: int | None = None
    max_steps: int | None = None


class ShownPairs(BaseModel):
    pairs: str | list[str] | None = None


class ShownPhase(BaseModel):
    data: ShownPairs = ShownPairs()
    evaluation: ShownPairs = ShownPairs()


class ShownRecipe(ShownPhase):
    """The keys of a recipe from which a report computes something."""

    run: ShownLength = ShownLength()
    phases: list[ShownPhase] = []


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder has it.

    run: the folder or URL. folder: the local one that holds its small files. skipped: the number of lines of the file
    that are not metrics. resumed_at: the steps after which it was resumed. changes: of its recipe, at resumes. best:
    the step of the best checkpoint.
    """

    run: str
    folder: str
    lines: Metrics
    skipped: int
    recipe: dict[str, Any]
    resumed_at: Sequence[int]
    changes: Sequence[RecipeChange]
    starts: Sequence[Start]
    ranks: Sequence[RankReport]
    best: int | None
    blanks: Blanks | None

    @property
    def last_line(self) -> dict[str, Any]:
        """The last line of a step, or the last line if all are evaluations."""
        return next((line for line in reversed(self.lines) if not is_evaluation(line)), self.lines[-1])

    @property
    def evaluations(self) -> Metrics:
        return [line for line in self.lines if is_evaluation(line)]

    @property
    def last_step(self) -> int | None:
        """The step at which the command ends training, None if the recipe does not say."""
        run = self.recipe.get("run", {})
        return min(filter(None, (run.get("stop_at"), run.get("max_steps"))), default=None)

    @property
    def is_over(self) -> bool:
        """Whether every step was taken, and evaluated if there are held-out pairs."""
        if self.last_step is None or self.last_line["step"] < self.last_step:
            return False
        is_evaluated = self.recipe.get("evaluation", {}).get("pairs") is not None
        return not is_evaluated or any(line["step"] >= self.last_step for line in self.evaluations)


def read_record(run: str, copy: str | None = None) -> RunRecord:
    """Read a run. copy: the local copy of a run at a URL.

    Raises DataError if the recipe cannot be read.
    """
    folder = copy or run
    path = Path(folder, RECIPE)
    try:
        recipe = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        ShownRecipe.model_validate(recipe, strict=True)
    except (OSError, ValueError) as error:
        fault = _first_fault(error) if isinstance(error, ValidationError) else error
        raise DataError(f"{path} is not the recipe of a run: {fault}. Give the run.output of a training.") from error

    starts = read_starts(folder)
    return RunRecord(
        run,
        folder,
        *read_lines(folder),
        recipe,
        starts[-1].resumed_at if starts else [],
        _changes(folder),
        starts,
        ranks=read_ranks(folder),
        best=best_step(run),
        blanks=read_blanks(folder),
    )


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    reason = "should be a table" if fault["type"] == "model_type" else fault["msg"]
    return f"{'.'.join(map(str, fault['loc']))}: {reason}"


def _changes(folder: str) -> list[RecipeChange]:
    try:
        lines = Path(folder, HISTORY).read_text(encoding="utf-8").splitlines()
        return [RecipeChange.model_validate_json(line) for line in lines]
    except (OSError, ValueError):
        return []


def read_blanks(folder: str) -> Blanks | None:
    """Return what RUN/blanks.json has, None without a sound one."""
    try:
        return Blanks.model_validate_json(Path(folder, BLANKS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_blanks(run: str, filled: Sequence[tuple[str, str]]) -> None:
    """Write RUN/blanks.json: sentences and the words that the run's model has for their blanks. Raises StorageError."""
    step = max((line["step"] for line in read_metrics(run)), default=0)
    content = Blanks(step=step, filled=list(filled)).model_dump_json(indent=1)
    storage.publish(str(Path(run, BLANKS_FILE)), content.encode(), durable=False)


def copy_small_files(url: str, folder: str) -> None:
    """Copy what a report needs from a run at a URL, except for evaluations of checkpoints. Raises StorageError."""
    present = storage.names(url)
    for name in SMALL_FILES:
        if name in present:
            storage.publish(str(Path(folder, name)), storage.read(storage.join(url, name)), durable=False)
