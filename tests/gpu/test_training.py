"""The trainer itself on a GPU: ZeRO stages, precisions, compiled, resumed, with a micro-batch that it chooses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.conftest import DRY, with_our_code
from trainer.cli import main

pytestmark = pytest.mark.gpu

SMALL = {
    "model.num_hidden_layers": 3,
    "model.hidden_size": 128,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 256,
    "model.vocab_size": 500,
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "batch.global_batch": 32,
    "run.max_steps": 6,
    "run.stop_at": "none",
    "run.log_every": 1,
    "schedule.warmup_steps": 2,
    "optimizer.lr": 1e-3,
    "checkpoint.every": 100,
}


def train(pairs: Path, run: Path, device, **changes: object) -> list[dict]:
    """Train bert_base in small, and return the lines of its metrics. `engine__x` stands for engine.x."""
    values = SMALL | {"data.pairs": pairs, "run.output": run}
    values |= {name.replace("__", "."): value for name, value in changes.items()}
    words = ["--config", "bert_base"]
    words += [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    if DRY:
        # The benchmark's dry run starts the trainer as a process of its own; here that would only take longer.
        assert main(words) == 0
    else:
        start(words)
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def start(words: list[str]) -> None:
    """Train in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "trainer", *words], env=with_our_code(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def losses(lines: list[dict]) -> list[float]:
    return [line["loss"] for line in lines]


@pytest.fixture(scope="module")
def plain(generated_pairs: Path, tmp_path_factory: pytest.TempPathFactory, device) -> list[float]:
    """The losses in float32 at stage 0, not compiled."""
    run = tmp_path_factory.mktemp("plain") / "run"
    kept = {"engine__precision": "fp32", "engine__zero_stage": 0, "engine__compile": "false"}
    return losses(train(generated_pairs, run, device, **kept))


CASES = [
    ("bf16", 0, "auto"),
    ("bf16", 1, "auto"),
    ("bf16", 1, "false"),
    ("bf16", 2, "auto"),
    ("bf16", 3, "auto"),
    ("fp16", 1, "auto"),
    ("fp32", 1, "auto"),
]


@pytest.mark.parametrize(("precision", "stage", "compiled"), CASES[1:2] if DRY else CASES)
def test_every_stage_and_precision_learns_the_same(
    generated_pairs, tmp_path, device, plain, precision, stage, compiled
) -> None:
    settings = {"engine__precision": precision, "engine__zero_stage": stage, "engine__compile": compiled}
    found = losses(train(generated_pairs, tmp_path / "run", device, **settings))
    assert found == pytest.approx(plain, rel=2e-2)

    (micro_tokens,) = json.loads((tmp_path / "run/micro_batches.json").read_text()).values()
    assert micro_tokens == 32 * 64, "all rows of a step at once"


@pytest.mark.skipif(DRY, reason="tests/trainer resumes on CPUs")
def test_a_resumed_run_equals_an_unbroken_one(generated_pairs, tmp_path, device) -> None:
    """Bit for bit with engine.deterministic."""
    settings = {"engine__deterministic": "true", "engine__precision": "bf16"}
    unbroken = train(generated_pairs, tmp_path / "unbroken", device, **settings)
    train(generated_pairs, tmp_path / "resumed", device, **settings, run__stop_at=3)
    resumed = train(generated_pairs, tmp_path / "resumed", device, **settings)
    assert losses(resumed) == losses(unbroken)
