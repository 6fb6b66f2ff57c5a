"""Commands without streams, with small limits, on a read-only disk: one line says what is wrong, or they work."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from clozeline.installation import run_explained
from trainer import doctor


def clozeline(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clozeline", *map(str, words)]
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        command, **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120} | options)
    )
    assert "Traceback" not in (done.stderr or ""), done.stderr
    return done


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("The river is long.\n\nIt rains.\n")
    return tmp_path / "a.txt"


def test_closed_streams(corpus: Path, tmp_path: Path) -> None:
    """Workers inherit what stands in for them."""

    def close() -> None:
        for number in (0, 1, 2):
            os.close(number)

    flags = ("--input", corpus, "--output", tmp_path / "text", "--direct_num_workers", 2)
    done = clozeline("shard", *flags, stderr=None, preexec_fn=close)
    assert done.returncode == 0 and (tmp_path / "text" / "manifest.json").exists()


def test_a_limit_of_memory_is_named(corpus: Path, tmp_path: Path) -> None:
    limit = 400 << 20
    flags = ("--input", corpus, "--output", tmp_path / "text")
    done = clozeline("shard", *flags, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert done.returncode == 1 and "no more memory (ulimit -v" in done.stderr and done.stderr.count("\n") == 1


def test_python_without_docstrings(corpus: Path) -> None:
    done = clozeline("inspect", corpus, env=os.environ | {"PYTHONOPTIMIZE": "2"})
    assert done.returncode == 2 and "PYTHONOPTIMIZE" in done.stderr


def test_warnings_that_a_user_turns_into_errors_end_no_command() -> None:
    """torch warns while DeepSpeed imports it."""

    def warn() -> int:
        warnings.warn("torch.jit is deprecated", DeprecationWarning, stacklevel=1)
        return 0

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("error")  # as PYTHONWARNINGS=error does
        assert run_explained(warn, "") == 0
    assert [str(one.message) for one in told] == ["torch.jit is deprecated"]


def test_without_a_temporary_folder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As in a container that is read-only."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/none"])
    assert run_explained(lambda: len(tempfile.mkdtemp()), "") == 5
    told = "No usable temporary directory found in ['/proc/none']"
    assert capsys.readouterr().err == f"clozeline: {told}. Set TMPDIR to a folder that can be written.\n"

    assert doctor.main([]) == 5
    said = capsys.readouterr().out
    assert f"failed   TMPDIR          {told}\n" in said and "-> Set TMPDIR to a folder that can be written." in said
    assert said.endswith("Training cannot start here.\n")


def test_a_link_to_itself_is_named(command, corpus: Path) -> None:
    (corpus.parent / "loop").symlink_to("loop")
    done = command("inspect", corpus.parent)
    assert done.returncode == 3 and f"{corpus.parent}/loop, a link to nothing or itself" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_finished_folder_that_cannot_be_written_is_finished(command, corpus: Path, tmp_path: Path) -> None:
    flags = ("shard", "--input", corpus, "--output", tmp_path / "text")
    assert command(*flags).returncode == 0
    words = [sys.executable, "-m", "clozeline", *map(str, flags)]
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, tmp_path / "text", *words], capture_output=True, text=True, timeout=120
    )
    if "mount" in done.stderr:
        pytest.skip("mounts are not allowed here")
    assert done.returncode == 0 and "already finished by this command" in done.stdout + done.stderr, done.stderr
