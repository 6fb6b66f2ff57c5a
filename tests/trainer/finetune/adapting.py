"""A folder with everything that the steps before fine-tuning need, and ways to run the command there."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from schemas.errors import ClozelineError
from tests.conftest import sentence
from trainer.distributed.stop import StopRequest
from trainer.finetune import cli
from trainer.finetune.steps.drive import run_steps
from trainer.finetune.steps.options import steps_of

SMALL = [
    "engine.precision=fp32",
    "batch.global_batch=16",
    "run.log_every=1",
    "checkpoint.every=2",
    "schedule.warmup_ratio=0.2",
]


class Adapting:
    """A folder with an encoder, a task, a corpus and a steps file of them."""

    def __init__(self, folder: Path, encoder: Path, corpus: Path):
        self.folder = folder
        self.encoder = encoder
        self.output = folder / "out"
        self.steps: dict[str, Any] = {
            "general": {"folder": str(encoder)},
            "domain": {"recipe": "adapt_domain", "corpus": str(corpus), "set": [*SMALL, "run.max_steps=5"]},
            "task": {"recipe": "adapt_task", "epochs": 2, "set": SMALL},
            "finetune": {"task": "task.toml", "seeds": 2, "set": ["training.epochs=2", "training.save_every=1"]},
        }
        write_task(folder)

    def flags(self) -> list[str]:
        """The flags of the command, once the steps are written."""
        path = self.folder / "steps.toml"
        path.write_text(tomli_w.dumps(self.steps))
        return ["--steps", str(path), "--output", str(self.output)]

    def start(self, *flags: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "trainer.finetune", *(flags or self.flags())],
            env=os.environ | {"DS_ACCELERATOR": "cpu"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *flags: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*flags)
        out, err = process.communicate(timeout=500)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def refusal(self, *flags: str) -> tuple[int, str]:
        """Return the exit code and the line of an error that comes before any rank is started."""
        options = cli.parser("clozeline finetune").parse_args([*(flags or self.flags())])
        with pytest.raises(ClozelineError) as caught:
            steps = steps_of(options)
            assert steps is not None
            run_steps(steps, options.output, StopRequest())
        line = str(caught.value)
        assert "\n" not in line
        return caught.value.exit_code, line

    def fails(self, *flags: str) -> tuple[int, str]:
        """Run what is wrong; returns the exit code and the only line of stderr."""
        done = self.run(*flags)
        assert done.returncode not in (0, 1), done
        assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1, done.stderr
        return done.returncode, done.stderr.strip()


def write_task(folder: Path, texts: list[str] | None = None) -> None:
    """Write a task that asks whether a sentence is about a cat or a dog."""
    rng = random.Random(1)
    for name, count in (("train", 40), ("dev", 12)):
        lines = [{"text": sentence(rng), "label": rng.choice("ab")} for _ in range(count)]
        if texts is not None:
            lines = [line | {"text": text} for line, text in zip(lines, texts, strict=False)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = {"train": "train.jsonl", "dev": "dev.jsonl"}
    training = {"batch": 8, "max_length": 24}
    task = {"name": "letters", "kind": "sentence", "data": files, "training": training}
    (folder / "task.toml").write_text(tomli_w.dumps(task))


def results_of(output: Path) -> dict[str, Any]:
    """results.json without what differs between two runs that are the same."""
    results = json.loads((output / "finetune/results.json").read_text())
    for seed in results["seeds"]:
        del seed["seconds"]
    del results["data"]["files"]
    return results
