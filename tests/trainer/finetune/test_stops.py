"""A fine-tuning that was stopped or killed ends with the bytes of one that never was, for every kind of task."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.finetune.tasks import write_task

FAMILIES = {"sentence": "bert", "pair": "modernbert", "choice": "roberta", "tags": "xlnet", "span": "electra"}

STOPS: list[dict[str, Any]] = [
    {"signal": signal.SIGTERM, "moment": "step", "step": 3},
    {"signal": signal.SIGKILL, "moment": "step", "step": 5},
    {"signal": signal.SIGTERM, "moment": "step", "step": 6},  # the end of an epoch, which is scored first
    {"signal": signal.SIGKILL, "moment": "checkpoint", "step": 10},
]
"""Twelve steps in two epochs, with a checkpoint every second step."""


@pytest.fixture(scope="module")
def outputs(encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with KIND/straight and KIND/broken, both finished."""
    folder = tmp_path_factory.mktemp("stops")
    commands = []
    for kind, family in FAMILIES.items():
        changes = {"stride": 8, "null_threshold": "best"} if kind == "span" else {}
        task = write_task(folder / kind, kind, max_length=48, save_every=2, **changes)
        for name, stops in {"straight": [], "broken": STOPS}.items():
            words = [str(encoder(family)), "--task", str(task), "--output", str(folder / kind / name)]
            commands += [{"words": words, **stop} for stop in stops] + [{"words": words}]

    file = folder / "commands.json"
    file.write_text(json.dumps(commands))
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.finetune.stopping", str(file)],
        # The number of threads shows in the last bits of losses.
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    expected = [{signal.SIGTERM: 75, signal.SIGKILL: -9}.get(command.get("signal"), 0) for command in commands]
    assert json.loads(done.stdout) == expected, done.stderr
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_result_is_that_of_an_unbroken_one(outputs: Path, kind: str) -> None:
    straight, broken = outputs / kind / "straight", outputs / kind / "broken"
    for name in ("hf/model.safetensors", "hf/config.json", "seed-0/metrics.jsonl", "seed-0/predictions_test.jsonl"):
        assert (broken / name).read_bytes() == (straight / name).read_bytes(), name
    assert results_of(broken) == results_of(straight)
    assert not list(broken.glob("seed-0/checkpoint-*"))


def results_of(output: Path) -> str:
    """The text of results.json, but for the time that training took."""
    content = json.loads((output / "results.json").read_text())
    for seed in content["seeds"]:
        seed.pop("seconds")
    return json.dumps(content)
