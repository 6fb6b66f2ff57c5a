"""What the command line refuses before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.suite.conftest import subject_lines, write_task
from trainer.checkpoint.run_lock import held
from trainer.suite.cli import main


@pytest.mark.parametrize("url", ["s3://bucket/out", "gs://bucket/out"])
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--set", "task:training.max_length=64"],
            "--set task:training.max_length=64: without --suite there is only the probe's task. Write "
            "--set training.max_length=64.",
        ),
        (["--only", "task"], "--only chooses tasks of a suite. Give --suite, or leave it out."),
    ],
)
def test_a_flag_for_a_suites_tasks_is_refused_without_a_suite(
    words: list[str],
    message: str,
    masked_lm: Callable[[int], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It would change nothing, and nobody would notice."""
    write_task(tmp_path, "task", "sentence", subject_lines)
    output = tmp_path / "out"
    probe = ["--probe", str(tmp_path / "task.toml"), "--output", str(output)]
    assert main([str(masked_lm(0)), *probe, *words]) == 2
    assert capsys.readouterr().err.splitlines() == [f"clozeline: {message}"]
    assert not output.exists()
