"""`clozeline doctor` where all is well and where something is missing, with its exit codes. Nothing is left behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from schemas import host_limits
from schemas.errors import UsageError
from tests.object_store import ObjectStore
from tests.trainer.data.node_cache.test_node_cache import mounted
from trainer import doctor
from trainer.config.load import load_recipe
from trainer.doctor import Finding, main

ROOT = Path.cwd()
TINY = ["--config", "tiny", "--set", "data.pairs=/none"]


def recipe(*changes: str) -> Any:
    return load_recipe("tiny", ["data.pairs=/none", *changes])


def states(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.state for finding in findings}


# Packages


def test_packages_are_compared_with_the_versions_of_the_project() -> None:
    found = {finding.name: finding for finding in doctor.check_packages()}
    assert {"python", "torch", "deepspeed", "pyarrow"} <= set(found)
    assert "apache-beam" not in found and found["torch"].state == "ok"
    assert "<2.15" in found["torch"].value and ">=2.10" in found["torch"].value


def test_a_version_outside_of_its_range_is_a_warning() -> None:
    finding = doctor.check_version("torch", "2.13.0+cpu", SpecifierSet(">=99"))
    assert finding.state == "warning" and finding.value == "2.13.0+cpu (supported: >=99)"
    assert doctor.check_version("torch", "2.13.0+cpu", SpecifierSet(">=2.10,<2.15")).state == "ok"
    assert doctor.check_version("torch", "", SpecifierSet()).state == "failed"


# Devices


def test_limits_of_a_container_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_limits, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    (tmp_path / "cpu.max").write_text("150000 100000\n")

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    finding = doctor.check_cores()
    assert finding.state == "ok" and "limited to the time of 1.5 cores; each rank uses" in finding.value

    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    finding = doctor.check_cores()
    assert finding.state == "warning" and "OMP_NUM_THREADS = 4096" in finding.value and "to 1 divided" in finding.advice


# The recipe


def test_a_precision_that_the_device_does_not_support_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_precision(precision: str) -> None:
        raise UsageError(f"engine.precision {precision}: this cpu does not support it. Use bf16 or fp32.")

    monkeypatch.setattr("trainer.engine.check_precision", check_precision)
    (refused,) = [one for one in doctor.examine(recipe("engine.precision=fp16"), "", []) if one.state == "failed"]
    assert refused.exit_code == 2 and "engine.precision fp16" in refused.value


def test_pairs_are_read_where_they_are_finished(pairs: Path, tmp_path: Path) -> None:
    (ready,) = doctor.check_data(recipe(f"data.pairs={pairs}"))
    assert (ready.state, ready.value) == ("ok", f"{pairs} can be read")
    (missing,) = doctor.check_data(recipe())
    assert missing.state == "note" and missing.value == "/none does not exist"
    (missing,) = doctor.check_data(recipe(f"data.pairs={tmp_path}"))
    assert missing.state == "note" and missing.value == f"{tmp_path} holds no finished pairs yet"

    (tmp_path / "manifest.json").write_text("{")
    (broken,) = [one for one in doctor.examine(recipe(f"data.pairs={tmp_path}"), "", []) if one.state == "failed"]
    assert broken.exit_code == 3 and "manifest.json" in broken.value


def test_what_does_not_fit_is_a_warning(tmp_path: Path) -> None:
    assert set(states(doctor.check_room(recipe(), tmp_path)).values()) == {"ok"}
    assert "host memory" not in states(doctor.check_room(recipe("checkpoint.background=false"), tmp_path))

    wide = ["model.hidden_size=16384", "model.num_hidden_layers=96", "model.intermediate_size=65536"]
    large = recipe(*wide, "checkpoint.keep=1000000")
    assert states(doctor.check_room(large, tmp_path)) == dict.fromkeys(("memory", "disk", "host memory"), "warning")


def test_the_memory_is_that_of_the_longest_rows_of_all_phases(tmp_path: Path) -> None:
    """128 tokens in the first phase, and 512 in the second. The smallest micro-batch of "auto" is one row."""
    of_phases = load_recipe("bert_large_lamb", ["data.pairs=/none"])
    memory = next(one for one in doctor.check_room(of_phases, tmp_path) if one.name == "memory")
    assert "micro-batches of 512 tokens" in memory.value


# Storage


def test_a_folder_is_written_and_left_as_it_was(tmp_path: Path) -> None:
    folder = doctor.existing_folder(str(tmp_path / "run"))
    assert folder == tmp_path and states(doctor.check_folder(folder)) == {"folder": "ok"}
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_is_written_read_and_left_empty(s3: ObjectStore) -> None:
    s3.bucket("bucket")
    findings = doctor.examine(recipe("run.output=s3://bucket/run"), "", ["s3://bucket/elsewhere"])
    of_urls = {name: state for name, state in states(findings).items() if name.startswith("url ")}
    assert of_urls == {"url s3://bucket/elsewhere": "ok", "url s3://bucket/run": "ok"}

    missing = doctor.check_url("s3://no-such-bucket/run")
    assert (missing.state, missing.exit_code) == ("failed", 5)


def test_a_store_out_of_reach_is_a_fault_of_storage(store_out_of_reach: None) -> None:
    assert doctor.check_url("s3://bucket/run").exit_code == 5


def test_a_store_that_does_not_answer_is_given_up(store_out_of_reach: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "URL_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        finding = doctor.check_url("s3://bucket/run")
    assert ("no answer within 1 seconds" in finding.value, finding.exit_code) == (True, 5)


# The command, as a process


def linked_environment(folder: Path, *without: str) -> Path:
    """A fresh environment with links to the packages of this one, except those whose names begin with `without`."""
    venv.create(folder, with_pip=False)
    (site_packages,) = folder.glob("lib/python3*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        is_left_out = path.name.startswith(without) or path.suffix == ".pth" or path.name.startswith("__editable__")
        if not is_left_out and not (site_packages / path.name).exists():
            (site_packages / path.name).symlink_to(path)
    return folder / "bin/python"


def run_doctor(python: Path | str, *flags: object, **environment: str) -> subprocess.CompletedProcess[str]:
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


def test_without_beam_and_without_a_compiler(tmp_path: Path) -> None:
    """No machine that trains needs either."""
    python = linked_environment(tmp_path / "environment", "apache_beam")
    home = tmp_path / "home"
    work = tmp_path / "work"
    no_programs = tmp_path / "no_programs"
    for folder in (home, work, no_programs):
        folder.mkdir()

    places = {"HOME": str(home), "TMPDIR": str(home), "PATH": str(no_programs), "DS_ACCELERATOR": "cpu"}
    done = run_doctor(python, "--json", "--folder", work, *TINY, **places)
    answer = json.loads(done.stdout)
    assert done.returncode == answer["exit_code"] == 0 and answer["ready"]
    found = {finding["name"]: finding["state"] for finding in answer["findings"]}
    assert "failed" not in found.values() and found["torch"] == found["memory"] == found["folder"] == "ok"
    left = [path for folder in (home, work) for path in folder.rglob("*") if path.is_file()]
    assert left == []


def test_without_torch_and_with_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Not even root can write into /sys."""
    python = linked_environment(tmp_path / "environment", "torch", "deepspeed")
    done = run_doctor(python, "--folder", "/sys")
    assert done.returncode == 2 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert any(line.split() == ["failed", "torch", "not", "installed"] for line in lines)
    assert any(line.startswith("failed   folder ") and "/sys: " in line for line in lines)
    assert any(line.startswith("ok       pyarrow ") for line in lines)
    assert any(line.startswith("failed   devices ") and "torch is not installed" in line for line in lines)
    assert '-> Install it: pip install "clozeline[trainer]"' in done.stdout
    assert lines[-1] == "Training cannot start here."


def test_a_full_disk_is_exit_code_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full_disk = tmp_path / "full"
    with mounted(full_disk, "size=1m"):
        with (full_disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(bytes(4096))

        assert main(["--json", "--folder", str(full_disk)]) == 5
        assert [path.name for path in full_disk.iterdir()] == ["filler"]
    (finding,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["state"] == "failed"]
    assert (finding["name"], finding["exit_code"]) == ("folder", 5)
    assert finding["value"] == f"{full_disk}: No space left on device" and "free some space" in finding["advice"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config", "bert-base"], "--config bert-base does not exist. Did you mean bert_base?"),
        (["--config", "tiny", "--set", "run.sead=1"], "--set run.sead=1: unknown key run.sead."),
        (["--folder", f"/{'n' * 300}"], f"/{'n' * 300} cannot be a path: File name too long. Give a shorter name."),
        (["--jsno"], "Unknown flag --jsno. Did you mean --json? See `python -m trainer.doctor --help`."),
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
    assert told.err == "" and told.out.splitlines()[-1] == "Training can start once its data is there."
    for name in ("python", "torch", "cores", "data", "memory", "host memory", "disk", "folder", "shared memory"):
        assert f" {name} " in told.out
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_breaks_is_a_line_of_the_answer(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Such as a driver that raises anything."""

    def broken() -> list:
        raise RuntimeError("CUDA driver\ninitialization failed")

    monkeypatch.setattr(doctor, "check_devices", broken)
    assert main([]) == 0
    assert "not checked (RuntimeError: CUDA driver initialization failed)" in capsys.readouterr().out
