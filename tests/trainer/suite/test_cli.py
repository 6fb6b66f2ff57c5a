"""What the command line refuses before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.suite.cli import main


@pytest.mark.parametrize("url", ["s3://bucket/out", "gs://bucket/out", "file:///tmp/out"])
def test_an_output_that_is_a_url_is_refused(
    url: str,
    masked_lm: Callable[[int], Path],
    suite_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    folder = str(masked_lm(0))
    capsys.readouterr()
    assert main([folder, "--suite", str(suite_file), "--only", "order", "--output", url]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"--output: {url} is a URL" in line
    assert list(empty.iterdir()) == []


def test_a_change_for_a_task_needs_a_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["encoder", "--probe", "task.toml", "--set", "rte:training.epochs=2", "--output", str(tmp_path / "out")]
    assert main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--set rte:training.epochs=2: without --suite there is no task rte" in line
