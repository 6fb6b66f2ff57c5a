"""The SkyPilot task is one that SkyPilot accepts, and its run script trains, loses its machines and resumes.

SkyPilot itself brings 90 packages and 460 MB, so only a thorough test installs it; otherwise its schema is used
(schemas/skypilot.json). Not proven: renting machines, and the task's setup script.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import DEPLOY, REPOSITORY, validator
from tests.deploy.test_kubernetes_commands import end
from tests.object_store import ObjectStore
from tests.ports import free_port
from tests.processes import ran, started, wait_for
from tests.trainer.conftest import SHRUNK

TASK = DEPLOY / "skypilot/train.yaml"
VERSION = "0.14.1"
SECONDS = 300
STEPS = 40


def task() -> dict[str, Any]:
    return yaml.safe_load(TASK.read_text())


def test_the_task_is_valid() -> None:
    validator("skypilot").validate(task())


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_machines_that_are_taken_away_are_replaced_by_some_that_resume(
    store: ObjectStore, pairs: Path, tmp_path: Path
) -> None:
    """SIGKILL to everything is the loss of the machines: nothing but the bucket is left."""
    bucket = store.bucket("rented")
    for path in pairs.rglob("*"):
        if path.is_file():
            bucket.upload_file(str(path), f"pairs/{path.relative_to(pairs)}")

    with rented(tmp_path / "first", store) as machines:
        wait_for_checkpoint(bucket, machines[0])

    with rented(tmp_path / "second", store) as machines:
        told = [machine.communicate(timeout=SECONDS)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0] * len(machines), told
    assert "Resuming from" in told[0]
    body = bucket.Object("run/metrics.jsonl").get()["Body"].read().decode()
    lines = [json.loads(line) for line in body.splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, STEPS + 1))


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_skypilots_own_parser_agrees(tmp_path: Path) -> None:
    """In an environment with SkyPilot: it accepts the task, and refuses a broken one."""
    venv.create(tmp_path / "environment", with_pip=True)
    python = tmp_path / "environment/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"skypilot=={VERSION}"], check=True, timeout=3000)

    def parse(path: Path) -> subprocess.CompletedProcess[str]:
        code = "import sky, sys; print(sky.Task.from_yaml(sys.argv[1]).num_nodes)"
        variables = os.environ | {"HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
        return ran([python, "-c", code, path], cwd=REPOSITORY, env=variables)

    assert parse(TASK).stdout.split()[-1] == str(task()["num_nodes"])
    broken = tmp_path / "broken.yaml"
    broken.write_text(TASK.read_text().replace("use_spot:", "use_spott:"))
    assert "use_spot" in parse(broken).stderr


@contextlib.contextmanager
def rented(folder: Path, store: ObjectStore) -> Iterator[list[subprocess.Popen[str]]]:
    """Run the task on as many machines as it wants. They are taken away when the block ends."""
    port = str(free_port())
    machines = [start(folder / str(rank), store, rank, port) for rank in range(task()["num_nodes"])]
    try:
        yield machines
    finally:
        for machine in machines:
            end(machine)


def start(home: Path, store: ObjectStore, rank: int, port: str) -> subprocess.Popen[str]:
    """Run the task's script as SkyPilot does: by bash, with the task's variables and those of a machine's place."""
    python = home / "clozeline/bin/python"
    python.parent.mkdir(parents=True)
    changes = SHRUNK | {"run.max_steps": STEPS, "checkpoint.every": 10}
    smaller = " ".join(f"--set {name}={value}" for name, value in changes.items())
    python.write_text(f'#!/bin/bash\nexec {sys.executable} "$@" {smaller}\n')
    python.chmod(0o755)

    machines = task()["num_nodes"]
    place = {
        "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * machines),
        "SKYPILOT_NUM_NODES": str(machines),
        "SKYPILOT_NODE_RANK": str(rank),
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
        "CLOZELINE_NODE": f"machine-{rank}",
    }
    own = {"HOME": str(home), "BUCKET": "s3://rented", "RECIPE": "tiny"}
    assert set(task()["envs"]) <= set(own)
    script = task()["run"].replace("29500", port)
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY), "DS_ACCELERATOR": "cpu"} | store.environment | place | own
    return started(["bash", "-c", script], cwd=home, env=variables)


def wait_for_checkpoint(bucket: Any, machine: subprocess.Popen[str]) -> None:
    """Wait until the bucket has a whole checkpoint."""
    saved = bucket.objects.filter(Prefix="run/checkpoints/")

    def is_whole() -> bool:
        return any(item.key.endswith("/manifest.json") for item in saved)

    wait_for(is_whole, "no checkpoint", machine, seconds=SECONDS)
