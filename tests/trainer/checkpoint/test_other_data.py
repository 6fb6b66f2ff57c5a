"""A run resumes on the rows that it began with, or not at all."""

import shutil
from pathlib import Path

from tests.damaged_folders import keep_40_rows


def test_a_run_does_not_resume_on_other_rows(training, pairs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(pairs, tmp_path / "pairs")
    run = {"data__pairs": copy, "run__max_steps": 4, "checkpoint__every": 2}
    assert training.warm(1, tmp_path / "run", **run, run__stop_at=2).returncode == 0
    keep_40_rows(copy)
    done = training.warm(1, tmp_path / "run", **run)
    assert done.returncode == 3, done.stderr
    assert "states fingerprint" in done.stderr and "Traceback" not in done.stderr
