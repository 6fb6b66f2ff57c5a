"""Runs `clozeline start` on texts of several sizes for several times, and prints what each model learned.

    python benchmarks/start_results.py TEXT OUT [--megabytes 2 10 50 250] [--hours 0.17 1]

TEXT is a text folder, such as that of package_corpus.py. Each text is a random choice of its documents, the smaller
ones parts of the larger, and `start` holds out documents of it. Everything runs on one core. Finished runs are kept,
and interrupted ones continue. Prints a line for each: the recipe and its steps; of the last evaluation the loss at
[MASK], the loss by word frequencies alone, both in nats, and the share of hidden tokens that are filled in exactly.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa

from schemas import storage
from trainer.metrics.log import read_metrics


def main() -> None:
    flags = argparse.ArgumentParser(description="Measure what `clozeline start` gives for texts and times.")
    flags.add_argument("text", type=Path)
    flags.add_argument("output", type=Path)
    flags.add_argument("--megabytes", type=int, nargs="+", default=[2, 10, 50, 250])
    flags.add_argument("--hours", type=float, nargs="+", default=[0.17, 1.0])
    options = flags.parse_args()

    for megabytes in options.megabytes:
        corpus = options.output / f"{megabytes}.jsonl"
        if not corpus.exists():
            corpus.parent.mkdir(parents=True, exist_ok=True)
            storage.publish(str(corpus), chosen_documents(options.text, megabytes * 1_000_000))
        for hours in options.hours:
            print_line(corpus, options.output / f"{megabytes}_{hours:g}", hours)


def chosen_documents(text: Path, size: int) -> bytes:
    """Return documents of a text folder as JSON lines, in an order drawn with a fixed seed, of `size` bytes or all."""
    shards = [pa.ipc.open_file(path).read_all()["sentences"] for path in sorted(text.glob("*.arrow"))]
    places = [(shard, row) for shard, column in enumerate(shards) for row in range(len(column))]
    random.Random(0).shuffle(places)

    lines: list[bytes] = []
    for shard, row in places:
        if size <= 0:
            break
        document = " ".join(shards[shard][row].as_py())
        lines.append(json.dumps({"text": document}, ensure_ascii=False).encode() + b"\n")
        size -= len(document.encode())
    return b"".join(lines)


def print_line(corpus: Path, output: Path, hours: float) -> None:
    """Run `start`, or continue it, and print a line of the table."""
    words = [sys.executable, "-m", "clozeline", "start", str(corpus), "--output", str(output), "--hours", str(hours)]
    one_core = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    subprocess.run([*words, "--yes"], env=one_core, check=True, stdout=subprocess.DEVNULL)

    recipe = tomllib.loads((output / "clozeline.toml").read_text())["train"]["config"]
    last = [line for line in read_metrics(str(output / "run")) if "eval_mlm_loss_masked" in line][-1]
    losses = f"{last['eval_mlm_loss_masked']:.3f} | {last['eval_unigram_loss']:.3f}"
    accuracy = f"{last['eval_mlm_accuracy_masked']:.3f}"
    print(f"| {corpus.stem} MB | {hours:g} | `{recipe}` | {last['step']:,} | {losses} | {accuracy} |", flush=True)


if __name__ == "__main__":
    main()
