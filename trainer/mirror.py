"""TensorBoard's copy of a run's metrics, in RUN/tensorboard.

metrics.jsonl is the truth: whenever a run is opened the copy is written anew from it, so that steps which are taken
again after a resume do not make a curve go back and forth.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"


class Mirror:
    """One tag for every metric that is a number, evaluation's under eval/."""

    def __init__(self, run: str, lines: Iterable[dict[str, Any]]):
        """Begins with what `lines` of the metrics say. The package's import takes a second, so only here."""
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(Path(run) / FOLDER, ignore_errors=True)
        self._writer = SummaryWriter(str(Path(run) / FOLDER))
        for line in lines:
            self.add(line)
        self._writer.flush()

    def add(self, line: dict[str, Any]) -> None:
        for name, value in line.items():
            if value is not None and name != "step":
                self._writer.add_scalar(name.replace("eval_", "eval/"), value, line["step"], line["seconds"])

    def close(self) -> None:
        self._writer.close()
