"""Shows the lines of metrics.jsonl elsewhere: in TensorBoard, and in W&B and the other monitors of DeepSpeed.

DeepSpeed's monitors are those that a recipe's [deepspeed] table enables. DeepSpeed itself is kept from sending
anything, because the loss that it would report is scaled for its gradients. A run has one id over all its resumes, and
W&B ignores steps that it already has, so its curves never go back.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from schemas import storage
from schemas.errors import UsageError
from trainer.metrics.presentation import keep_running
from trainer.metrics.starts import Start, read_starts, time_of

if TYPE_CHECKING:
    # Readers of metrics need no DeepSpeed.
    from deepspeed import DeepSpeedEngine

TENSORBOARD_FOLDER = "tensorboard"

ID = "run_id"
"""The file of a run folder that holds the run's id for W&B."""

PACKAGES = {"wandb": "wandb", "comet": "comet_ml"}
"""The Python package that each monitor needs, by the monitor's name in [deepspeed]."""

Tell = Callable[[dict[str, Any]], None]
"""Receives a line of the metrics."""


class TensorBoardWriter:
    """Writes the metrics to RUN/tensorboard. Errors are logged and never end a run.

    The copy is rewritten from metrics.jsonl whenever a run is opened, because steps that are taken again after a resume
    would otherwise make curves go back and forth. Every value has the time at which it was logged, and the recipe is
    among the texts.
    """

    def __init__(self, run: str, lines: Sequence[dict[str, Any]]):
        """Replace the copy by one that holds `lines` of the metrics."""
        self._folder = Path(run) / TENSORBOARD_FOLDER
        self._writer: Any = None
        last = lines[-1] if lines else {"step": 0}
        self._starts = read_starts(run) or [
            Start(time=time.time(), step=last["step"], seconds=last.get("seconds") or 0.0)
        ]

        with keep_running(str(self._folder)):
            # Imported here because it takes a second, which most commands need not wait for.
            from torch.utils.tensorboard import SummaryWriter

            shutil.rmtree(self._folder, ignore_errors=True)
            self._writer = SummaryWriter(str(self._folder))
            recipe = Path(run, "recipe.toml")
            if recipe.exists():
                shown = indent(recipe.read_text(encoding="utf-8"), "    ")  # a block of code in Markdown
                self._writer.add_text("recipe", shown, last["step"], self._starts[-1].time)
            for line in lines:
                self._add(line)
            self._writer.flush()

    def add(self, line: dict[str, Any]) -> None:
        if self._writer is not None:
            with keep_running(str(self._folder)):
                self._add(line)

    def close(self) -> None:
        if self._writer is not None:
            with keep_running(str(self._folder)):
                self._writer.close()

    def _add(self, line: dict[str, Any]) -> None:
        logged_at = time_of(line, self._starts)
        for tag, value in tagged(line):
            self._writer.add_scalar(tag, value, line["step"], logged_at)


def tagged(line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield each number of a line with its name, which begins with `eval/` in an evaluation."""
    # The line of an evaluation repeats totals of the line before it.
    repeated = {"step", "tokens", "seconds"} if "eval_mlm_loss" in line else {"step"}
    for name, value in line.items():
        if name not in repeated and value is not None and not isinstance(value, str):
            yield name.replace("eval_", "eval/"), value


def name_run(run: str, settings: dict[str, Any]) -> None:
    """Tell W&B which run this is. Must be called before an engine is built with these [deepspeed] settings.

    W&B reads the id from the environment. It is kept in RUN/run_id, but an id that the environment already has takes
    precedence. Raises UsageError if the package of an enabled monitor is not installed.
    """
    for monitor, package in PACKAGES.items():
        if _is_enabled(monitor, settings) and find_spec(package) is None:
            raise UsageError(
                f"[deepspeed] {monitor} is enabled, but {package} is not installed. "
                f"Install it (pip install {package}) or disable {monitor}."
            )

    if not _is_enabled("wandb", settings):
        return

    path = Path(run, ID)
    if not path.exists():
        storage.publish(str(path), secrets.token_hex(8).encode())
    os.environ.setdefault("WANDB_RUN_ID", path.read_text(encoding="utf-8"))
    os.environ.setdefault("WANDB_RESUME", "allow")


def monitors_of(engine: DeepSpeedEngine, recipe: dict[str, Any]) -> Tell:
    """Return a function that sends a line of the metrics to the engine's monitors.

    From then on the engine itself sends them nothing. recipe: by full key; W&B gets it as the run's config.
    """
    monitor: Any = engine.monitor
    if not monitor.enabled:
        return lambda line: None

    # The engine checks this flag before it writes its own events; `write_events` does not.
    monitor.enabled = False
    if monitor.wandb_monitor is not None:
        with keep_running("The config of W&B"):
            # A resumed run may have other values.
            import_module("wandb").config.update(recipe, allow_val_change=True)

    def tell(line: dict[str, Any]) -> None:
        monitor.write_events([(tag, value, line["step"]) for tag, value in tagged(line)])

    return tell


def _is_enabled(monitor: str, settings: dict[str, Any]) -> bool:
    return bool(settings.get(monitor, {}).get("enabled"))
