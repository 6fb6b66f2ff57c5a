"""Runs commands of the pipeline and the trainer, for quality.py.

Finished folders are kept, so an interrupted benchmark continues when it is started again with the same output.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from schemas import storage
from schemas.manifest import NAME


def command(line: str) -> str:
    """Print a command, run it with this Python, and return its stdout. Raises CalledProcessError if it fails."""
    print(f"$ {line}", file=sys.stderr, flush=True)
    words = [sys.executable if word == "python" else word for word in shlex.split(line)]

    # One core and no GPU, so that FLOPs and seconds are for one device.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def documents_of(files: list[str]) -> list[str]:
    """Return the documents of JSONL files, each as one line of JSON."""
    return [line for file in files for line in Path(file).read_text().splitlines()]


def write_documents(documents: list[str], path: Path) -> Path:
    """Write documents, given as lines of JSON, to a file, all of them or none, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.publish(str(path), "".join(f"{document}\n" for document in documents).encode())
    return path


def make_text(documents: Path, text: Path) -> None:
    make(text, f"python -m pipeline shard --input {documents} --output {text}")


def make_vocabulary(text: Path, vocab: Path, size: int) -> None:
    """Train a WordPiece vocabulary that ignores case and accents."""
    make(vocab, f"python -m pipeline vocab --text {text} --output {vocab} --model wordpiece --size {size} --lowercase")


def make(folder: Path, line: str) -> None:
    """Run a command of the pipeline unless its folder is finished."""
    if not (folder / NAME).exists():
        command(line)


def export(run: Path, hf: Path, averaged: int) -> None:
    """Write the mean of the run's last checkpoints as a folder in the Hugging Face format, unless it exists."""
    if not (hf / "config.json").exists():
        command(f"python -m trainer.export {run} --output {hf} --average {averaged}")
