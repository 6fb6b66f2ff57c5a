"""RUN/starts.jsonl: when and how a run was started and resumed, one JSON object for each time training began.

metrics.jsonl counts seconds of training alone, so that it does not depend on when a run was interrupted. The starts say
which time of day that was, for TensorBoard, and what the report names: the command, the machine and the versions.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.manifest import read_manifest
from schemas.text_facts import facts_of
from trainer.metrics.presentation import keep_running

if TYPE_CHECKING:
    from trainer.checkpoint.state import TrainingState
    from trainer.data.folder import PairFolder

STARTS_FILE = "starts.jsonl"

LAST_TIME = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""Later times have no date."""


class Start(BaseModel):
    """One start. The fields after `is_evaluated` are for people.

    time: seconds since 1970. step, seconds: of training, before this start. is_evaluated: whether the evaluation of
    `step`, if there is one, was made before. folder: the working directory. pass_tokens: those of the pairs, without
    padding. pairs, held_out, vocabulary: fingerprints. held_out_documents: None if their pairs do not say.
    resumed_at: the steps after which the run was resumed so far.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    time: float = Field(ge=0, lt=LAST_TIME)
    step: int
    seconds: float
    is_evaluated: bool = True
    command: str = ""
    folder: str = ""
    ranks: int = 1
    machine: str = ""
    versions: dict[str, str] = {}
    parameters: int | None = None
    pass_tokens: int | None = None
    pairs: str = ""
    held_out: str = ""
    held_out_rows: int | None = None
    held_out_documents: int | None = None
    vocabulary: str = ""
    resumed_at: list[int] = []

    @property
    def date(self) -> str:
        """The time as text. Example: `2026-11-28 20:47 UTC`."""
        return f"{datetime.fromtimestamp(self.time, UTC):%Y-%m-%d %H:%M} UTC"


def note_start(run: str, state: TrainingState, is_evaluated: bool, **facts: Any) -> None:
    """Append a start from `state`. is_evaluated, facts: fields of Start. Logs what fails."""
    with keep_running(STARTS_FILE):
        start = Start(
            time=time.time(),
            step=state.step,
            seconds=state.seconds,
            is_evaluated=is_evaluated,
            command=command_of_process(),
            folder=os.getcwd(),
            machine=machine(),
            versions={"python": platform.python_version()} | versions("clozeline", "torch", "deepspeed"),
            resumed_at=state.resumed_at,
            **facts,
        )
        with Path(run, STARTS_FILE).open("a", encoding="utf-8") as file:
            file.write(start.model_dump_json() + "\n")


def facts_of_data(folders: Sequence[PairFolder], held_out: str | None) -> dict[str, Any]:
    """Return what a start notes of the pairs that it trains on. held_out: the folder of evaluation.pairs."""
    facts: dict[str, Any] = {
        "pass_tokens": sum(folder.manifest.totals["tokens"] for folder in folders),
        "pairs": " ".join(folder.manifest.fingerprint for folder in folders),
        "vocabulary": folders[0].vocabulary.fingerprint,
    }
    if held_out is not None:
        manifest = read_manifest(held_out, "pairs")
        text = facts_of(manifest.statistics)
        facts |= {"held_out": manifest.fingerprint, "held_out_rows": manifest.totals["rows"]}
        facts["held_out_documents"] = None if text is None else text.documents
    return facts


def read_starts(run: str) -> list[Start]:
    """Return the starts of a run, in order. Damaged lines are left out."""
    try:
        lines = Path(run, STARTS_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []

    starts = []
    for line in lines:
        with contextlib.suppress(ValidationError):
            starts.append(Start.model_validate_json(line))
    return starts


def time_of(line: dict[str, Any], starts: Sequence[Start]) -> float:
    """Return when a line of the metrics was logged, in seconds since 1970, given one start or more."""
    is_evaluation = "eval_mlm_loss" in line
    began = (
        start for start in reversed(starts) if start.step + (start.is_evaluated or not is_evaluation) <= line["step"]
    )
    start = next(began, starts[0])
    return start.time + (line.get("seconds") or 0.0) - start.seconds


def command_of_process() -> str:
    """Return how this process was started, without what launchers add to it."""
    program, *words = sys.argv
    path = Path(program)
    name = path.parent.name if path.name == "__main__.py" else path.name
    given = [word for word in words if not word.startswith("--local_rank")]
    return f"{'python -m trainer' if name == 'trainer' else name} {shlex.join(given)}".strip()


def machine() -> str:
    """Return the accelerator of this process, or the number and kind of its CPU's cores."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU with {os.cpu_count()} cores, {names[0] if names else platform.machine()}"


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
