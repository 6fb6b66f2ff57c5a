"""Fine-tuning on a GPU: the same command gives the same result to the last bit."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.conftest import DRY

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
WORDS = [f"word{number}" for number in range(200)]
TASK = """
name = "first"
kind = "sentence"
data = { train = "train.jsonl", dev = "dev.jsonl" }

[training]
epochs = 3
batch = 16
lr = 1e-3
max_length = 64
"""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT of transformers with a vocabulary of whole words."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    folder = tmp_path_factory.mktemp("encoder")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
    BertForMaskedLM(BertConfig(vocab_size=len(tokens), **shape)).save_pretrained(folder)
    BertTokenizer(vocab={token: number for number, token in enumerate(tokens)}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Which half of the vocabulary is a sentence from? Sentences differ in length, so that attention has a mask."""
    folder = tmp_path_factory.mktemp("task")
    (folder / "task.toml").write_text(TASK)
    draws = random.Random(0)
    for name, count in (("train", 400), ("dev", 100)):
        lines = []
        for _ in range(count):
            half = draws.randrange(2)
            words = draws.choices(WORDS[half * 100 : half * 100 + 100], k=draws.randint(3, 50))
            lines.append(json.dumps({"text": " ".join(words), "label": f"half {half}"}) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder / "task.toml"


def finetuned(encoder: Path, task: Path, output: Path, *more: str) -> list[dict]:
    """Fine-tune one seed in a process, and return the lines of its metrics."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    words = [sys.executable, "-m", "trainer.finetune", str(encoder), "--task", str(task), "--output", str(output)]
    done = subprocess.run([*words, "--seeds", "1", *more], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "determinis" not in done.stderr, done.stderr
    return [json.loads(line) for line in (output / "seed-0/metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("precision", ["fp32"] if DRY else ["fp32", "bf16"])
def test_two_fine_tunings_are_equal_and_learn(encoder: Path, task: Path, tmp_path: Path, precision: str) -> None:
    change = ("--set", f"training.precision={precision}")
    first = finetuned(encoder, task, tmp_path / "first", *change)
    assert finetuned(encoder, task, tmp_path / "second", *change) == first
    assert max(line["accuracy"] for line in first) > 0.9
