"""The commands of the Kubernetes manifests run here: the three Jobs one after the other, then training.

Two launchers stand for the two pods of the TrainJob, with the variables that Kubeflow's controller gives them.
SIGTERM to one of them is what a pod gets that is drained or preempted. Not proven: the API server, scheduling, GPUs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from schemas.manifest import read_manifest
from tests.conftest import Command
from tests.deploy.manifests import Manifest, expand, load
from tests.ports import free_port
from tests.processes import ran, started, wait_for
from tests.trainer.conftest import SHRUNK

PROGRAMS = {
    "clozeline": [sys.executable, "-c", "from clozeline.cli import main; raise SystemExit(main())"],
    "python": [sys.executable],
}
SMALLER = {"--size=30522": "--size=160", "--max_length=128": "--max_length=32", "--config=bert_base": "--config=tiny"}
SECONDS = 300
STEPS = 40


def pod_command(container: Manifest, variables: dict[str, str]) -> list[str]:
    """Return the command of a container as a pod runs it, on smaller data."""
    program, *words = [*container["command"], *expand(container["args"], variables)]
    return [*PROGRAMS[program], *(str(SMALLER.get(word, word)) for word in words)]


def job_container(step: str) -> Manifest:
    (container,) = load(f"kubernetes/base/{step}.yaml")["spec"]["template"]["spec"]["containers"]
    return container


@pytest.fixture(scope="module")
def data(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the three Jobs have filled."""
    folder = tmp_path_factory.mktemp("kubernetes")
    variables = {"CORPUS": str(corpus), "DATA": str(folder), "WORKERS": "1"}
    for step in ("shard", "vocab", "pairs"):
        done = ran(pod_command(job_container(step), variables), timeout=SECONDS)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.thorough
def test_the_jobs_make_pairs_from_a_corpus(data: Path) -> None:
    assert read_manifest(str(data / "pairs"), "pairs").totals["rows"] > 0


@pytest.mark.parametrize("step", ["shard", "vocab", "pairs"])
def test_the_flags_of_a_job_are_accepted(
    step: str, command: Command, corpus: Path, text: Path, vocab: Path, tmp_path: Path
) -> None:
    """And nothing is written: the Jobs themselves run in the thorough test."""
    for folder in (text, vocab):
        if step != "shard" and folder.name != step:
            (tmp_path / folder.name).symlink_to(folder)

    container = job_container(step)
    variables = {"CORPUS": str(corpus), "DATA": str(tmp_path), "WORKERS": "1"}
    program, *words = [*container["command"], *expand(container["args"], variables)]
    done = command(*words, "--dry_run")
    assert program == "clozeline" and done.returncode == 0, done.stderr


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_pod_that_is_ended_lets_all_save_and_new_pods_resume(data: Path) -> None:
    trainer = load("kubernetes/base/train.yaml")["spec"]["trainer"]
    with running_pods(trainer, data) as pods:
        wait_for((data / "run/metrics.jsonl").exists, "no step", *pods, seconds=SECONDS)
        pods[1].send_signal(signal.SIGTERM)
        told = [pod.communicate(timeout=SECONDS)[0] for pod in pods]

    # Not 0, so Kubernetes starts both pods again.
    assert [pod.returncode for pod in pods] == [75, 75], told
    assert "asked to stop" in "".join(told)
    assert list((data / "run/checkpoints").iterdir())

    with running_pods(trainer, data) as pods:
        told = [pod.communicate(timeout=SECONDS)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], told
    lines = [json.loads(line) for line in (data / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, STEPS + 1))


@contextlib.contextmanager
def running_pods(trainer: Manifest, data: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Run the command of the TrainJob once for each node, with one rank in each. Nothing outlives the block."""
    pods = start_pods(trainer, data)
    try:
        yield pods
    finally:
        for pod in pods:
            end(pod)


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process and all that it has started."""
    if process.poll() is None:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()


def start_pods(trainer: Manifest, data: Path) -> list[subprocess.Popen[str]]:
    port = str(free_port())
    changes = SHRUNK | {"run.max_steps": STEPS, "checkpoint.every": STEPS}
    smaller = [f"--set={name}={value}" for name, value in changes.items()]
    given = {one["name"]: one["value"] for one in trainer["env"] if "value" in one}
    pods = []
    for node in range(trainer["numNodes"]):
        by_controller = {
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": "1",
            "PET_NODE_RANK": str(node),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": port,
        }
        command = [*pod_command(trainer, {"DATA": str(data)}), *smaller]
        pods.append(started(command, env=os.environ | given | by_controller | {"DS_ACCELERATOR": "cpu"}))
    return pods
