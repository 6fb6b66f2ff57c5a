"""Trains a healthy run and three ill ones for two minutes each, and draws their losses for docs/curves.md.

    python benchmarks/curves.py [--output out/curves] [--draw_only]

All are `tiny` on the text of `clozeline demo`, one thread, with a change each. The pictures are in docs/images.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from drawing import write_svg

from clozeline.demo.cli import make_pairs
from schemas.charts import Color, Line, chart, short
from trainer.metrics.log import Metrics, read_metrics

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"

DRAWN = ["initial_embeddings", "initial_embedding_std", "initial_attention", "initial_head"]
"""Keys without which a run begins with drawn weights, and so meets the plateau of word frequencies."""

RUNS = {
    "healthy": [],
    "rate_too_high": ["optimizer.lr=0.1"],
    "plateau": ["model.family=bert", *(f"model.{key}=none" for key in DRAWN)],
    "copying": ["masking.replacement=20/80/0", *(f"model.{key}=none" for key in DRAWN)],
}
"""What each run changes in `tiny`."""

LINES: dict[str, tuple[str, Color]] = {
    "mlm_loss": ("mlm_loss, training", "orange"),
    "mlm_loss_masked": ("mlm_loss_masked, training", "purple"),
    "eval_mlm_loss_masked": ("eval_mlm_loss_masked, held out", "blue"),
    "unigram_loss": ("unigram_loss, word frequencies alone", "gray"),
}
"""The names and colors of the metrics in the pictures."""


def main() -> None:
    flags = argparse.ArgumentParser(description="Draw the pictures of docs/curves.md.")
    flags.add_argument("--output", type=Path, default=Path("out/curves"), help="folder of the text and the runs")
    flags.add_argument("--draw_only", action="store_true", help="draw the runs that are there")
    options = flags.parse_args()

    out = options.output
    if not (out / "held_out").exists():
        make_pairs(out, megabytes=8)
    for name, changes in RUNS.items():
        if not options.draw_only:
            train(out, name, changes)
        draw(name, read_metrics(str(out / name)))


def train(out: Path, name: str, changes: list[str]) -> None:
    """Train one run, or continue it."""
    settings = [f"data.pairs={out}/pairs", f"evaluation.pairs={out}/held_out", f"run.output={out}/{name}"]
    settings += ["evaluation.every=60", "checkpoint.every=1200", *changes]
    words = [word for setting in settings for word in ("--set", setting)]
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "trainer", "--config", "tiny", *words], env=environment, check=True)


def draw(name: str, metrics: Metrics) -> None:
    """Draw the losses of one run. The loss at [MASK] has a line if others than [MASK] are predicted as well."""
    lines = []
    for key, (title, color) in LINES.items():
        points = [(line["step"], line[key]) for line in metrics if line.get(key) is not None]
        if points and not (key == "mlm_loss_masked" and name != "copying"):
            lines.append(Line(title, color, points))
    write_svg(chart(f"Losses of the run {name}", lines, metrics[-1]["step"], [], short), IMAGES / f"{name}.svg")


if __name__ == "__main__":
    main()
