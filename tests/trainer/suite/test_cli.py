"""What the command line refuses before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.checkpoint.run_lock import held
from trainer.suite.cli import main


def test_an_output_that_is_a_url_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["folder", "--suite", "glue", "--output", "s3://bucket/out"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--output: s3://bucket/out is a URL" in line
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_named_with_its_flag(
    masked_lm: Callable[[int], Path], suite_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    words = [str(masked_lm(0)), "--suite", str(suite_file), "--only", "order", "--output", str(output)]
    with held(output):
        assert main(words) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("clozeline: ")]
    assert "is in use by a live run" in line
    assert line.endswith("choose another --output.")


def test_a_command_line_without_suite_and_probe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["folder", "--output", "out"]) == 2
    assert capsys.readouterr().err == "clozeline: neither --suite nor --probe is given. Give one of them, or both.\n"


def test_only_is_refused_without_a_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    assert main(["folder", "--probe", "task.toml", "--output", str(output), "--only", "task"]) == 2
    message = "clozeline: --only chooses tasks of a suite. Give --suite, or leave it out.\n"
    assert capsys.readouterr().err == message
    assert not output.exists()
