"""A folder in which the commands of a page run as they are written, on a small corpus and with small models."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from schemas.vocabulary import read_vocabulary
from tests import forked
from tests.conftest import Command
from tests.docs.pages import ROOT, blocks, commands
from tests.ports import free_port
from tests.small_models import random_model, write_hf
from trainer.config.load import load_recipe

SMALL_RUN = {
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 2,
    "model.hidden_size": 32,
    "model.intermediate_size": 64,
    "model.vocab_size": "none",
    "batch.global_batch": 32,
    "batch.micro_batch": 16,
    "schedule.warmup_steps": 2,
    "engine.precision": "fp32",
    "run.max_hours": "none",
    "run.max_steps": 6,
    "run.stop_at": 6,
    "run.log_every": 1,
    "checkpoint.every": 3,
    "evaluation.every": 3,
}
"""What every training command gets in addition. These come last, and so win over what a command of a page sets."""

OF_OWN_SHAPE = ("model.", "schedule.")
"""Sections of SMALL_RUN that are not for recipes which take their shape from a folder, and their warm-up as a ratio."""

PIPELINE_COMMANDS = ("shard", "vocab", "pairs", "inspect", "verify")


class Sandbox:
    """A folder with a small corpus, in which the commands of a page run."""

    def __init__(self, folder: Path, corpus: Path, command: Command, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        self.environment: dict[str, str] = {}
        self._command = command
        monkeypatch.chdir(folder)

        (folder / "corpus").mkdir()
        shutil.copyfile(corpus, folder / "corpus" / "a.jsonl")

    def put(self, source: Path, name: str) -> None:
        """Copy a folder that other tests share to where a page expects it."""
        shutil.copytree(source, self.folder / name)

    def run_page(self, page: str, pipeline_in_process: bool = True) -> None:
        """Run all commands of a page and then its Python code. Each must succeed.

        The README's `clozeline start`, which takes longest, runs on that page alone.
        """
        for words in commands(page):
            is_repeated = page != "README.md" and words[1] == "start" and words in commands("README.md")
            if not is_repeated:
                self.run_command(words, pipeline_in_process)

        for script in blocks(page, "python"):
            done = self.run(["python", "-m", "tests.run_code", script])
            assert done.returncode == 0, (script, done.stderr)

    def run_command(self, words: list[str], pipeline_in_process: bool = True) -> None:
        """Run a command of a page, which must succeed."""
        check_recipe_as_written(words)
        if words[:2] == ["clozeline", "start"]:
            self._shrink_plan(words)
        small = self.shrunk(words)
        job = pipeline_job(small)
        if job is not None and pipeline_in_process:
            done = self._command(*job)
        else:
            done = self.run(small)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-3000:])

    def _shrink_plan(self, words: list[str]) -> None:
        """Let `clozeline start` write its plan, and make it one for the small corpus."""
        done = self.run([*words, "--plan_only"])
        assert done.returncode == 0, (words, done.stderr)
        plan = self.folder / words[words.index("--output") + 1] / "clozeline.toml"
        keys = {key: f'"{value}"' if isinstance(value, str) else value for key, value in SMALL_RUN.items()}
        settings = "".join(f'"{key}" = {value}\n' for key, value in keys.items())
        text = re.sub(r"(?m)^size = \d+", "size = 160", plan.read_text())
        text = text.replace("cpu_minutes", "tiny")  # whose length is a number of steps
        text = re.sub(
            r'(?m)^"(schedule.warmup_steps|evaluation.every|checkpoint.every)".*\n', "", text
        )  # of a plan for minutes
        plan.write_text(re.sub(r'(?m)^"run.max_hours".*\n', settings, text))

    def shrunk(self, words: list[str]) -> list[str]:
        """Return a command for the small corpus."""
        small = list(words)
        if "--size" in small:
            # Byte-level BPE has a token for each of the 256 bytes.
            small[small.index("--size") + 1] = "300" if "bytebpe" in small else "160"
        if "--seeds" in small:
            small[small.index("--seeds") + 1] = "1"
        if "--config" in small:
            adapts = small[small.index("--config") + 1].startswith("adapt_")
            changes = [
                f"{key}={value}" for key, value in SMALL_RUN.items() if not (adapts and key.startswith(OF_OWN_SHAPE))
            ]
            small += [word for change in changes for word in ("--set", change)]

        # Other tests run on this machine at the same time, and one of them takes the default port.
        if small[0] in ("deepspeed", "torchrun") and "--rdzv_endpoint" not in small:
            small[1:1] = ["--master_port", str(free_port())]
        return small

    def run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command as a process in the sandbox, always of this source tree."""
        environment = os.environ | {"PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"} | self.environment
        return forked.run(words, environment, self.folder, timeout=500)


def check_recipe_as_written(words: list[str]) -> None:
    """Load the recipe of a training command with the changes that the page shows, which SMALL_RUN may overwrite."""
    if "--config" in words:
        changes = [change for flag, change in pairwise(words) if flag == "--set"]
        load_recipe(words[words.index("--config") + 1], changes)


def pipeline_job(words: list[str]) -> list[str] | None:
    """Return the arguments of a command of the pipeline, or None for any other command."""
    if words[:3] == ["python", "-m", "pipeline"]:
        return words[3:]
    if words[0] == "clozeline" and words[1] in PIPELINE_COMMANDS:
        return words[1:]
    return None


@pytest.fixture
def sandbox(tmp_path: Path, corpus: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    return Sandbox(tmp_path, corpus, command, monkeypatch)


def put_published_model(folder: Path, vocab: Path) -> None:
    """Write a folder with a small BERT as it would be published: config, safetensors and tokenizer."""
    changes = [f"{key}={value}" for key, value in SMALL_RUN.items() if key.startswith("model.")]
    model = load_recipe("bert_base", changes).model
    vocabulary = read_vocabulary(str(vocab))
    write_hf(random_model(model, vocabulary), vocabulary, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(vocab / name, folder / name)
