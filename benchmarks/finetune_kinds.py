"""Compares fine-tuning a pretrained encoder with fine-tuning random weights of its shape, on a task of each kind.

    PYTHONPATH=. python benchmarks/finetune_kinds.py --output OUT [--minutes 10] [--seeds 5] [--only sentence tags]

Builds the tasks and a corpus from the documentation of installed packages (documentation_tasks.py), pretrains the
recipe cpu_minutes on the corpus for a few minutes, exports it, and fine-tunes it with the command that a user would
run, with the same values as the random weights. Finished parts are kept, so the same command continues after an
interruption.

Prints the scores on held-out modules: the mean over seeds with the 95% interval of Student's t, and the same for the
differences between the two. A seed gives both the same head and the same batches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import documentation_tasks
import small_runs
import tomli_w
from adaptation import scores_of, shown

from trainer.finetune.metrics.summary import mean_with_interval

VOCABULARY_SIZE = 8000
ROW = 128

TRAINING = {"epochs": 4, "lr": 5e-4, "batch": 16, "max_length": ROW}
"""The [training] of both encoders. A model this small needs a higher learning rate than BERT's 5e-5."""


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--output", type=Path, required=True)
    flags.add_argument("--minutes", type=float, default=10.0, help="of pretraining (default: 10)")
    flags.add_argument("--seeds", type=int, default=5, help="of fine-tuning (default: 5)")
    flags.add_argument("--only", nargs="+", default=list(documentation_tasks.TASKS), help="kinds; all if left out")
    options = flags.parse_args()

    tasks = make_tasks(options.output)
    encoder = pretrain(options.output, options.minutes)

    lines = ["| kind | metric | pretrained | random weights | difference |", "|---|---|---|---|---|"]
    for kind in options.only:
        lines.append(compare(kind, encoder, tasks, options))
        print(lines[-1], flush=True)
    print("\n".join(lines))
    (options.output / "table.md").write_text("\n".join(lines) + "\n")


def make_tasks(output: Path) -> Path:
    """Write OUT/corpus.jsonl and OUT/tasks unless they exist, and return the path of OUT/tasks."""
    tasks = output / "tasks"
    if not (output / "corpus.jsonl").exists():
        modules = documentation_tasks.read_modules()
        documentation_tasks.write_tasks(modules, tasks)
        documentation_tasks.write_corpus(modules, output / "corpus.jsonl")
    return tasks


def pretrain(output: Path, minutes: float) -> Path:
    """Return the export of an encoder that was pretrained for `minutes` minutes on one core."""
    text, vocab, pairs, run, hf = (output / name for name in ("text", "vocab", "pairs", "run", "hf"))
    small_runs.make_text(output / "corpus.jsonl", text)
    small_runs.make_vocabulary(text, vocab, VOCABULARY_SIZE)
    rows = f"--objective full_sentences --max_length {ROW}"
    small_runs.make(pairs, f"python -m pipeline pairs --text {text} --vocab {vocab} --output {pairs} {rows}")

    if not (hf / "config.json").exists():
        settings = {"data.pairs": pairs, "run.output": run, "run.max_hours": minutes / 60, "run.seed": 0}
        words = " ".join(f"--set {key}={value}" for key, value in settings.items())
        small_runs.command(f"python -m trainer --config cpu_minutes {words}")
        small_runs.export(run, hf)
    return hf


def compare(kind: str, encoder: Path, tasks: Path, options: argparse.Namespace) -> str:
    """Fine-tune both encoders on the task of a kind, and return its line of the table."""
    suffix = "json" if kind == "span" else "jsonl"
    files = {"train": f"train.{suffix}", "dev": f"dev.{suffix}"}
    task = tasks / kind / "task.toml"
    task.write_text(tomli_w.dumps({"name": kind, "kind": kind, "data": files, "training": TRAINING}))

    results = []
    for name, flag in (("pretrained", []), ("random", ["--random_weights"])):
        folder = options.output / f"{kind}_{name}"
        command = [sys.executable, "-m", "trainer.finetune", str(encoder), "--task", str(task)]
        command += ["--output", str(folder), "--seeds", str(options.seeds), *flag]
        subprocess.run(command, check=True, stdout=sys.stderr)
        results.append(json.loads((folder / "results.json").read_text()))

    pretrained, random_weights = (scores_of(result) for result in results)
    differences = [score - other for score, other in zip(pretrained, random_weights, strict=True)]
    columns = [
        kind,
        results[0]["metrics"][0],
        shown(mean_with_interval(pretrained)),
        shown(mean_with_interval(random_weights)),
        shown(mean_with_interval(differences), "+"),
    ]
    return f"| {' | '.join(columns)} |"


if __name__ == "__main__":
    main()
