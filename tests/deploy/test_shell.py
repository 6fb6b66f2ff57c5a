"""Shell of deploy/ is clean by shellcheck: script files, and scripts inside of the SkyPilot task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests import DEPLOY
from tests.processes import ran

SCRIPTS = sorted(path for path in DEPLOY.rglob("*") if path.suffix in (".sh", ".sbatch"))
TASK = yaml.safe_load((DEPLOY / "skypilot/train.yaml").read_text())


IGNORED = "SC1091,SC2329"
"""A file that is not here is not followed, and functions are called by a name in a variable."""


def shellcheck(text: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "shellcheck"
    return ran([program, "--shell=bash", "--severity=style", f"--exclude={IGNORED}", "-"], input=text)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(DEPLOY).as_posix())
def test_a_script_is_clean(path: Path) -> None:
    done = shellcheck(path.read_text())
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("part", ["setup", "run"])
def test_a_script_of_the_skypilot_task_is_clean(part: str) -> None:
    done = shellcheck(TASK[part])
    assert done.returncode == 0, done.stdout


def test_users_are_told_what_to_change() -> None:
    """In three places, so that nothing else has to be read first."""
    for folder in ("slurm", "two_machines"):
        for script in (path for path in SCRIPTS if path.parent.name == folder):
            assert script.read_text().count("\n# change:") == 3, script
