"""Copies of finished folders, which tests damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def copy(pairs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pairs, tmp_path / "pairs")


@pytest.fixture
def text_copy(text: Path, tmp_path: Path) -> Path:
    return shutil.copytree(text, tmp_path / "text")
