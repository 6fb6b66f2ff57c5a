"""A build of DeepSpeed's kernels that was killed: its lock is removed, or named within engine.timeout_seconds."""

from __future__ import annotations

import fcntl
import os
import time
from importlib import import_module
from pathlib import Path

import pytest

from schemas.errors import StorageError, UsageError
from trainer.distributed import kernels


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build folder of its own, in which nothing is built."""
    backend = import_module("deepspeed.comm.torch")
    monkeypatch.setattr(kernels, "_build_folder", lambda: tmp_path)
    monkeypatch.setattr(backend, "build_shm_op", lambda: (tmp_path / "built").write_text(""))
    (tmp_path / "lock").write_text("")
    return tmp_path


def test_environments_build_in_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder, two environments that are used in turn would compile at every start."""
    folders = []
    for place in ("/one/deepspeed/__init__.py", "/two/deepspeed/__init__.py", "/one/deepspeed/__init__.py"):
        monkeypatch.setattr("deepspeed.__file__", place)
        monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
        kernels._use_own_build_folder()
        folders.append(os.environ["TORCH_EXTENSIONS_DIR"])
    assert folders[0] == folders[2] != folders[1]


def test_a_chosen_build_folder_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    kernels._use_own_build_folder()
    assert os.environ["TORCH_EXTENSIONS_DIR"] == str(tmp_path)


def test_a_lock_that_is_old_is_removed(folder: Path, capsys) -> None:
    then = time.time() - kernels.STALE_LOCK_SECONDS - 60
    os.utime(folder / "lock", (then, then))
    kernels.load_communication_kernels(timeout=5)
    assert (folder / "built").exists() and not (folder / "lock").exists()
    assert f"Removing {folder / 'lock'}, which a process that was killed left" in capsys.readouterr().out


def test_a_lock_of_our_own_killed_build_is_removed_at_once(folder: Path, capsys) -> None:
    (folder / kernels.OWN_LOCK).write_text("building: process 1\n")
    kernels.load_communication_kernels(timeout=5)
    assert (folder / "built").exists()
    assert "Building DeepSpeed's CPU communication kernels in" in capsys.readouterr().out
    assert (folder / kernels.OWN_LOCK).read_text() == ""


def test_a_lock_of_another_program_ends_the_start(folder: Path) -> None:
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"/lock says that another program builds there"):
        kernels.load_communication_kernels(timeout=1)
    assert time.monotonic() - started < 30
    assert (folder / "lock").exists() and not (folder / "built").exists()


def test_a_wait_behind_another_build_is_announced(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(kernels, "ANNOUNCED", 0.2)
    with (folder / kernels.OWN_LOCK).open("w") as other:
        other.write("building: process 4711\n")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="Another process has been building kernels"):
            kernels.load_communication_kernels(timeout=1)
    line = f"Waiting for process 4711, which builds DeepSpeed's kernels in {folder}.\n"
    assert capsys.readouterr().out == line


def test_a_slow_rebuild_is_announced(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (folder / "lock").unlink()
    (folder / "kernels.so").write_text("of another version")
    backend = import_module("deepspeed.comm.torch")
    monkeypatch.setattr(backend, "build_shm_op", lambda: time.sleep(1))
    monkeypatch.setattr(kernels, "ANNOUNCED", 0.1)
    kernels.load_communication_kernels(timeout=5)
    line = f"Building DeepSpeed's CPU communication kernels in {folder} again, which takes up to a few minutes.\n"
    assert capsys.readouterr().out == line


BUILDS = {
    "no-compiler": (
        "Error building extension 'x': [1/3] c++ -c shm.cpp\n/bin/sh: c++: not found",
        "c++: not",
    ),
    "no-headers": (
        "Error building extension 'x'\nshm.cpp:1: fatal error: Python.h: No such file\n",
        "Python.h: No such",
    ),
    "no-ninja": ("Ninja is required to load C++ extensions", "Ninja is required"),
}


@pytest.mark.parametrize("name", BUILDS)
def test_a_build_that_fails_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    output, reason = BUILDS[name]

    def fail() -> None:
        raise RuntimeError(output)

    (folder / "lock").unlink()
    monkeypatch.setattr(import_module("deepspeed.comm.torch"), "build_shm_op", fail)
    with pytest.raises(UsageError, match=r"Install a C\+\+ compiler \(g\+\+\), ninja and Python's headers") as caught:
        kernels.load_communication_kernels(timeout=5)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_the_build_folder_is_torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert kernels._build_folder() == tmp_path / "deepspeed_shm_comm"
