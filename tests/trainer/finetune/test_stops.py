"""A fine-tuning that was stopped or killed ends with the bytes of one that never was, for every kind of task."""

from __future__ import annotations

import json
import os
import shutil
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

    done = run_commands(folder, commands)
    expected = [{signal.SIGTERM: 75, signal.SIGKILL: -9}.get(command.get("signal"), 0) for command in commands]
    assert json.loads(done.stdout) == expected, done.stderr
    return folder


def run_commands(folder: Path, commands: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Run commands as stopping.py does. folder: for the file with the commands."""
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
    return done


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_result_is_that_of_an_unbroken_one(outputs: Path, kind: str) -> None:
    straight, broken = outputs / kind / "straight", outputs / kind / "broken"
    for name in ("hf/model.safetensors", "hf/config.json", "seed-0/metrics.jsonl", "seed-0/predictions_test.jsonl"):
        assert (broken / name).read_bytes() == (straight / name).read_bytes(), name
    assert results_of(broken) == results_of(straight)
    assert not list(broken.glob("seed-0/checkpoint-*"))


def test_a_best_epoch_without_weights_is_an_error(encoder: Callable[[str], Path], tmp_path: Path) -> None:
    """Those of the last epoch would count as the best ones. A folder whose name is no step is none of ours."""
    task = write_task(tmp_path / "task", "sentence", save_every=2)
    words = [str(encoder("bert")), "--task", str(task), "--output", str(tmp_path / "out")]
    stop = {"words": words, "signal": signal.SIGTERM, "moment": "step", "step": 9}
    assert json.loads(run_commands(tmp_path, [stop]).stdout) == [75]

    seed = tmp_path / "out/seed-0"
    state = seed / "checkpoint-9/trainer_state.json"
    content = json.loads(state.read_text())
    assert content["best_global_step"] == 6
    state.write_text(json.dumps(content | {"best_metric": 2.0}))  # the second epoch will not be better
    shutil.rmtree(seed / "checkpoint-6")
    shutil.copytree(seed / "checkpoint-9", seed / "checkpoint-57")
    (seed / "checkpoint-57/trainer_state.json").unlink()
    (seed / "checkpoint-best").mkdir()
    (seed / "checkpoint-best/trainer_state.json").write_text("{}")

    done = run_commands(tmp_path, [{"words": words}])
    assert json.loads(done.stdout) == [5], done.stderr
    assert f"{seed}/checkpoint-6, which has the weights of the best epoch, cannot be read" in done.stderr
    assert f"Remove {seed} and repeat the command" in done.stderr
    assert {path.name for path in seed.glob("checkpoint-*")} == {"checkpoint-10", "checkpoint-12"}
    assert not (seed / "checkpoint-57").exists() and not (seed / "result.json").exists()


def results_of(output: Path) -> str:
    """The text of results.json, but for the time that training took."""
    content = json.loads((output / "results.json").read_text())
    for seed in content["seeds"]:
        seed.pop("seconds")
    return json.dumps(content)
