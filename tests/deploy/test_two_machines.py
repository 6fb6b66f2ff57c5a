"""The recipe of deploy/two_machines on two hosts in network namespaces: see hosts.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.changes import DEPLOY, adapted
from tests.deploy.hosts import ADDRESSES, Host, connect, why_not
from tests.processes import ran, wait_for
from tests.trainer.conftest import SHRUNK, Training

ROOT = Path(__file__).resolve().parents[2]
STEPS = 120
LAUNCHERS = ("torchrun.sh", "deepspeed.sh")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    made = [Host(name, tmp_path) for name in ADDRESSES]
    try:
        connect(made[0], made[1])
        yield made[0], made[1]
    finally:
        for host in made:
            host.close()


def script(name: str, folder: Path, pairs: Path, changed: dict[str, object] | None = None) -> Path:
    """A launcher's script for hosts without GPUs and a short run in `folder`."""
    folder.mkdir(exist_ok=True)
    settings = SHRUNK | {"data.pairs": pairs, "run.output": folder / "run"}
    settings |= {"run.max_steps": STEPS, "checkpoint.every": 20, "engine.timeout_seconds": 60}
    settings |= changed or {}
    flags = " ".join(f"--set {key}={value}" for key, value in settings.items())
    changes = {
        "first=10.0.0.1": f"first={ADDRESSES['machine-1']}",
        "source /shared/clozeline/.venv/bin/activate": f"source {sys.prefix}/bin/activate",
        "recipe=(--config bert_base --set data.pairs=/shared/pairs --set run.output=/shared/run)": (
            f"recipe=(--config tiny {flags})"
        ),
    }
    return adapted(f"two_machines/{name}", folder, changes)


def start(host: Host, *command: object, **environment: object) -> subprocess.Popen[str]:
    return host.start("bash", *command, PYTHONPATH=ROOT, OMP_NUM_THREADS=1, **environment)


@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_after_the_loss_of_a_machine_the_other_ends_as_an_unbroken_run(hosts, pairs: Path, tmp_path: Path) -> None:
    """The first machine is lost, which has rank 0 and the ranks' meeting point. The unbroken run is DeepSpeed's."""
    deepspeed = script("deepspeed.sh", tmp_path / "unbroken", pairs)
    hostfile = {"machine-1 slots=8": "machine-1 slots=1", "machine-2 slots=8": "machine-2 slots=1"}
    adapted("two_machines/hostfile", deepspeed.parent, hostfile)
    for process in [start(host, deepspeed, place) for place, host in enumerate(hosts)]:
        told, _ = process.communicate()
        assert process.returncode == 0, told

    torchrun = script("torchrun.sh", tmp_path / "broken", pairs)
    run = torchrun.parent / "run"
    first, second = [start(host, torchrun, place, RANKS=1) for place, host in enumerate(hosts)]
    saved = run / "checkpoints/step-00000020/manifest.json"
    wait_for(saved.exists, "no checkpoint", first, second, seconds=600)
    hosts[0].kill()
    told, _ = second.communicate(timeout=300)
    assert second.returncode == 1 and "Traceback" not in told, told
    assert "clozeline: " in told and "The same command resumes from the last checkpoint" in told
    assert not (run / f"checkpoints/step-{STEPS:08d}").exists(), "it was lost on the way"

    # As many ranks as before, so that not even sums are rounded in another way.
    alone = start(hosts[1], torchrun, 0, MACHINES=1, RANKS=2)
    told, _ = alone.communicate()
    assert alone.returncode == 0 and "Resuming from" in told, told
    assert Training.losses(run) == Training.losses(tmp_path / "unbroken/run")
    assert Training.tensors(run, STEPS) == Training.tensors(tmp_path / "unbroken/run", STEPS)


@pytest.mark.parametrize(("name", "message"), [("torchrun.sh", "Say which machine this is"), ("deepspeed.sh", "ssh")])
def test_a_start_without_its_place_says_what_is_missing(name: str, message: str, pairs: Path, tmp_path: Path) -> None:
    """DeepSpeed's launcher looks for the machines of the hostfile by ssh, which cannot reach them."""
    made = script(name, tmp_path, pairs)
    adapted("two_machines/hostfile", tmp_path, {})
    done = ran(["bash", made], env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode != 0 and message in done.stderr, done.stderr


@pytest.mark.parametrize(("name", "machine"), [("torchrun.sh", ["0"]), ("deepspeed.sh", [])])
def test_a_script_that_nobody_has_changed_says_so(name: str, machine: list[str]) -> None:
    done = ran(["bash", DEPLOY / "two_machines" / name, *machine])
    assert done.returncode == 2 and 'change the lines below each "change:"' in done.stderr, done.stderr
