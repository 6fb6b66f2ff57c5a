"""Servers that tests send jobs to: Beam's job service, and pools, which engines start workers from."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port
from tests.processes import wait_for

REPOSITORY = Path(__file__).resolve().parents[3]


def started(arguments: list[str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a Python program in a new session, so that no signal to a test or a launcher reaches it."""
    with log.open("w") as file:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


@contextlib.contextmanager
def running_job_service(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start Beam's portable job service, and yield it and its address."""
    port_file, log = folder / "port", folder / "log"
    module = "apache_beam.runners.portability.local_job_service_main"
    files = ["--port_file", str(port_file), "--staging_dir", str(folder / "staging")]
    process = started(["-m", module, *files], folder, log)
    try:
        wait_for(lambda: process.poll() is not None or port_file.exists(), "no job service")
        assert process.poll() is None, log.read_text()
        yield process, f"localhost:{port_file.read_text()}"
    finally:
        process.kill()  # when it is asked to stop, it waits for its jobs, also for one that will never end
        process.wait()


@contextlib.contextmanager
def running_server(command: list[str], folder: Path, variables: dict[str, str], port: int) -> Iterator[None]:
    """Run a program in a folder until the block ends, which starts once its port answers. Errors get its log."""
    log_path = folder.parent / f"{folder.name}.log"
    with log_path.open("w") as log:
        server = subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT)

    def answers() -> bool:
        assert server.poll() is None, "the server has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    try:
        wait_for(answers, "the server does not answer")
        yield
    except BaseException as error:
        error.add_note(f"The server said:\n{log_path.read_text()}")
        raise
    finally:
        server.kill()
        server.wait()


@dataclass(frozen=True)
class Pool:
    """A running pool. folder: its current folder, which has nothing in it."""

    process: subprocess.Popen[bytes]
    address: str
    folder: Path
    log: Path

    @property
    def flags(self) -> list[str]:
        """The flags that have a job use this pool."""
        return ["--environment_type=EXTERNAL", f"--environment_config={self.address}"]


@contextlib.contextmanager
def running_pool(folder: Path) -> Iterator[Pool]:
    """Start a pool, which outlives any launcher, and stop it at the end of the block."""
    port = free_port()
    log, empty = folder / "log", folder / "empty"
    empty.mkdir(parents=True)
    process = started(["-m", "pipeline.beam.workers", "--pool", "--port", str(port)], empty, log)
    try:
        wait_for(lambda: process.poll() is not None or "workers wait at" in log.read_text(), "no pool")
        assert process.poll() is None, log.read_text()
        yield Pool(process, f"localhost:{port}", empty, log)
    finally:
        process.terminate()
        process.wait()
