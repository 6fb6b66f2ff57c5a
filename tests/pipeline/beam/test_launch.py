"""What is decided from flags alone: Dataflow's, --no_wait and --dry_run; and a job that its launcher leaves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

from pipeline.beam import engines, remote
from pipeline.beam.engines import check_flags, leaves_job, makes_template
from pipeline.beam.remote import JobStoppedError, RemoteJob
from pipeline.commit import leases
from pipeline.commit.failures import Failures
from pipeline.commit.staging import Staging
from pipeline.shard.holdout import held_out_folder
from schemas.errors import DataError, UsageError

CLOUD = {
    "project": "my-project",
    "region": "us-central1",
    "temp_location": "gs://bucket/tmp",
    "sdk_container_image": "host.example.com/clozeline:1",
}
SERVICE = ["--runner=portable", "--job_endpoint=localhost:1"]


def dataflow(**changes: str) -> list[str]:
    values = CLOUD | changes
    return ["--runner=DataflowRunner", *(f"--{name}={value}" for name, value in values.items() if value)]


def test_all_that_dataflow_needs_is_enough() -> None:
    check_flags(dataflow())
    check_flags([*dataflow(sdk_container_image=""), "--worker_harness_container_image=host.example.com/clozeline:1"])


@pytest.mark.parametrize("missing", CLOUD)
def test_each_flag_that_dataflow_misses_is_named(missing: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_flags(dataflow(**{missing: ""}))
    assert [name for name in CLOUD if f"--{name}," in str(refused.value)] == [missing]


@pytest.mark.parametrize("flags", [[], ["--runner=direct"], ["--runner=prism"], [*SERVICE]], ids=" ".join)
def test_a_job_that_ends_with_its_launcher_cannot_be_left(flags: list[str]) -> None:
    check_flags(flags)
    with pytest.raises(UsageError, match=r"--no_wait cannot be used with .* would end with this command"):
        check_flags([*flags, "--no_wait"])


def test_a_job_of_an_engine_can_be_left() -> None:
    check_flags([*dataflow(), "--no_wait"])
    check_flags([*SERVICE, "--environment_type=EXTERNAL", "--environment_config=localhost:2", "--no_wait"])


def test_a_template_is_for_a_launcher_that_does_not_wait() -> None:
    template = [*dataflow(), "--template_location=gs://bucket/job"]
    with pytest.raises(UsageError, match="Add --no_wait"):
        check_flags(template)
    check_flags([*template, "--no_wait"])
    options = PipelineOptions([*template, "--no_wait"])
    assert makes_template(options) and leaves_job(options)


def test_dataflow_without_credentials_is_refused_before_anything_is_asked_or_written(run, tmp_path) -> None:
    """No server for metadata answers here, as on any machine outside of Google's cloud."""
    pytest.importorskip("google.cloud.dataflow")
    cloud = ["--runner=DataflowRunner", "--project=my-project", "--region=us-central1", "--temp_location=gs://b/tmp"]
    places = ["--input=memory://none/a.jsonl", "--output=memory://none/text", "--sdk_container_image=host/a:1"]
    metadata = {"GCE_METADATA_IP": "127.0.0.1:9", "GCE_METADATA_HOST": "127.0.0.1:9", "GCE_METADATA_TIMEOUT": "1"}
    done = run("python", "-m", "pipeline", "shard", *places, *cloud, HOME=str(tmp_path), **metadata)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("clozeline: --runner DataflowRunner needs credentials of Google Cloud")
    assert "gcloud auth application-default login" in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["shard", "--input", "s3://nowhere/*.jsonl"],
        ["vocab", "--text", "s3://nowhere/text", "--model", "wordpiece", "--size", "100"],
        ["pairs", "--text", "s3://nowhere/text", "--vocab", "s3://nowhere/vocab", "--objective", "nsp"],
    ],
    ids=lambda words: words[0],
)
def test_a_missing_flag_is_refused_before_the_network_is_touched(command, store_out_of_reach, words) -> None:
    done = command(*words, "--output", "gs://nowhere/out", *dataflow(region=""))
    assert done.returncode == 2
    assert done.stderr == (
        "clozeline: --runner DataflowRunner needs --region, for example us-central1; take the region of the buckets.\n"
    )


def test_two_jobs_are_not_left(command, text, tmp_path) -> None:
    words = ("vocab", "--text", text, "--counts", tmp_path / "counts", "--output", tmp_path / "v")
    pool = [*SERVICE, "--environment_type=EXTERNAL", "--environment_config=localhost:2"]
    done = command(*words, "--model", "wordpiece", "--size", 100, *pool, "--no_wait")
    assert done.returncode == 2 and "needs two" in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


def tree(*folders: Path) -> dict[str, tuple[int, int, int]]:
    """Every file and folder: inode, size, and time of the last change of its content, names in a folder included."""
    found = {}
    for folder in folders:
        for path in [folder, *folder.rglob("*")]:
            status = path.lstat()
            found[str(path)] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def test_a_dry_run_creates_and_deletes_nothing(command, corpus, text, vocab, tmp_path, monkeypatch) -> None:
    """A folder's time changes even if a file was created in it and deleted again, so none can have been."""
    here, home, out = (tmp_path / name for name in ("here", "home", "out"))
    for folder in (here, home, out / "_unfinished-0123456789abcdef"):
        folder.mkdir(parents=True)
    (out / "_unfinished-0123456789abcdef" / "run-000000.json").write_text("{}")
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    commands = {
        "shard": ("shard", "--input", corpus),
        "vocab": ("vocab", "--text", text, "--model", "wordpiece", "--size", 100),
        "counts": ("vocab", "--text", text, "--counts", tmp_path / "new", "--model", "wordpiece", "--size", 100),
        "pairs": ("pairs", "--text", text, "--vocab", vocab, "--objective", "nsp"),
    }
    before = tree(tmp_path, text, vocab, corpus)
    for words in commands.values():
        for output in (out, tmp_path / "not there yet"):
            done = command(*words, "--output", output, "--dry_run")
            assert done.returncode == 0, done.stderr
            assert "splits of " in done.stdout and "worker-hours" in done.stdout and "graph: " in done.stdout
            assert "nothing was written or removed" in done.stderr
            assert tree(tmp_path, text, vocab, corpus) == before

    done = command("shard", "--input", corpus, "--output", out, "--holdout", 0.1, "--dry_run")
    assert done.returncode == 0, done.stderr
    assert f"  also writes: {held_out_folder(str(out))}\n" in done.stdout
    assert tree(tmp_path, text, vocab, corpus) == before


def test_a_dry_run_leaves_no_temporary_files(run, corpus, tmp_path, monkeypatch) -> None:
    for name in ("here", "home", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    words = ("shard", "--input", corpus, "--output", tmp_path / "out", "--dry_run")
    done = run("python", "-m", "pipeline", *words, HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path / "temporary"))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["here", "home", "temporary"]


def test_a_job_whose_output_is_in_use_leaves_no_temporary_files(run, corpus, tmp_path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = ("shard", "--input", corpus, "--output", tmp_path / "out", "--direct_num_workers", 1)
    with leases.held(str(tmp_path / "out"), "token"):
        done = run("python", "-m", "pipeline", *words, TMPDIR=str(temporary))
    assert done.returncode == 2 and "in use by another job" in done.stderr, done.stderr
    assert list(temporary.iterdir()) == []


def test_a_job_that_is_left_has_a_lease_that_says_so_and_stays(tmp_path) -> None:
    output = str(tmp_path)
    with leases.held(output, "token") as lease:
        lease.leave()
        lease.renew()  # keeps what the file says
        owner = leases.read(output, "token")
        assert owner is not None and owner.left and not owner.kept
        lease.keep = True
    owner = leases.read(output, "token")
    assert owner is not None and owner.left and owner.kept
    assert not leases.launcher_waits(output, "token", str(tmp_path / "_lease-token.json"))


def test_the_last_step_fails_a_job_that_nobody_waits_for(tmp_path) -> None:
    output = str(tmp_path)
    failures = Failures(Staging(output, "job", "token"))
    with leases.held(output, "token") as lease:
        failures.report(DataError("The text is bad."))
        assert failures.end_job_left_alone() is None  # the launcher raises the error
        lease.leave()
        for _ in range(2):  # an engine repeats the step
            error = failures.end_job_left_alone()
            assert isinstance(error, DataError) and str(error) == "The text is bad."
    assert not list(tmp_path.glob("_lease-*"))


class Result:
    """Beam's result of a job, which remembers whether it was canceled."""

    job_id = "job-1"
    canceled = False

    @property
    def state(self) -> str:
        return "CANCELLED" if self.canceled else "RUNNING"

    def cancel(self) -> None:
        self.canceled = True


def nothing_failed(folder: Path) -> Failures:
    return Failures(Staging(str(folder), "job", "token"))


def test_ctrl_c_cancels_and_says_where_the_job_is(tmp_path, capsys) -> None:
    result = Result()
    stopped = RemoteJob(result, PipelineOptions(dataflow())).cancel(nothing_failed(tmp_path))
    assert result.canceled and not stopped.still_runs
    assert "gcloud dataflow jobs show job-1 --project my-project --region us-central1" in capsys.readouterr().err


FLINK = ["--runner=flink", "--job_endpoint=far:8099", "--environment_type=EXTERNAL", "--environment_config=far:50000"]


def stopped_job_of_flink(output: Path, waits_for: float, monkeypatch) -> tuple[JobStoppedError, bool]:
    """Stop a job whose server calls it canceled at once, and whose last step comes so many seconds later, or never.

    Returns the error, and whether the output folder is free after that.
    """
    monkeypatch.setattr(remote, "CONFIRM_SECONDS", 3.0)
    failures = Failures(Staging(str(output), "job", "token"))
    last_step = threading.Timer(waits_for, failures.end_job_left_alone)
    with leases.held(str(output), "token") as lease:
        lease.keep_if_killed()
        last_step.start()
        stopped = RemoteJob(Result(), PipelineOptions(FLINK)).cancel(failures)
        lease.keep = stopped.still_runs
    last_step.cancel()
    assert failures.error() is not None, "steps that run after this do nothing"
    return stopped, not list(output.glob("_lease-*"))


def test_a_job_of_flink_is_canceled_once_its_last_step_has_come(tmp_path, monkeypatch) -> None:
    stopped, is_free = stopped_job_of_flink(tmp_path, 1.0, monkeypatch)
    assert "was canceled" in str(stopped) and not stopped.still_runs and is_free


def test_a_job_of_flink_that_does_not_end_in_time_may_still_run_and_keeps_the_folder(tmp_path, monkeypatch) -> None:
    stopped, is_free = stopped_job_of_flink(tmp_path, 1000.0, monkeypatch)
    assert "job job-1 of flink was asked to end, has not ended yet and may still run" in str(stopped)
    assert stopped.still_runs and not is_free
    with pytest.raises(UsageError, match="may still run on its engine"), leases.held(str(tmp_path), "second"):
        pass

    Failures(Staging(str(tmp_path), "job", "token")).end_job_left_alone()  # its last step comes at last
    with leases.held(str(tmp_path), "second"):
        pass


def test_a_lost_connection_is_told_without_advice_for_failed_jobs() -> None:
    said = "failed to connect to all addresses; last error: ipv4:127.0.0.1:8099: Connection refused"
    lost = RemoteJob(Result(), PipelineOptions(FLINK)).lost(RuntimeError(said))
    assert "Connection refused" in str(lost) and "LOOPBACK" not in str(lost) and lost.still_runs


def test_a_negative_number_of_workers_is_refused() -> None:
    with pytest.raises(UsageError, match="--direct_num_workers -4: expected a number of processes"):
        check_flags(["--direct_num_workers=-4"])


@pytest.mark.parametrize(
    ("flags", "megabytes", "cores", "gigabytes", "expected"),
    [
        ([], 5, 200, 100, 1),
        ([], 64, 200, 100, 16),
        ([], 9000, 200, 100, 100),
        ([], 9000, 8, 100, 8),
        ([], 9000, 8, 0.5, 1),
        (["--direct_num_workers=0"], 1, 8, 0.5, 8),
        (["--direct_num_workers=3"], 1, 8, 0.5, 3),
    ],
)
def test_local_workers_are_as_many_as_input_cores_and_memory_allow(
    monkeypatch, flags: list[str], megabytes: int, cores: int, gigabytes: float, expected: int
) -> None:
    monkeypatch.setattr(engines, "usable_cores", lambda: cores)
    monkeypatch.setattr(engines, "available_bytes", lambda: int(gigabytes * (1 << 30)))
    options = engines.beam_options(check_flags(flags), flags, megabytes << 20)
    assert options.view_as(DirectOptions).direct_num_workers == expected
