"""Writes and reads metrics.jsonl, the record of a run from which reports and other displays are made.

The file has one JSON object per line, without gaps or repeats over resumes: one line for each logged step, and one for
each evaluation, which follows the line of its step if there is one. Losses, accuracies, grad_norm and padding_fraction
are means since the previous line of a step (sums.py). tokens_per_second, loader_stall_fraction and mfu are rates over
the same time (speed.py). lr is that of the last step. tokens and seconds are totals of the run. step_seconds is
measured over the same steps. slowest_rank, slowest_ratio and peak_memory_bytes compare what all ranks measured up to
the line before (ranks.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

from schemas import progress, storage
from schemas.terminal import counted
from trainer.logs import IN_FILE_ONLY, log_file, logger
from trainer.metrics.monitors import TensorBoardWriter
from trainer.metrics.presentation import keep_running, or_dash
from trainer.metrics.ranks import RankFile, RankReport, rank_figures
from trainer.metrics.sums import PLACE_NAMES, REPLACED_TOKEN_NAMES

METRICS_FILE = "metrics.jsonl"

CAUSE = "loss_doctor"
"""The one metric that is text: why the loss is stuck at that of word frequencies (trainer/metrics/plateau.py)."""

ADVICE = {
    "learning_rate_low": "Raise optimizer.lr or shorten schedule.warmup_steps.",
    "learning_rate_high": "Lower optimizer.lr or lengthen schedule.warmup_steps.",
    "copying": 'Set masking.replacement = "100/0/0", use smaller batches, and see docs/troubleshooting.md.',
    "few_steps": "Train for more steps, with smaller batches if they are large.",
    "collapsed_output": "Use smaller batches or better weights to start from (model.init_from), and see "
    "docs/troubleshooting.md.",
    "unknown": "Check that the words are not in random order, that enough tokens are masked and that the rows do not "
    "repeat too often, train longer, and see docs/troubleshooting.md.",
}
"""What to do about each cause, by its name in metrics.jsonl, in the order in which they are tried."""

Metrics = list[dict[str, Any]]
"""The lines of metrics.jsonl."""

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
    "step_seconds",
    "slowest_rank",
    "slowest_ratio",
    "peak_memory_bytes",
]
"""The metrics of every line, in order."""

OPTIONAL_NAMES = (*PLACE_NAMES, "unigram_loss", *REPLACED_TOKEN_NAMES, CAUSE)
"""Metrics that follow those of NAMES in lines that have them: if tokens are masked, if word frequencies are known, in
runs of ELECTRA, and if the loss is no better than word frequencies alone."""

Figures = dict[str, Any]
"""Values by the name of a metric: numbers or None, except that CAUSE has the name of a cause."""


class MetricsLog:
    """Appends lines to a run's metrics.jsonl and shows them.

    On a terminal, a bar shows the last line; elsewhere each line is logged. log.txt has all lines in either case.
    TensorBoard and `tell` also get every line. The last reports of all ranks are written to ranks.json.
    """

    def __init__(self, run: str, from_step: int, last_step: int | None, is_evaluated: bool = True):
        """Open the metrics of a run that continues after `from_step`.

        Lines of later steps are dropped, because those steps will be taken again. is_evaluated: False if the evaluation
        of `from_step` will be made again, too. last_step: of this process; None while it is not known.
        """
        self.objective = "mlm"
        """The name of the loss on the terminal: the phase's objective.kind. In metrics.jsonl it is always mlm_*."""

        self.mfu_of_one_token: float | None = None
        """Per second; None if the devices' peak FLOPs are unknown."""

        self.tell: Callable[[dict[str, Any]], None] = lambda line: None
        """Called with every new line."""

        self._run = run
        self._ranks = RankFile(run)

        lines, skipped = read_lines(run)
        if skipped:
            logger.info("%s", skipped_note(run, skipped))
        last_evaluated = from_step if is_evaluated else from_step - 1
        self._open([line for line in lines if line["step"] <= (last_evaluated if is_evaluation(line) else from_step)])

        log_file.open(Path(run))
        self._bar = progress.Bar("train", last_step, " steps", done=from_step, stays=True)

    def set_length(self, last_step: int) -> None:
        """Set the last step that the bar shows."""
        self._bar.set_total(last_step)

    def advance(self) -> None:
        self._bar.advance()

    def log(self, values: dict[str, Any], ranks: list[RankReport]) -> None:
        """Write and show a line. values: all metrics but mfu and those that compare ranks.

        Raises OSError if the disk cannot take the line. The line stays buffered, and is written with a later one.
        """
        mfu = None if self.mfu_of_one_token is None else values["tokens_per_second"] * self.mfu_of_one_token
        values = values | {"mfu": mfu} | rank_figures(ranks)
        self._ranks.add(ranks)

        optional = {name: values[name] for name in OPTIONAL_NAMES if name in values}
        self._write({name: values[name] for name in NAMES} | optional)
        self._show(values)

    def log_evaluation(self, values: dict[str, Any]) -> None:
        """Write and show the line of an evaluation after `values["step"]`. Raises as `log` does."""
        self._write(values)
        _show_evaluation(values["step"], values)

    def _write(self, values: dict[str, Any]) -> None:
        # JSON has no NaN and no infinity.
        line = {
            name: None if isinstance(value, float) and not isfinite(value) else value for name, value in values.items()
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._tensorboard.add(line)
        with keep_running("A line for DeepSpeed's monitors"):
            self.tell(line)

    def close(self) -> None:
        """Close the files and the progress bar. Disk errors were told when the lines were logged."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._tensorboard.close()
        self._bar.close()

    def _open(self, lines: list[dict[str, Any]]) -> None:
        """Rewrite metrics.jsonl and TensorBoard's copy with these lines, and leave both open for more."""
        path = Path(self._run) / METRICS_FILE
        content = "".join(json.dumps(line) + "\n" for line in lines)
        storage.publish(str(path), content.encode())

        self._file = path.open("a", encoding="utf-8")
        self._tensorboard = TensorBoardWriter(self._run, lines)

    def _show(self, values: dict[str, Any]) -> None:
        losses = (
            f"step {values['step']}  loss {_digits(values['loss'], 4)}  "
            f"{self.objective} {_digits(values['mlm_loss'], 4)} "
            f"(accuracy {_digits(values['mlm_accuracy'], 3)}){_other_heads(values)}"
        )
        rates = f"lr {values['lr']:.2e}  {values['tokens_per_second']:,.0f} tokens/s"
        logger.info("%s  %s", losses, rates, extra=IN_FILE_ONLY if self._bar.is_drawn else None)
        self._bar.note(f"loss {_digits(values['loss'], 4)}")


def _other_heads(values: dict[str, Any], prefix: str = "") -> str:
    """Return the figures of the other heads than the masked LM as text, empty for a model without other heads."""
    told = ""
    if values.get(f"{prefix}rtd_loss") is not None:
        loss = _digits(values[f"{prefix}rtd_loss"], 4)
        told += f"  rtd {loss} (accuracy {_digits(values[f'{prefix}rtd_accuracy'], 3)})"
    if values.get(f"{prefix}pair_accuracy") is not None:
        told += f"  pair accuracy {_digits(values[f'{prefix}pair_accuracy'], 3)}"
    return told


def _show_evaluation(step: int, figures: dict[str, Any]) -> None:
    masked_lm = (
        f"mlm {figures['eval_mlm_loss']:.4f} (accuracy {figures['eval_mlm_accuracy']:.3f}, "
        f"perplexity {figures['eval_perplexity']:,.1f})"
    )

    # Evaluations leave some tokens unchanged, whatever the recipe does, and a model can copy those.
    if figures.get("eval_mlm_loss_masked") is not None:
        masked_lm += f"  at [MASK] {_digits(figures['eval_mlm_loss_masked'], 4)}"
    if figures.get("eval_unigram_loss") is not None:
        masked_lm += f"  word frequencies alone {_digits(figures['eval_unigram_loss'], 4)}"

    logger.info("step %d  held out: %s%s", step, masked_lm, _other_heads(figures, "eval_"))


def is_evaluation(line: dict[str, Any]) -> bool:
    return "eval_mlm_loss" in line


def _digits(value: float | None, digits: int) -> str:
    return or_dash(value, lambda number: f"{number:.{digits}f}")


def read_metrics(run: str) -> Metrics:
    lines, _ = read_lines(run)
    return lines


def read_lines(run: str) -> tuple[Metrics, int]:
    """Return the lines of a run's metrics, and how many lines of the file were skipped because they are not metrics.

    A line is a JSON object with an integer step, whose other values are numbers or null, except for CAUSE. A killed run
    may leave a last line without a line feed. It is returned if it is complete, and otherwise not counted as skipped if
    it begins like one.
    """
    path = Path(run) / METRICS_FILE
    if not path.exists():
        return [], 0

    *ended, unfinished = path.read_text(errors="replace").split("\n")
    parsed = [_parse(text) for text in ended]
    lines = [line for line in parsed if line is not None]
    skipped = len(parsed) - len(lines)

    last_line = _parse(unfinished)
    if last_line is not None:
        lines.append(last_line)
    elif unfinished[:1] not in "{":  # neither empty nor a beginning
        skipped += 1
    return lines, skipped


def skipped_note(run: str, skipped: int) -> str:
    """Return a sentence about the lines that `read_lines` skipped."""
    return f"{Path(run) / METRICS_FILE}: skipped {counted(skipped, 'line')} without metrics."


def _parse(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None

    # In Python, a bool is also an int, but in a line of metrics it is neither a step nor a number.
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        return None
    for name, value in line.items():
        if value is not None and type(value) not in ((str,) if name == CAUSE else (int, float)):
            return None
    return line
