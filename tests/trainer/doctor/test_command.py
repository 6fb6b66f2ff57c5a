"""`clozeline doctor` as a process: on machines that lack something, with its exit code, and leaving nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.doctor.command import main

ROOT = Path.cwd()
TINY = ["--config", "tiny", "--set", "data.pairs=/none"]


def linked_environment(folder: Path, *without: str) -> Path:
    """A fresh environment with links to the packages of this one, except those whose names begin with `without`."""
    venv.create(folder, with_pip=False)
    (site_packages,) = folder.glob("lib/python3*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        is_left_out = path.name.startswith(without) or path.suffix == ".pth" or path.name.startswith("__editable__")
        if not is_left_out and not (site_packages / path.name).exists():
            (site_packages / path.name).symlink_to(path)
    return folder / "bin/python"


def doctor(python: Path | str, *flags: object, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name not in ("CXX", "TORCH_EXTENSIONS_DIR")}
    done = subprocess.run(
        [str(python), "-m", "trainer.doctor", *map(str, flags)],
        env=variables | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done


def by_name(answer: dict) -> dict[str, dict]:
    return {finding["name"]: finding for finding in answer["findings"]}


def test_without_beam_and_without_a_compiler(tmp_path: Path) -> None:
    """No machine that trains needs either."""
    python = linked_environment(tmp_path / "environment", "apache_beam")
    home = tmp_path / "home"
    work = tmp_path / "work"
    no_programs = tmp_path / "no_programs"
    for folder in (home, work, no_programs):
        folder.mkdir()

    places = {"HOME": str(home), "TMPDIR": str(home), "PATH": str(no_programs), "DS_ACCELERATOR": "cpu"}
    done = doctor(python, "--json", "--folder", work, *TINY, **places)
    answer = json.loads(done.stdout)
    found = by_name(answer)

    assert done.returncode == answer["exit_code"] == 0 and answer["ready"]
    assert found["apache-beam"]["state"] == "note" and "clozeline[pipeline]" in found["apache-beam"]["advice"]
    assert [name for name, finding in found.items() if finding["state"] == "failed"] == []

    assert found["torch"]["state"] == "ok" and found["precision"]["facts"]["works"][:2] == ["fp32", "bf16"]
    assert found["speed"]["facts"]["tokens_per_second"] > 0
    assert found["disk"]["facts"]["written_bytes_per_second"] > 0
    left = [path for folder in (home, work) for path in folder.rglob("*") if path.is_file()]
    assert left == []


def test_without_torch_and_with_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Not even root can write into /sys."""
    python = linked_environment(tmp_path / "environment", "torch", "deepspeed")
    done = doctor(python, "--folder", "/sys")
    assert done.returncode == 2 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert any(line.split() == ["failed", "torch", "not", "installed"] for line in lines)
    assert any(line.startswith("failed   disk ") and "/sys: " in line for line in lines)
    assert any(line.startswith("ok       pyarrow ") for line in lines)
    assert any(line.startswith("failed   device ") and "deepspeed is not installed" in line for line in lines)
    assert '-> Install it: pip install "clozeline[trainer]"' in done.stdout
    assert lines[-1].startswith("Training cannot start here: ")
    assert max(len(line) for line in lines) <= 120


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs without room."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a tmpfs")
    try:
        with (folder / "filler").open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(bytes(4096))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_exit_code_5(full_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--folder", str(full_disk)]) == 5
    answer = json.loads(capsys.readouterr().out)
    disk = by_name(answer)["disk"]
    assert (disk["state"], disk["exit_code"]) == ("failed", 5)
    assert disk["value"] == f"{full_disk}: No space left on device" and "free some space" in disk["advice"]
    assert [path.name for path in full_disk.iterdir()] == ["filler"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config", "bert-base"], "--config bert-base does not exist. Did you mean bert_base?"),
        (["--config", "tiny", "--set", "run.sead=1"], "--set run.sead=1: unknown key run.sead."),
        (
            ["--jsno"],
            "unrecognized arguments: --jsno. Unknown flag --jsno. Did you mean --json? "
            "See `python -m trainer.doctor --help`.",
        ),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    assert main(flags) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith(f"clozeline: {message}") and told.err.count("\n") == 1


def test_a_machine_that_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This one: other tests train on it."""
    assert main(["--folder", str(tmp_path / "not" / "yet"), *TINY]) == 0
    told = capsys.readouterr()
    assert told.err == "" and told.out.splitlines()[-1].startswith("Training can start")
    for name in ("python", "torch", "deepspeed", "pyarrow", "device", "cores", "precision", "attention", "memory"):
        assert f" {name} " in told.out
    for name in ("host name", "port", "disk", "file locks", "shared memory", "speed"):
        assert f" {name} " in told.out
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_breaks_is_a_line_of_the_answer(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Such as a driver that raises anything."""

    def broken(plan: object) -> list:
        raise RuntimeError("CUDA driver\ninitialization failed")

    monkeypatch.setattr("trainer.doctor.command.CHECKS", {"device": broken})
    assert main([]) == 0
    assert "could not be checked (RuntimeError: CUDA driver initialization failed)" in capsys.readouterr().out


def test_the_installed_command_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clozeline", "doctor", "--config", "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.startswith("clozeline: --config nothing does not exist.")
