"""Two hosts that share nothing but a bucket train, lose one of them, and equal a run on one disk."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.hosts import STORE_ADDRESS, Host, make_switch, plug_in, why_not
from tests.deploy.test_two_machines import ROOT, script, start
from tests.object_store import KEYS
from tests.trainer.conftest import Training

STORE = KEYS | {"AWS_ENDPOINT_URL": f"http://{STORE_ADDRESS}:5000"}
RUN = "s3://clozeline/run"
STEPS = 80
SETTINGS: dict[str, object] = {
    # Large enough for checkpoints to take a moment.
    "model.hidden_size": 256,
    "model.intermediate_size": 512,
    "model.hidden_dropout_prob": 0.0,  # dropout is drawn by rank
    "model.attention_probs_dropout_prob": 0.0,
    "engine.zero_stage": 2,
    "checkpoint.every": 10,
    "run.max_steps": STEPS,
}

WAIT = """
import sys, time
from schemas import storage
end = time.monotonic() + 300
while not storage.exists(sys.argv[1]):
    assert time.monotonic() < end, sys.argv[1]
    time.sleep(0.1)
"""
FILL = """
import socket, sys, time, fsspec
end = time.monotonic() + 60
while socket.socket().connect_ex((sys.argv[2], 5000)) != 0:
    assert time.monotonic() < end, "the server does not answer"
    time.sleep(0.1)
bucket = fsspec.filesystem("s3")
bucket.mkdir("clozeline")
bucket.put(sys.argv[1], "clozeline/pairs", recursive=True)
"""
STEPS_AT_URL = "import sys; from trainer.checkpoint.format import steps_saved; print(steps_saved(sys.argv[1]))"
BRING = """
import sys
from trainer.checkpoint.remote import bring_checkpoint, bring_other_files
url, folder, step = sys.argv[1:]
assert bring_checkpoint(url, folder, int(step)) is None
bring_other_files(url, folder)
"""


class Place:
    """A switch with an S3 server, and hosts at it, each with a disk in memory that is lost with the host."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.disk = folder / "disk"
        self.disk.mkdir()
        self._all: list[Host] = []
        self.store = self._made("store")
        make_switch(self.store)
        # Its log goes to a file: nobody reads the pipe, and a server whose pipe is full stops to answer.
        server = f"exec {sys.executable} -m moto.server -H 0.0.0.0 -p 5000 > {folder}/server.log 2>&1"
        self.store.start("sh", "-c", server)

    def add(self, name: str) -> Host:
        """A new host with an empty disk."""
        host = self._made(name)
        host.run("mount", "-t", "tmpfs", "none", self.disk)
        plug_in(host, self.store)
        return host

    def python(self, code: str, *arguments: object) -> str:
        """Run code on the store's host, which has no disk that the others see."""
        done = self.store.start(sys.executable, "-c", code, *arguments, PYTHONPATH=ROOT, **STORE)
        told, _ = done.communicate()
        assert done.returncode == 0, told
        return told

    def _made(self, name: str) -> Host:
        host = Host(name, self._folder)
        self._all.append(host)
        return host

    def close(self) -> None:
        for host in self._all:
            host.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_a_bucket_is_all_that_two_hosts_share(
    place: Place, training: Training, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts, then the second alone after the first is lost, then two again: as many ranks on one disk do the same.

    The first has rank 0, which publishes. Losses are equal to the bit, so the other run has as many ranks at each step.
    """
    hosts = [place.add("machine-1"), place.add("machine-2")]
    place.python(FILL, pairs, STORE_ADDRESS)

    own: dict[str, object] = {"run.local": place.disk / "local", "data.cache": place.disk / "cache"}
    torchrun = script("torchrun.sh", tmp_path / "torchrun", pairs, SETTINGS | own)
    at_bucket = ("--set", "data.pairs=s3://clozeline/pairs", "--set", f"run.output={RUN}")

    _, second = [start(host, torchrun, at, *at_bucket, RANKS=2, **STORE) for at, host in enumerate(hosts)]
    wait_until_saved(place, second)
    hosts[0].kill()
    told = output(second, 1)
    assert "The same command resumes from the last checkpoint" in told and "Traceback" not in told, told
    lost_after = newest(place)
    assert 10 <= lost_after < STEPS - 20

    stop = ("--set", f"run.stop_at={lost_after + 10}")
    told = output(start(hosts[1], torchrun, 0, *at_bucket, *stop, MACHINES=1, RANKS=2, **STORE), 0)
    assert f"step {lost_after}, row" in told, told

    hosts[0] = place.add("machine-1")
    again = [start(host, torchrun, at, *at_bucket, RANKS=2, **STORE) for at, host in enumerate(hosts)]
    told = output(again[0], 0)
    output(again[1], 0)
    assert f"Brought step {lost_after + 10} of {RUN}" in told, told

    end = tmp_path / "end"
    place.python(BRING, RUN, end, STEPS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    same: dict[str, Any] = {name.replace(".", "__"): value for name, value in SETTINGS.items()}
    for ranks, stop_at in ((4, lost_after), (2, lost_after + 10), (4, STEPS)):
        done = training.warm(ranks, tmp_path / "one disk", config="tiny", **same, run__stop_at=stop_at)
        assert done.returncode == 0, done.stderr
    assert Training.losses(end) == Training.losses(tmp_path / "one disk")
    assert Training.tensors(end, STEPS) == Training.tensors(tmp_path / "one disk", STEPS)


def wait_until_saved(place: Place, training: subprocess.Popen[str]) -> None:
    """Wait for the first checkpoint in the bucket, or fail with what a training that has ended printed."""
    wait = place.store.start(
        sys.executable, "-c", WAIT, f"{RUN}/checkpoints/step-00000010/manifest.json", PYTHONPATH=ROOT, **STORE
    )
    while wait.poll() is None:
        assert training.poll() is None, training.communicate()[0]
        time.sleep(0.05)
    assert wait.returncode == 0, wait.communicate()[0]


def newest(place: Place) -> int:
    """Return the step of the newest checkpoint in the bucket."""
    return int(place.python(STEPS_AT_URL, RUN).strip().strip("[]").split(",")[-1])


def output(process: subprocess.Popen[str], code: int) -> str:
    """Wait for a process and return what it printed."""
    told, _ = process.communicate(timeout=600)
    assert process.returncode == code, told
    return told
