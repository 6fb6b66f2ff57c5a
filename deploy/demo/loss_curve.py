"""Plots the loss and the accuracies of a run as a picture.

python deploy/demo/loss_curve.py RUN_DIR OUTPUT.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def main() -> None:
    run = Path(sys.argv[1])
    output = Path(sys.argv[2])
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in logged if "loss" in line]  # without those of evaluations
    steps = [line["step"] for line in lines]

    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(8, 6), layout="constrained")

    upper.plot(steps, [line["mlm_loss"] for line in lines], color="tab:blue")
    upper.set_ylabel("masked LM loss (nats)")

    lower.plot(steps, [line["mlm_accuracy"] for line in lines], label="masked LM", color="tab:blue")
    pair_accuracies = [line["pair_accuracy"] for line in lines]
    if any(accuracy is not None for accuracy in pair_accuracies):
        lower.plot(steps, pair_accuracies, label="pair", color="tab:orange")
    lower.set_ylabel("accuracy")
    lower.set_xlabel("step")
    lower.legend()

    for axes in (upper, lower):
        axes.grid(alpha=0.3)

    figure.savefig(output, dpi=120)
    print(f"{output}: {len(lines)} points, {run}")


if __name__ == "__main__":
    main()
