"""Jobs by where their workers are: which paths they get, what is shown of them, and how Ctrl-C ends them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.beam.engines import path_for_workers
from schemas.errors import UsageError
from schemas.manifest import read_manifest
from tests import forked
from tests.forked import Command
from tests.pipeline.beam.servers import running_job_service
from tests.pipeline.beam_flags import options_of
from tests.processes import wait_for

PORTABLE = ["--runner=PortableRunner", "--job_endpoint=localhost:1"]
CLOUD = ["--project=p", "--region=r", "--temp_location=gs://b/t", "--sdk_container_image=i"]
WORKERS = {
    "local": ([], "a/b"),
    "direct": (["--runner=DirectRunner"], "a/b"),
    "loopback": ([*PORTABLE, "--environment_type=LOOPBACK"], "a/b"),
    "prism": (["--runner=PrismRunner"], "a/b"),
    "flink here": (["--runner=FlinkRunner"], "a/b"),
    "process": ([*PORTABLE, "--environment_type=PROCESS"], "{here}/a/b"),
    "external": ([*PORTABLE, "--environment_type=EXTERNAL", "--environment_config=localhost:1"], "{here}/a/b"),
    "flink process": (["--runner=FlinkRunner", "--flink_master=far:8081", "--environment_type=PROCESS"], "{here}/a/b"),
    "service here": (PORTABLE, "a/b"),
    "docker": ([*PORTABLE, "--environment_type=DOCKER", "--environment_config=image"], None),
    "flink docker": (["--runner=flink", "--flink_master=far:8081", "--environment_config=image"], None),
    "dataflow": (["--runner=DataflowRunner", *CLOUD], None),
    "dataflow, short": (["--runner=dataflow", *CLOUD], None),
}


@pytest.mark.parametrize(("flags", "expected"), WORKERS.values(), ids=WORKERS)
def test_paths_are_made_absolute_or_refused_by_where_workers_are(flags: list[str], expected: str | None) -> None:
    options = options_of(flags)
    assert path_for_workers("--output", "s3://bucket/a", options) == "s3://bucket/a"
    if expected is None:
        with pytest.raises(UsageError, match=r"--output a/b is a path on this machine .*Give a URL"):
            path_for_workers("--output", "a/b", options)
    else:
        assert path_for_workers("--output", "a/b", options) == expected.format(here=Path.cwd())


@pytest.mark.parametrize("flag", ["--input", "--output"])
def test_dataflow_with_local_paths_is_refused_before_anything_starts(command, corpus, tmp_path, flag) -> None:
    names = {"--input": "memory://none/a.jsonl", "--output": "memory://none/out"}
    names[flag] = str(corpus if flag == "--input" else tmp_path / "out")
    if flag == "--output":
        names["--input"] = str(corpus)
    cloud = ("--runner=DataflowRunner", *CLOUD, "--dry_run")
    done = command("shard", *(word for pair in names.items() for word in pair), *cloud)
    assert done.returncode == 2 and "would not see it" in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture
def service(beam_job_service: str) -> list[str]:
    """The flags that send a job to Beam's own job service. Its session does not get a terminal's Ctrl-C."""
    return ["--runner=PortableRunner", f"--job_endpoint={beam_job_service}"]


def test_relative_paths_reach_workers_of_another_folder_and_stay_relative_in_the_result(
    command, corpus, service, pool, tmp_path, monkeypatch
) -> None:
    """A worker pool that runs elsewhere on this machine gives the bytes of a local run, rejected records included."""
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text(corpus.read_text() + "{\n")
    shard = ["shard", "--input", "mixed.jsonl", "--max_bad_ratio", "0.1"]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    words = ["python", "-m", "pipeline", *shard, "--output", "remote", *service, *pool.flags]
    done = forked.run(words, environment, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "of PortableRunner has been submitted" in done.stderr
    monkeypatch.chdir(tmp_path)
    assert command(*shard, "--output", "here").returncode == 0
    assert list(pool.folder.iterdir()) == []
    for name in ("text-00000-of-00001.arrow", "rejected/run-000000-0000.jsonl", "manifest.json"):
        assert Path("remote", name).read_bytes() == Path("here", name).read_bytes()
    assert [given.path for given in read_manifest("remote", "text").inputs] == ["mixed.jsonl"]
    assert json.loads(Path("remote/rejected/run-000000-0000.jsonl").read_text())["path"] == "mixed.jsonl"


@pytest.mark.parametrize("runner", ["job service", "prism"])
def test_a_job_of_an_engine_leaves_no_temporary_files(run, corpus, request, tmp_path, runner: str) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    if runner == "prism":
        flags = ["--runner=prism", f"--prism_location={request.getfixturevalue('prism')}"]
    else:
        address = request.getfixturevalue("beam_job_service")
        flags = ["--runner=PortableRunner", f"--job_endpoint={address}", "--environment_type=LOOPBACK"]

    shard = ("python", "-m", "pipeline", "shard", "--input", corpus, "--output", tmp_path / "out", *flags)
    done = run(*shard, TMPDIR=str(temporary))
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert list(temporary.iterdir()) == []


def test_a_job_that_is_not_waited_for_publishes_and_cleans_up(run, corpus, service, pool, text, tmp_path) -> None:
    """And one that fails ends in an error on the engine and leaves the folder to the next command."""
    out = tmp_path / "out"
    bad = tmp_path / "bad"
    (tmp_path / "bad.jsonl").write_text("{\n")
    flags = ["--num_shards", "3", "--no_wait", *service, *pool.flags]
    done = run("clozeline", "shard", "--input", str(corpus), "--output", str(out), *flags)
    assert done.returncode == 0 and "has been submitted" in done.stderr, done.stderr
    assert "not waiting for it" in done.stderr and done.stdout == ""
    wait_for(lambda: [path.name for path in out.glob("_*")] == [], "the job does not clean up")
    assert read_manifest(str(out), "text").fingerprint == read_manifest(str(text), "text").fingerprint
    again = run("clozeline", "shard", "--input", str(corpus), "--output", str(out), *flags)
    assert again.returncode == 0 and "is already finished by this command" in again.stderr, again.stderr

    done = run("clozeline", "shard", "--input", str(tmp_path / "bad.jsonl"), "--output", str(bad), *flags)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not list(bad.glob("_lease-*")), "the failed job keeps its lease")
    assert not (bad / "manifest.json").exists()
    assert list(bad.glob("_unfinished-*/failed-*.json"))


@contextlib.contextmanager
def begun(corpus: Path, out: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A job of many small shards, once it has begun to write them."""
    shard = ["python", "-m", "pipeline", "shard", "--input", corpus, "--output", out, "--num_shards", 3000]
    process = Command([*shard, *flags], stderr=subprocess.PIPE)
    try:
        wait_for(lambda: list(out.rglob("text-*.json")), "no piece was written")
        yield process
    finally:
        process.kill()
        process.wait()


def test_ctrl_c_cancels_a_remote_job(corpus: Path, service: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with begun(corpus, out, *service, "--environment_type=LOOPBACK") as process:
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=100)
    assert process.returncode == 130 and "Traceback" not in told, told
    assert "canceling job " in told and "was canceled. Run the same command again to continue" in told
    assert not (out / "manifest.json").exists() and not list(out.glob("_lease-*"))


@pytest.mark.thorough
def test_ctrl_c_twice_says_how_to_find_a_job_that_could_not_be_canceled(corpus: Path, tmp_path: Path) -> None:
    """The service does not answer: the first Ctrl-C waits for it, the second leaves the job, and its lease, alone."""
    out = tmp_path / "out"
    flags = ["--runner=PortableRunner", "--environment_type=LOOPBACK"]
    with (
        running_job_service(tmp_path) as (job_service, address),
        begun(corpus, out, *flags, f"--job_endpoint={address}") as process,
    ):
        os.killpg(job_service.pid, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        shown = ""
        while "Ctrl-C again" not in shown:
            shown = process.stderr.readline()
            assert shown, "it ended without a word"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=100)
    assert process.returncode == 130 and "Traceback" not in told, told
    assert "was not canceled (KeyboardInterrupt) and may still run" in told
    assert "cancel it by this id at localhost:" in told
    assert list(out.glob("_lease-*"))
