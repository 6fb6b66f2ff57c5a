"""Writes TensorBoard's copy of a run's metrics to RUN/tensorboard.

The copy is rewritten from metrics.jsonl whenever a run is opened, because steps that are taken again after a resume
would otherwise make curves go back and forth.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.metrics.presentation import keep_running
from trainer.metrics.read import CAUSE

FOLDER = "tensorboard"


class TensorBoardWriter:
    """Writes every metric that is a number under its name, and those of evaluations under `eval/`.

    Errors are logged and never end a run.
    """

    def __init__(self, run: str, lines: Iterable[dict[str, Any]]):
        """Replace the copy by one that holds `lines` of the metrics."""
        self._folder = Path(run) / FOLDER
        self._writer: Any = None

        with keep_running(str(self._folder)):
            # Imported here because it takes a second, which most commands need not wait for.
            from torch.utils.tensorboard import SummaryWriter

            shutil.rmtree(self._folder, ignore_errors=True)
            self._writer = SummaryWriter(str(self._folder))
            for line in lines:
                self._add(line)
            self._writer.flush()

    def add(self, line: dict[str, Any]) -> None:
        """Add a line of the metrics, if the folder can be written."""
        if self._writer is not None:
            with keep_running(str(self._folder)):
                self._add(line)

    def close(self) -> None:
        """Flush the buffers and close the files."""
        if self._writer is not None:
            with keep_running(str(self._folder)):
                self._writer.close()

    def _add(self, line: dict[str, Any]) -> None:
        for name, value in line.items():
            if value is None or name in ("step", CAUSE):
                continue
            tag = name.replace("eval_", "eval/")
            self._writer.add_scalar(tag, value, line["step"], line.get("seconds"))
