"""Compares fine-tuning from three starts on a task of each kind: a pretrained encoder, what it was trained from, and
random weights of its shape.

    PYTHONPATH=. python benchmarks/finetune_kinds.py --output OUT [--minutes 10] [--seeds 5] [--only sentence tags]

Builds the tasks and a corpus from the documentation of installed packages (documentation_tasks.py), pretrains the
recipe cpu_minutes on the corpus for a few minutes, exports it, and fine-tunes it with the command that a user would
run. The recipe's initial weights already hold co-occurrence statistics of the corpus (model.initial_*), so they are
fine-tuned too, exported before any training. All three are fine-tuned with the same values. Finished parts are kept, so
the same command continues after an interruption.

Prints the scores on held-out modules: the mean over seeds with the 95% interval of Student's t, and the same for the
differences from the pretrained encoder. A seed gives all three the same head and the same batches.
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
from quality_ours import export_untrained

from trainer.finetune.metrics.summary import mean_with_interval

VOCABULARY_SIZE = 8000
ROW = 128

TRAINING = {"epochs": 4, "lr": 5e-4, "batch": 16, "max_length": ROW}
"""The [training] of all starts. A model this small needs a higher learning rate than BERT's 5e-5."""

HEADER = """\
| kind | metric | pretrained | untrained start | random weights | pretrained - start | pretrained - random |
|---|---|---|---|---|---|---|"""


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--output", type=Path, required=True)
    flags.add_argument("--minutes", type=float, default=10.0, help="of pretraining (default: 10)")
    flags.add_argument("--seeds", type=int, default=5, help="of fine-tuning (default: 5)")
    flags.add_argument("--only", nargs="+", default=list(documentation_tasks.TASKS), help="kinds; all if left out")
    options = flags.parse_args()

    tasks = make_tasks(options.output)
    pairs = make_pairs(options.output)
    encoder = pretrain(options.output, pairs, options.minutes)
    start = untrained_start(options.output, pairs)

    lines = [HEADER]
    for kind in options.only:
        lines.append(compare(kind, encoder, start, tasks, options))
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


def make_pairs(output: Path) -> Path:
    """Write OUT/pairs from OUT/corpus.jsonl unless it exists, and return its path."""
    text = output / "text"
    vocab = output / "vocab"
    pairs = output / "pairs"
    small_runs.make_text(output / "corpus.jsonl", text)
    small_runs.make_vocabulary(text, vocab, VOCABULARY_SIZE)
    rows = f"--objective full_sentences --max_length {ROW}"
    small_runs.make(pairs, f"python -m pipeline pairs --text {text} --vocab {vocab} --output {pairs} {rows}")
    return pairs


def pretrain(output: Path, pairs: Path, minutes: float) -> Path:
    """Return the export of an encoder that was pretrained for `minutes` minutes on one core."""
    run = output / "run"
    hf = output / "hf"
    if not (hf / "config.json").exists():
        settings = {"data.pairs": pairs, "run.output": run, "run.max_hours": minutes / 60, "run.seed": 0}
        words = " ".join(f"--set {key}={value}" for key, value in settings.items())
        small_runs.command(f"python -m trainer --config cpu_minutes {words}")
        small_runs.export(run, hf)
    return hf


def untrained_start(output: Path, pairs: Path) -> Path:
    """Return the export of the weights that the pretraining starts from."""
    folder = output / "start"
    hf = folder / "hf"
    if not (hf / "config.json").exists():
        export_untrained("cpu_minutes", folder, {"data.pairs": pairs, "run.seed": 0}, "cpu")
    return hf


def compare(kind: str, encoder: Path, start: Path, tasks: Path, options: argparse.Namespace) -> str:
    """Fine-tune all three starts on the task of a kind, and return its line of the table."""
    suffix = "json" if kind == "span" else "jsonl"
    files = {"train": f"train.{suffix}", "dev": f"dev.{suffix}"}
    task = tasks / kind / "task.toml"
    training = TRAINING | ({"stride": ROW // 2} if kind == "span" else {})
    task.write_text(tomli_w.dumps({"name": kind, "kind": kind, "data": files, "training": training}))

    results = []
    for name, weights, flag in (
        ("pretrained", encoder, []),
        ("start", start, []),
        ("random", encoder, ["--random_weights"]),
    ):
        folder = options.output / f"{kind}_{name}"
        command = [sys.executable, "-m", "trainer.finetune", str(weights), "--task", str(task)]
        command += ["--output", str(folder), "--seeds", str(options.seeds), *flag]
        subprocess.run(command, check=True, stdout=sys.stderr)
        results.append(json.loads((folder / "results.json").read_text()))

    scores = [scores_of(result) for result in results]
    pretrained, *others = scores
    differences = [[mine - other for mine, other in zip(pretrained, values, strict=True)] for values in others]

    columns = [kind, results[0]["metrics"][0]]
    columns += [shown(mean_with_interval(values)) for values in scores]
    columns += [shown(mean_with_interval(values), "+") for values in differences]
    return f"| {' | '.join(columns)} |"


if __name__ == "__main__":
    main()
