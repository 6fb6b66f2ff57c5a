"""Fine-tuning on a GPU: the same command gives the same result to the last bit."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.conftest import DRY, with_our_code

pytest.importorskip("sklearn", reason="fine-tuning needs scikit-learn, which is too large for the bundle")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.gpu

WORDS = [f"word{number}" for number in range(200)]
LENGTHS = (10, 40) if DRY else (150, 390)
TASK = """
name = "first"
kind = "sentence"
data = { train = "train.jsonl", dev = "dev.jsonl" }

[training]
epochs = 3
batch = 16
lr = 1e-3
max_length = 512
"""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT of transformers with a vocabulary of whole words."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    folder = tmp_path_factory.mktemp("encoder")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(vocab_size=len(tokens), **shape)).save_pretrained(folder)
    BertTokenizer(vocab={token: number for number, token in enumerate(tokens)}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Which half of the vocabulary is most of a text from?

    Texts differ in length, so that attention has a mask, and are longer than a block of its backward pass: in shorter
    ones its sums have one order only.
    """
    folder = tmp_path_factory.mktemp("task")
    (folder / "task.toml").write_text(TASK)
    draws = random.Random(0)
    for name, count in (("train", 400), ("dev", 100)):
        lines = []
        for _ in range(count):
            half = draws.randrange(2)
            words = draws.choices(WORDS, k=draws.randint(*LENGTHS))
            words += draws.choices(WORDS[half * 100 : half * 100 + 100], k=len(words) // 4)
            lines.append(json.dumps({"text": " ".join(words), "label": f"half {half}"}) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder / "task.toml"


def finetuned(encoder: Path, task: Path, output: Path, *more: str) -> list[dict]:
    """Fine-tune one seed in a process, and return the lines of its metrics and predictions."""
    words = [sys.executable, "-m", "trainer.finetune", str(encoder), "--task", str(task), "--output", str(output)]
    done = subprocess.run([*words, "--seeds", "1", *more], env=with_our_code(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "deterministic" not in done.stdout + done.stderr
    files = (output / "seed-0/metrics.jsonl", output / "seed-0/predictions_dev.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("precision", ["fp32"] if DRY else ["fp32", "bf16"])
def test_two_fine_tunings_are_equal_and_learn(device, encoder, task, tmp_path: Path, precision: str) -> None:
    change = ("--set", f"training.precision={precision}")
    first = finetuned(encoder, task, tmp_path / "first", *change)
    assert finetuned(encoder, task, tmp_path / "second", *change) == first
    assert max(line["accuracy"] for line in first if "accuracy" in line) > 0.7
