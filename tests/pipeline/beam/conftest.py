"""A pool of workers that jobs on an engine can use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pipeline.beam.waiting import answers, wait_for
from tests.ports import free_port


@dataclass(frozen=True)
class Pool:
    """A pool in a folder that has nothing else; its workers outlive any launcher. flags: those that choose it."""

    folder: Path
    flags: list[str]


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A running pool."""
    port = free_port()
    folder = tmp_path_factory.mktemp("pool")
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.beam.workers", "--pool", "--port", str(port)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(lambda: answers(port), "the pool does not listen")
    yield Pool(folder, ["--environment_type=EXTERNAL", f"--environment_config=localhost:{port}"])
    process.terminate()
    process.wait()
