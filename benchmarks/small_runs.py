"""Runs small trainings from text to export with the commands that a user would run, for the other benchmarks.

Each function writes one folder. Finished folders are kept, so an interrupted benchmark continues when it is started
again with the same output.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas import storage
from schemas.manifest import NAME

SMALL_BERT = Path(__file__).with_name("small_bert.toml")

SMALL_ENCODER = {
    "model.num_hidden_layers": 2,
    "model.hidden_size": 128,
    "model.num_attention_heads": 4,
    "model.intermediate_size": 512,
    "masking.prob": 0.15,
    "optimizer.lr": 3e-3,
    "batch.global_batch": 16,
    "batch.micro_batch": 16,
    "run.log_every": 20,
    "checkpoint.every": 10**9,
    "checkpoint.keep": 1,
    "evaluation.every": 10**9,
    "evaluation.batches": 40,
}
"""Changes to small_bert.toml. Only the last step is saved and evaluated.

Batches are small, because the number of steps decides how soon a masked LM learns more than word frequencies."""

ROW_LENGTH = 64

Settings = dict[str, Any]
"""Keys of a recipe, as in `--set key=value`, with their values."""


def command(line: str) -> str:
    """Print a command, run it with this Python, and return its stdout. Raises CalledProcessError if it fails."""
    print(f"$ {line}", file=sys.stderr, flush=True)
    words = [sys.executable if word == "python" else word for word in shlex.split(line)]

    # One core and no GPU, so that FLOPs and seconds are for one device.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


# ---- Text ----


def documents_of(files: list[str]) -> list[str]:
    """Return the documents of JSONL files, each as one line of JSON."""
    return [line for file in files for line in Path(file).read_text().splitlines()]


def write_documents(documents: list[str], path: Path) -> Path:
    """Write documents, given as lines of JSON, to a file, all of them or none, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.publish(str(path), "".join(f"{document}\n" for document in documents).encode())
    return path


def sentences_of(text: Path) -> list[list[str]]:
    """Return the sentences of each document in a folder of text shards."""
    documents: list[list[str]] = []
    for shard in sorted(text.glob("*.arrow")):
        table = pa.ipc.open_file(shard).read_all()
        documents += table["sentences"].to_pylist()
    return documents


# ---- The pipeline ----


def make_text(documents: Path, text: Path) -> None:
    make(text, f"python -m pipeline shard --input {documents} --output {text}")


def make_vocabulary(text: Path, vocab: Path, size: int) -> None:
    """Train a WordPiece vocabulary that ignores case and accents."""
    make(vocab, f"python -m pipeline vocab --text {text} --output {vocab} --model wordpiece --size {size} --lowercase")


def make_pairs(text: Path, vocab: Path, pairs: Path) -> None:
    """Make rows of whole sentences from one document each. vocab: may also be a folder in the Hugging Face format."""
    rows = f"--objective doc_sentences --max_length {ROW_LENGTH}"
    make(pairs, f"python -m pipeline pairs --text {text} --vocab {vocab} --output {pairs} {rows}")


def make(folder: Path, line: str) -> None:
    """Run a command of the pipeline unless its folder is finished."""
    if not (folder / NAME).exists():
        command(line)


# ---- The trainer ----


def train(run: Path, settings: Settings) -> dict[str, Any]:
    """Train small_bert.toml with SMALL_ENCODER and these settings, unless the run is finished.

    Returns the last line of its metrics, with the CPU seconds of the command as `processor_seconds`. Wall-clock time
    would depend on other work on the machine.
    """
    finished = run / "processor_seconds"
    if not finished.exists():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command(f"python -m trainer --config {SMALL_BERT} {flags_of(settings | {'run.output': run})}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        finished.write_text(str(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))

    last_line = (run / "metrics.jsonl").read_text().splitlines()[-1]
    return json.loads(last_line) | {"processor_seconds": float(finished.read_text())}


def flops_per_token(settings: Settings) -> float:
    """Return the trainer's count of FLOPs per token for a recipe, from `--describe`."""
    return json.loads(command(f"python -m trainer --config {SMALL_BERT} {flags_of(settings)} --describe"))[
        "flops_per_token"
    ]


def flags_of(settings: Settings) -> str:
    return " ".join(f"--set {key}={value}" for key, value in (SMALL_ENCODER | settings).items())


def export(run: Path, hf: Path, averaged: int = 1) -> None:
    """Write the mean of the run's last checkpoints as a folder in the Hugging Face format, unless it exists."""
    if not (hf / "config.json").exists():
        command(f"python -m trainer.export {run} --output {hf} --average {averaged}")


# ---- Tables ----


def mean_and_range(values: list[float], digits: int) -> str:
    """Return a mean with its range as text.

    Example: `mean_and_range([0.71, 0.72, 0.76], 2)` -> `"0.73 (0.71 to 0.76)"`.
    """
    mean = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"
