"""Engines that tests of the pipeline send jobs to."""

from __future__ import annotations

import lzma
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def beam_job_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Beam's portable job service, in a process of its own."""
    folder = tmp_path_factory.mktemp("job_service")
    port_file = folder / "port"
    module = "apache_beam.runners.portability.local_job_service_main"
    arguments = [sys.executable, "-m", module, "--port_file", port_file, "--staging_dir", folder / "staging"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(list(map(str, arguments)), stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        while not port_file.exists():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield f"localhost:{port_file.read_text()}"
    finally:
        process.kill()  # when it is asked to stop, it waits for its jobs, also for one that will never end
        process.wait()


@pytest.fixture(scope="session")
def prism(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a Prism binary: $CLOZELINE_PRISM, or unpacked from next to the repository."""
    given = os.environ.get("CLOZELINE_PRISM")
    if given:
        return given

    packed = REPOSITORY.parent / "shared" / "engines" / "prism.xz"
    if not packed.exists():
        pytest.skip(f"no Prism: $CLOZELINE_PRISM is not set and {packed} does not exist")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip(f"{packed} is for Linux on x86-64, this is {platform.system()} on {platform.machine()}")

    binary = tmp_path_factory.mktemp("prism") / "prism"
    with lzma.open(packed) as source, binary.open("wb") as target:
        shutil.copyfileobj(source, target)
    binary.chmod(0o755)
    return str(binary)
