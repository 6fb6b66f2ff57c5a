"""metrics.jsonl: the truth about a run, one object a line, one line a logged step, unbroken over resumes.

Losses, accuracies, grad_norm and padding_fraction are means since the line before (interval.py), tokens_per_second,
loader_stall_fraction and mfu are rates over the same time, lr is that of the last step, tokens and seconds are totals.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

from tqdm import tqdm

from schemas import storage
from trainer.metrics.presentation import keep_running
from trainer.metrics.tensorboard import TensorBoardWriter

FILE = "metrics.jsonl"
NAMES = [
    "step",
    "loss",
    "mlm_loss",
    "mlm_accuracy",
    "pair_loss",
    "pair_accuracy",
    "lr",
    "grad_norm",
    "tokens",
    "tokens_per_second",
    "padding_fraction",
    "loader_stall_fraction",
    "mfu",
    "seconds",
]


class Meter:
    """Tokens and seconds of a run, over its resumes, and what passed since the last reading."""

    def __init__(self, tokens: int, seconds: float):
        self.tokens, self._before, self._started = tokens, seconds, perf_counter()
        self._last_tokens, self._last_time, self._last_stalled = tokens, self._started, 0.0

    def add(self, tokens: int) -> None:
        self.tokens += tokens

    @property
    def seconds(self) -> float:
        return self._before + perf_counter() - self._started

    def read(self, stalled: float) -> dict[str, float | None]:
        """Totals, and rates since the last reading; `stalled` is seconds spent waiting for data so far."""
        now = perf_counter()
        passed = now - self._last_time
        found = {
            "tokens": self.tokens,
            "tokens_per_second": (self.tokens - self._last_tokens) / passed,
            "loader_stall_fraction": (stalled - self._last_stalled) / passed,
            "seconds": self.seconds,
        }
        self._last_tokens, self._last_time, self._last_stalled = self.tokens, now, stalled
        return found

    def skip(self, seconds: float) -> None:
        """Leave time that was not spent on training out of the next rates."""
        self._last_time += seconds


class MetricsLog:
    """Appends to a run's metrics and shows them: a bar on a terminal, a line a logged step elsewhere."""

    def __init__(
        self,
        run: str,
        from_step: int,
        max_steps: int,
        tokens_at_peak: float | None = None,
        tell: Callable[[dict[str, Any]], None] = lambda line: None,
    ):
        """Lines after `from_step` are dropped: the steps they tell of will be taken again.

        tokens_at_peak: a second, if every device computed at its peak; what mfu is a fraction of. tell: called with
        every new line, too.
        """
        self._run, self._tokens_at_peak, self._tell = run, tokens_at_peak, tell
        lines, skipped = read_lines(run)
        if skipped:
            print(skipped_note(run, skipped), flush=True)
        self._open([line for line in lines if line["step"] <= from_step])
        on_terminal = sys.stderr.isatty()
        self._bar = tqdm(total=max_steps, initial=from_step, unit="step") if on_terminal else None

    def amend(self, step: int, figures: dict[str, Any]) -> None:
        """Put an evaluation's figures to the last line, when it is that step's."""
        lines = read_metrics(self._run)
        if not lines or lines[-1]["step"] != step:
            return
        lines[-1] |= {name: _finite(value) for name, value in figures.items()}
        self._file.close()
        self._mirror.close()
        self._open(lines)
        self._show_elsewhere(figures | {"step": step})
        _show_held_out(step, figures)

    def advance(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def log(self, values: dict[str, Any]) -> None:
        mfu = values["tokens_per_second"] / self._tokens_at_peak if self._tokens_at_peak else None
        values = values | {"mfu": mfu}
        evaluated = {name: value for name, value in values.items() if name.startswith("eval_")}
        line = {name: _finite(value) for name, value in ({name: values[name] for name in NAMES} | evaluated).items()}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._mirror.add(line)
        self._show_elsewhere(line)
        shown = (
            f"step {line['step']}  loss {_digits(line['loss'], 4)}  mlm {_digits(line['mlm_loss'], 4)} "
            f"(accuracy {_digits(line['mlm_accuracy'], 3)})  pair accuracy {_digits(line['pair_accuracy'], 3)}  "
            f"lr {values['lr']:.2e}  {values['tokens_per_second']:,.0f} tokens/s"
        )
        if self._bar is None:
            print(shown, flush=True)
        else:
            self._bar.set_description(shown.split("  lr")[0])
        if evaluated:
            _show_held_out(values["step"], evaluated)

    def _show_elsewhere(self, line: dict[str, Any]) -> None:
        with keep_running("A line for DeepSpeed's monitors"):
            self._tell(line)

    def _open(self, lines: list[dict[str, Any]]) -> None:
        """Both files with these lines, open for more."""
        path = Path(self._run) / FILE
        storage.publish(str(path), "".join(json.dumps(line) + "\n" for line in lines).encode())
        self._file, self._mirror = path.open("a"), TensorBoardWriter(self._run, lines)

    def close(self) -> None:
        self._file.close()
        self._mirror.close()
        if self._bar is not None:
            self._bar.close()


def _show_held_out(step: int, figures: dict[str, Any]) -> None:
    tqdm.write(
        f"step {step}  held out: mlm {figures['eval_mlm_loss']:.4f} (accuracy {figures['eval_mlm_accuracy']:.3f}, "
        f"perplexity {figures['eval_perplexity']:,.1f})  "
        f"pair accuracy {_digits(figures['eval_pair_accuracy'], 3)}"
    )


def _finite(value: float | None) -> float | None:
    """JSON has no NaN."""
    return None if value is None or not isfinite(value) else value


def _digits(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def read_metrics(run: str) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics, as `read_lines` does."""
    return read_lines(run)[0]


def read_lines(run: str) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of a run's metrics, and how many were skipped because they are no such lines.

    A line is an object with an integer step, whose other values are numbers or null. A last line that a kill cut short
    is not one, and not counted.
    """
    path = Path(run) / FILE
    if not path.exists():
        return [], 0

    *texts, unfinished = path.read_text(errors="replace").split("\n")
    lines = [_parsed(text) for text in texts]
    good = [line for line in lines if line is not None]
    skipped = len(lines) - len(good)

    last = _parsed(unfinished)
    return good + ([last] if last is not None else []), skipped


def skipped_note(run: str, skipped: int) -> str:
    """Return a sentence about lines that `read_lines` skipped."""
    return f"{Path(run) / FILE}: {skipped:,} lines that are not metrics were skipped."


def _parsed(text: str) -> dict[str, Any] | None:
    """A line of the metrics, or None for what is not one."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        return None
    # a bool is an int to Python, but not a number
    numbers = (value is None or type(value) in (int, float) for value in line.values())
    return line if all(numbers) else None
