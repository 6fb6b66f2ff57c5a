"""A job on an engine whose launcher loses the connection to the job server, or is killed: it never runs twice."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.commit import leases
from schemas.errors import UsageError
from schemas.manifest import read_manifest
from tests.forked import Command
from tests.pipeline.beam.servers import Pool
from tests.processes import SECONDS, wait_for

SHARDS = 400
"""Enough that a job takes some seconds after its first shard."""


class Line:
    """A TCP proxy between the launcher and the job server, which can be cut."""

    def __init__(self, target: int):
        self._target = target
        self._is_cut = False
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("localhost", 0))
        self.address = f"localhost:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_cut = True
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection(("localhost", self._target))
                self._open += [near, far]
                threading.Thread(target=self._pass_on, args=(near, far), daemon=True).start()

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with contextlib.suppress(OSError):
            while True:
                for ready in select.select([near, far], [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        raise OSError
                    other[ready].sendall(data)
        near.close()
        far.close()


@pytest.fixture
def line(beam_job_service: str) -> Iterator[Line]:
    """A line to a running job service of Beam's."""
    made = Line(int(beam_job_service.rpartition(":")[2]))
    yield made
    made.close()


@contextlib.contextmanager
def begun(line: Line, pool: Pool, corpus: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    """`shard` on a job server, once it has begun to write shards."""
    shard = ["shard", "--input", str(corpus), "--output", str(out), f"--num_shards={SHARDS}", "--runner=portable"]
    command = ["python", "-m", "pipeline", *shard, f"--job_endpoint={line.address}", *pool.flags]
    process = Command(command, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: list(out.glob("_unfinished-*/text-*.json")) or process.poll(), "no piece was written")
        yield process
    finally:
        process.kill()
        process.wait()


def leases_in(out: Path) -> list[str]:
    return [path.name for path in out.glob("_lease-*")]


@pytest.mark.thorough
def test_a_job_that_cannot_be_followed_any_more_keeps_the_folder_and_publishes(line, pool, corpus, tmp_path) -> None:
    """On a machine that is busy enough it publishes before the launcher gives up, which then takes it for finished."""
    out = tmp_path / "out"
    with begun(line, pool, corpus, out) as process:
        line.cut()
        _, shown = process.communicate(timeout=SECONDS)
    assert "Trying again" not in shown and "Traceback" not in shown
    if process.returncode != 0:
        last = shown.strip().rpartition("\n")[2]
        assert process.returncode == 1 and "cannot be followed" in last and "may still run" in last, shown
        assert "Look at it and cancel it by this id" in last

    wait_for(lambda: (out / "manifest.json").exists() and not leases_in(out), "the job does not publish")
    assert read_manifest(str(out), "text").num_shards == SHARDS
    assert not [path.name for path in out.iterdir() if path.name.startswith("_")]


def test_a_job_whose_launcher_is_killed_keeps_the_folder_and_publishes(line, pool, corpus, tmp_path) -> None:
    out = tmp_path / "out"
    with begun(line, pool, corpus, out) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with pytest.raises(UsageError, match="may still run on its engine"), leases.held(str(out), "next"):
            pass

    wait_for(lambda: (out / "manifest.json").exists() and not leases_in(out), "the job does not publish")
    assert read_manifest(str(out), "text").num_shards == SHARDS
    assert not [path.name for path in out.iterdir() if path.name.startswith("_")]
