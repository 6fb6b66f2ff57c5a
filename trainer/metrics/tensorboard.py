"""TensorBoard's copy of a run's metrics, in RUN/tensorboard.

metrics.jsonl is the truth: whenever a run is opened the copy is rewritten from it, so that steps which are taken
again after a resume do not make a curve go back and forth.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.metrics.presentation import keep_running

FOLDER = "tensorboard"


class TensorBoardWriter:
    """One tag for every metric that is a number, evaluation's under eval/. An error here never ends a run."""

    def __init__(self, run: str, lines: Iterable[dict[str, Any]]):
        """Begins with what `lines` of the metrics say. The package's import takes a second, so only here."""
        self._folder = Path(run) / FOLDER
        self._writer: Any = None
        with keep_running(str(self._folder)):
            from torch.utils.tensorboard import SummaryWriter

            shutil.rmtree(self._folder, ignore_errors=True)
            self._writer = SummaryWriter(str(self._folder))
            for line in lines:
                self._add(line)
            self._writer.flush()

    def add(self, line: dict[str, Any]) -> None:
        """Add a line of the metrics, where the folder can be written."""
        if self._writer is not None:
            with keep_running(str(self._folder)):
                self._add(line)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            with keep_running(str(self._folder)):
                self._writer.close()

    def _add(self, line: dict[str, Any]) -> None:
        for name, value in line.items():
            if value is not None and name != "step":
                self._writer.add_scalar(name.replace("eval_", "eval/"), value, line["step"], line.get("seconds"))
