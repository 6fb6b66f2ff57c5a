"""CONTRIBUTING.md: its example works in a copy of the repository, command by command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.processes import ran

PAGE = "CONTRIBUTING.md"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a repository with these sources and the tests' own environment, as `make setup` leaves it."""
    folder = tmp_path / "clozeline"
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        if (ROOT / name).is_file():  # neither removed nor the end of the list
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if not path.name.startswith("installed"):
            (folder / ".venv" / path.name).symlink_to(path)
    for name in ("installed", "installed_dev"):
        (folder / ".venv" / name).touch()

    shell(folder, "git init --quiet && git add --all && git commit --quiet --message 'As it is'")
    return folder


def shell(folder: Path, script: str) -> str:
    """Run lines of shell as in an activated environment. Each must succeed. Returns what they print."""
    author = {f"GIT_{role}_{key}": "c@example.com" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    variables = {"PATH": f"{folder / '.venv/bin'}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
    done = ran(["bash", "-euxc", script], timeout=300, cwd=folder, env=os.environ | author | variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_example_can_be_applied(clone: Path) -> None:
    [change] = blocks(PAGE, "diff")
    (clone / "change.diff").write_text(change)
    shell(clone, "git apply --check change.diff")


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_example_works(clone: Path) -> None:
    single_tests, looking, checks = blocks(PAGE, "sh")
    [change] = blocks(PAGE, "diff")
    shell(clone, single_tests.replace("source .venv/bin/activate\n", ""))
    shell(clone, looking)

    # The test without the change fails, as the page asks of tests.
    (clone / "change.diff").write_text(change)
    shell(clone, "git apply --include='tests/*' change.diff")
    shell(clone, "! python -m pytest -q tests/trainer/config/test_load.py -k five_checkpoints")

    shell(clone, "git apply --exclude='tests/*' change.diff")
    told = shell(clone, checks)
    for name in ("docs/recipes.md", "tests/trainer/config/test_load.py", "trainer/config/schema.py"):
        assert name in told
    assert shell(clone, "git status --short").split() == ["??", "change.diff"]
