"""A real Flink cluster on this machine, and the pool of workers for it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pipeline.beam.conftest import pool
from tests.pipeline.beam.servers import Pool
from tests.ports import free_port

__all__ = ["engines", "flink", "own_flink", "pool"]

REPOSITORY = Path(__file__).resolve().parents[3]
ENGINES = Path(os.environ.get("CLOZELINE_ENGINES", REPOSITORY.parent / "shared" / "engines"))
JARS = ("flink-1.16.0-slim.jar", "beam-flink-job-server-2.56.0-slim.jar")
START_SECONDS = 100
SHOWN_LINES = 15


@dataclass(frozen=True)
class Flink:
    """A cluster of two TaskManagers with two slots each, and the flags that send a job to it."""

    folder: Path
    flags: list[str]

    def kill_task_manager(self, number: int) -> None:
        """SIGKILL to a TaskManager, 1 or 2."""
        os.kill(int((self.folder / f"taskmanager-{number}.pid").read_text()), signal.SIGKILL)


@pytest.fixture(scope="session")
def engines() -> Path:
    """The folder with Flink's jars and the script that starts a cluster; skips where something is missing."""
    missing = [str(ENGINES / name) for name in (*JARS, "flink.sh") if not (ENGINES / name).exists()]
    if missing:
        pytest.skip(f"no Flink: {missing[0]} does not exist (set CLOZELINE_ENGINES to the folder with the jars)")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        pytest.skip("no Flink: there is no Java runtime (Debian: apt-get install openjdk-17-jre-headless)")
    return ENGINES


@pytest.fixture(scope="session")
def flink(engines: Path, pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """The cluster that tests share, with workers from the pool. TaskManager 1 may be gone, 2 is there."""
    with running_flink(engines, tmp_path_factory.mktemp("flink"), pool) as cluster:
        yield cluster


@pytest.fixture
def own_flink(engines: Path, pool: Pool, tmp_path: Path) -> Iterator[Flink]:
    """A cluster for one test."""
    with running_flink(engines, tmp_path / "flink", pool) as cluster:
        yield cluster


@contextlib.contextmanager
def running_flink(engines: Path, folder: Path, pool: Pool) -> Iterator[Flink]:
    """Start a cluster, with workers from a pool, and stop it at the end of the block."""
    with started_flink(engines / "flink.sh", folder, {"RESTARTS": "10"}) as job_port:
        yield Flink(folder, ["--runner=flink", f"--job_endpoint=localhost:{job_port}", "--parallelism=2", *pool.flags])


@contextlib.contextmanager
def started_flink(script: Path, folder: Path, variables: dict[str, str]) -> Iterator[int]:
    """Start a cluster in a folder, yield the port of its job server, and stop it at the end of the block.

    variables: further ones of the script's environment.
    """
    # The script takes two ports, and uses the one after each as well.
    rest_port = free_port(4)
    job_port = rest_port + 2
    try:
        started = subprocess.run(
            ["bash", str(script), "start", str(folder), str(rest_port), str(job_port)],
            env=os.environ | variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=START_SECONDS,
        )
        assert started.returncode == 0, started.stderr + ends_of_logs(folder / "log")
        yield job_port
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["bash", str(script), "stop", str(folder)], check=False, timeout=30)


def ends_of_logs(folder: Path) -> str:
    """Return the last lines of all logs in a folder, which is gone when somebody reads the test's failure."""
    ends = []
    for log in sorted(folder.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        ends.append("\n".join([f"--- {log.name}", *lines[-SHOWN_LINES:]]))
    return "\n".join(ends)
