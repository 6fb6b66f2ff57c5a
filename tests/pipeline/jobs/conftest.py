"""Counts that tests of jobs read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command


@pytest.fixture(scope="session")
def counts(command: Command, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the counts of the text. Next to it, `first` is an uncased vocabulary of 150 tokens."""
    folder = tmp_path_factory.mktemp("counted") / "counts"
    made = ("--output", folder.parent / "first", "--model", "wordpiece", "--size", 150)
    done = command("vocab", "--text", text, "--counts", folder, *made)
    assert done.returncode == 0, done.stderr
    return folder
