"""Measures what adaptation gains: fine-tuning alone, after the task's text, after the domain's text, and after both.

    python benchmarks/adaptation.py FOLDER --task TASK.toml --corpus 'DOMAIN/*.jsonl' --output OUT [--seeds 5]

FOLDER is any encoder that `clozeline finetune` accepts. Each variant is a run of `clozeline finetune --steps` with the
same fine-tuning seeds, so variants differ only in the encoder that fine-tuning starts from. After an interruption the
same command continues. Scores are on the task's test set, or on its dev set if no test set has labels.

The table shows the mean over seeds with the 95% interval of Student's t, and the mean difference from fine-tuning alone
with the interval of the paired differences: a seed gives the same head and the same batches in each variant.

Continued pretraining itself has a single seed, so the intervals do not include its randomness.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import tomli_w

from trainer.finetune.metrics.summary import MeanWithInterval, mean_with_interval

WAYS: dict[str, tuple[str, ...]] = {
    "fine-tuning alone": (),
    "task -> fine-tuning": ("task",),
    "domain -> fine-tuning": ("domain",),
    "domain -> task -> fine-tuning": ("domain", "task"),
}
"""The variants, and the steps of continued pretraining in each."""


def main() -> None:
    """Run all variants and print the table."""
    options = parser().parse_args()
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)

    scores = {name: scores_of(fine_tuned(name, options)) for name in WAYS}
    lines = table(scores)
    print("\n".join(lines))
    (output / "table.md").write_text("\n".join(lines) + "\n")
    (output / "scores.json").write_text(json.dumps(scores, indent=1) + "\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("folder", metavar="FOLDER", help="the general encoder")
    flags.add_argument("--task", required=True, help="the task file")
    flags.add_argument("--data", help="folder of the task's files (default: that of the task file)")
    flags.add_argument("--corpus", required=True, help="the domain's text, as `clozeline shard --input` takes it")
    flags.add_argument("--output", required=True, help="folder for all runs and the table")
    flags.add_argument("--seeds", type=int, default=5, help="of fine-tuning (default: 5)")
    flags.add_argument("--domain_set", action="append", default=[], help="change of the recipe adapt_domain")
    flags.add_argument("--task_set", action="append", default=[], help="change of the recipe adapt_task")
    flags.add_argument("--set", action="append", default=[], help="change of the task file")
    flags.add_argument("--epochs", type=float, default=100.0, help="passes over the task's text (default: 100)")
    return flags


def fine_tuned(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one variant, or what is left of it, and return the content of its results.json."""
    folder = Path(options.output) / name.replace(" -> ", "_").replace(" ", "_")
    folder.mkdir(exist_ok=True)
    steps = folder / "steps.toml"
    steps.write_text(tomli_w.dumps(content_of(WAYS[name], options)))

    print(f"{name}: {folder}", flush=True)
    command = [sys.executable, "-m", "trainer.finetune", "--steps", str(steps), "--output", str(folder / "out")]
    subprocess.run(command, check=True)
    return json.loads((folder / "out/finetune/results.json").read_text())


def content_of(way: tuple[str, ...], options: argparse.Namespace) -> dict[str, Any]:
    """Return the content of a variant's steps file, with absolute paths: relative ones start at the file's folder."""
    task = Path(options.task)
    corpus = ",".join(str(Path(pattern).absolute()) for pattern in options.corpus.split(","))
    fine_tuning: dict[str, Any] = {
        "task": str(task.absolute()) if task.exists() else options.task,
        "seeds": options.seeds,
        "set": options.set,
    }
    if options.data is not None:
        fine_tuning["data"] = str(Path(options.data).absolute())

    domain = {"recipe": "adapt_domain", "corpus": corpus, "set": options.domain_set}
    own_text = {"recipe": "adapt_task", "epochs": options.epochs, "set": options.task_set}
    steps: dict[str, Any] = {"general": {"folder": str(Path(options.folder).absolute())}}
    steps |= {name: step for name, step in (("domain", domain), ("task", own_text)) if name in way}
    return steps | {"finetune": fine_tuning}


def scores_of(results: dict[str, Any]) -> list[float]:
    """Return the first metric of each seed, on the test set if it has labels."""
    metric = results["metrics"][0]
    return [seed["scores"].get("test", seed["scores"]["dev"])[metric] for seed in results["seeds"]]


def table(scores: dict[str, list[float]]) -> list[str]:
    """Return the lines of the table in Markdown."""
    alone = next(iter(scores.values()))
    lines = ["| | score | difference from the first |", "|---|---|---|"]
    for name, values in scores.items():
        differences = [value - before for value, before in zip(values, alone, strict=True)]
        difference = "" if values is alone else shown(mean_with_interval(differences), "+")
        lines.append(f"| {name} | {shown(mean_with_interval(values))} | {difference} |")
    return lines


def shown(mean: MeanWithInterval, sign: str = "") -> str:
    """Return a mean with its interval. Example: "0.8120 (0.8010 to 0.8230)"."""
    text = f"{mean.mean:{sign}.4f}"
    if mean.low is None or mean.high is None:
        return text
    return f"{text} ({mean.low:{sign}.4f} to {mean.high:{sign}.4f})"


if __name__ == "__main__":
    main()
