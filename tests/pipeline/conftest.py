"""Engines that tests of the pipeline send jobs to."""

from __future__ import annotations

import lzma
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.beam.servers import running_job_service

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def beam_job_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of Beam's portable job service, which tests share."""
    with running_job_service(tmp_path_factory.mktemp("job_service")) as (_, address):
        yield address


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
