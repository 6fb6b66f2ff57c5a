"""A fine-tuning that was stopped or killed ends with the bytes of one that never was, for every kind of task."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import forked
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
        changes: dict[str, Any] = {"stride": 8, "null_threshold": "best"} if kind == "span" else {}
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
    # The number of threads shows in the last bits of losses.
    words = ["python", "-m", "tests.trainer.finetune.stopping", str(file)]
    done = forked.run(words, os.environ | {"OMP_NUM_THREADS": "1"}, timeout=500)
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


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no optimizer": (lambda seed: (seed / "checkpoint-9/optimizer.pt").unlink(), "optimizer.pt is missing"),
    "another rate": (lambda seed: flip(seed / "checkpoint-9/scheduler.pt"), "scheduler.pt is damaged"),
    "half of the weights": (
        lambda seed: os.truncate(seed / "checkpoint-9/model.safetensors", 999),
        "model.safetensors is damaged",
    ),
    "another best epoch": (lambda seed: flip(seed / "checkpoint-6/model.safetensors"), "the weights of checkpoint-6"),
    "no best epoch": (lambda seed: shutil.rmtree(seed / "checkpoint-6"), "the weights of checkpoint-6"),
}
"""What becomes of checkpoints after a stop at step 9, whose best epoch ended with step 6; and a part of the warning."""


@pytest.fixture(scope="module")
def warnings(encoder: Callable[[str], Path], outputs: Path) -> str:
    """What commands said that continued in outputs/WHAT, each with that damage."""
    commands = []
    for what in DAMAGE:
        words = [str(encoder("bert")), "--task", str(outputs / "sentence/task.toml"), "--output", str(outputs / what)]
        commands.append({"words": words, "signal": signal.SIGTERM, "moment": "step", "step": 9})
    assert json.loads(run_commands(outputs, commands).stdout) == [75] * len(DAMAGE)

    for what, (damage, _) in DAMAGE.items():
        seed = outputs / what / "seed-0"
        assert {path.name for path in seed.glob("checkpoint-*")} == {"checkpoint-6", "checkpoint-8", "checkpoint-9"}
        (seed / "checkpoint-best").mkdir()  # a name that is no step is none of ours
        damage(seed)

    done = run_commands(outputs, [{"words": command["words"]} for command in commands])
    assert json.loads(done.stdout) == [0] * len(DAMAGE), done.stderr
    return done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_is_told_and_changes_no_result(outputs: Path, warnings: str, what: str) -> None:
    told = [line for line in warnings.splitlines() if f"{outputs / what}/seed-0/checkpoint-9 is not continued" in line]
    assert len(told) == 1 and DAMAGE[what][1] in told[0]
    for name in ("hf/model.safetensors", "seed-0/metrics.jsonl"):
        assert (outputs / what / name).read_bytes() == (outputs / "sentence/straight" / name).read_bytes(), name


def results_of(output: Path) -> str:
    """The text of results.json, but for the time that training took."""
    content = json.loads((output / "results.json").read_text())
    for seed in content["seeds"]:
        seed.pop("seconds")
    return json.dumps(content)
