"""Runs `clozeline start` on texts of several sizes for several times, and prints what each model learned.

    python benchmarks/start_results.py TEXT HELD_OUT OUT [--megabytes 2 10 50 250] [--hours 0.17 1]

TEXT and HELD_OUT are text folders, such as those of package_corpus.py. Each text is a random choice of TEXT's
documents, the smaller ones parts of the larger. Everything runs on one core. Finished runs are kept, and interrupted
ones continue.

All models are measured on HELD_OUT, at random positions that are all [MASK] (quality_measure.py). Prints a line for
each: the recipe, its steps, the loss, the loss of predicting by word frequencies alone, and the share of hidden tokens
that are predicted exactly. Losses are in bits per character, because each text has its own vocabulary.
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
from typing import Any

import numpy as np
import pyarrow as pa
from quality_measure import read_held_out
from transformers import AutoModelForMaskedLM

from schemas import storage
from schemas.vocabulary import VOCABULARY_FOLDER, read_vocabulary
from trainer.metrics.log import read_metrics


def main() -> None:
    flags = argparse.ArgumentParser(description="Measure what `clozeline start` gives for texts and times.")
    flags.add_argument("text", type=Path)
    flags.add_argument("held_out", type=Path)
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
            output = options.output / f"{megabytes}_{hours:g}"
            run("start", corpus, "--output", output, "--hours", hours, "--yes")  # or continue it
            print(f"| {megabytes} MB | {hours:g} | {figures_of(output, options.held_out)} |", flush=True)


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


def run(*words: Any) -> None:
    one_core = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "clozeline", *map(str, words)]
    subprocess.run(command, env=one_core, check=True, stdout=subprocess.DEVNULL)


def figures_of(output: Path, text: Path) -> str:
    """Return the recipe, steps, losses and share of a finished `start`, as cells of a table."""
    rows = output / "measured"
    if not rows.exists():
        run("pairs", "--text", text, "--vocab", output / "vocab", "--output", rows, "--objective", "full_sentences")
    held_out = read_held_out(rows)
    score = held_out.score(AutoModelForMaskedLM.from_pretrained(output / "hf"))
    frequencies = held_out.unigram_loss(token_counts(output / "pairs"))

    recipe = tomllib.loads((output / "clozeline.toml").read_text())["train"]["config"]
    steps = max(line["step"] for line in read_metrics(str(output / "run")))
    losses = " | ".join(f"{held_out.bits_per_character(loss):.3f}" for loss in (score.loss, frequencies))
    return f"`{recipe}` | {steps:,} | {losses} | {score.accuracy:.3f}"


def token_counts(pairs: Path) -> np.ndarray:
    """Return the count of each token in the training rows."""
    size = read_vocabulary(str(pairs / VOCABULARY_FOLDER)).size
    shards = [pa.ipc.open_file(path).read_all()["input_ids"].combine_chunks() for path in sorted(pairs.glob("*.arrow"))]
    return sum((np.bincount(shard.flatten().to_numpy(), minlength=size) for shard in shards), np.zeros(size, int))


if __name__ == "__main__":
    main()
