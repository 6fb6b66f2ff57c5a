"""Sends metrics to W&B and the other monitors of DeepSpeed that a recipe's [deepspeed] table enables.

They get the lines of metrics.jsonl. DeepSpeed itself is kept from sending anything, because the loss that it would
report is scaled for its gradients. A run has one id over all its resumes, and W&B ignores steps that it already has, so
its curves never go back.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deepspeed import DeepSpeedEngine

from schemas import storage
from schemas.errors import UsageError
from trainer.metrics.read import CAUSE

ID = "run_id"
"""The file of a run folder that holds the run's id for W&B."""

PACKAGES = {"wandb": "wandb", "comet": "comet_ml"}
"""The Python package that each monitor needs, by the monitor's name in [deepspeed]."""

Tell = Callable[[dict[str, Any]], None]
"""Receives a line of the metrics."""


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


def monitors_of(engine: DeepSpeedEngine) -> Tell:
    """Return a function that sends a line of the metrics to the engine's monitors.

    From then on the engine itself sends them nothing.
    """
    monitor: Any = engine.monitor
    if not monitor.enabled:
        return lambda line: None

    # The engine checks this flag before it writes its own events; `write_events` does not.
    monitor.enabled = False

    def tell(line: dict[str, Any]) -> None:
        events = []
        for name, value in line.items():
            if value is not None and name not in ("step", CAUSE):
                events.append((name.replace("eval_", "eval/"), value, line["step"]))
        monitor.write_events(events)

    return tell


def _is_enabled(monitor: str, settings: dict[str, Any]) -> bool:
    return bool(settings.get(monitor, {}).get("enabled"))
