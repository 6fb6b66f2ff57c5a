"""Folders of the small job, whose manifests have parts of two shards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.commit import parts as manifest_parts
from schemas import manifest as manifests
from tests.pipeline.commit.small_job import PART


@pytest.fixture
def store_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield an output folder in a store without renames, which is empty again after the test.

    It looks at all its files for each listing, so that those of some hundred tests would take most of their time.
    """
    monkeypatch.setattr(manifest_parts, "PART_ENTRIES", PART)
    monkeypatch.setattr(manifests, "PART_ENTRIES", PART)
    yield f"memory://small_job/{uuid.uuid4().hex}/out"
    MemoryFileSystem.store.clear()


@pytest.fixture(params=["disk", "store"])
def out(request: pytest.FixtureRequest, store_out: str, tmp_path: Path) -> str:
    """Return an output folder on each kind of place."""
    return store_out if request.param == "store" else str(tmp_path / "out")
