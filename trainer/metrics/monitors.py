"""W&B and whatever else DeepSpeed's monitor writes to, as a recipe's [deepspeed] table asks for it.

They are told the lines of metrics.jsonl, and nothing by DeepSpeed itself, whose loss is scaled for its gradients. A run
has one id for all its resumes; W&B leaves out steps that it has seen, so its curves never go back.
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

ID = "run_id"
PACKAGES = {"wandb": "wandb", "comet": "comet_ml"}
Tell = Callable[[dict[str, Any]], None]


def name_run(run: str, settings: dict[str, Any]) -> None:
    """Before an engine is built with these [deepspeed] settings: tell W&B which run this is, by RUN/run_id.

    Raises UsageError when a monitor's package is not installed.
    """
    for monitor, package in PACKAGES.items():
        if settings.get(monitor, {}).get("enabled") and find_spec(package) is None:
            raise UsageError(f"[deepspeed] {monitor} is enabled, but {package} is not installed. Install it.")
    if settings.get("wandb", {}).get("enabled"):
        path = Path(run, ID)
        if not path.exists():
            storage.publish(str(path), secrets.token_hex(8).encode())
        os.environ.setdefault("WANDB_RUN_ID", path.read_text())
        os.environ.setdefault("WANDB_RESUME", "allow")


def monitors_of(engine: DeepSpeedEngine) -> Tell:
    """What tells an engine's monitors a line of the metrics; from now on the engine itself tells them nothing."""
    monitor: Any = engine.monitor
    if not monitor.enabled:
        return lambda line: None
    monitor.enabled = False  # read by the engine alone

    def tell(line: dict[str, Any]) -> None:
        numbers = {name: value for name, value in line.items() if value is not None and name != "step"}
        monitor.write_events([(name.replace("eval_", "eval/"), value, line["step"]) for name, value in numbers.items()])

    return tell
