"""Jobs that cannot start, whose engine fails, or that find a damaged tokenizer: one line each, and no traceback."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import pytest

from pipeline.beam import display, stop_signals
from pipeline.beam import runner as beam_runner
from pipeline.beam.remote import EngineError, RemoteJob, submit
from pipeline.commit.failures import Failures
from pipeline.commit.staging import Staging
from pipeline.shard import survey
from schemas import storage
from schemas.errors import StorageError
from tests import forked
from tests.forked import Command
from tests.pipeline.beam_flags import execution_of, options_of


def ends(done: subprocess.CompletedProcess[str], code: int, *messages: str) -> None:
    """The command ended with `code`, and its last line is an error that holds each message."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "usage:" not in done.stderr, done.stderr
    last = done.stderr.strip().rpartition("\n")[2]
    assert last.startswith("clozeline: "), done.stderr
    assert [message for message in messages if message not in last] == [], last


ENGINES = {
    "dry-run-with-a-wrong-value": (["--dry_run=maybe"], "'maybe' is neither True nor False"),
    "workers-not-a-number": (["--direct_num_workers", "x"], "invalid int value: 'x'"),
    "address-without-a-port": (
        ["--runner=flink", "--flink_master=flink-head", "--environment_type=LOOPBACK"],
        "--flink_master flink-head has no port. Give HOST:PORT.",
    ),
    "flink-without-jar": (
        ["--runner=FlinkRunner", "--flink_job_server_jar=/nonexistent.jar"],
        "There is no file at --flink_job_server_jar /nonexistent.jar",
    ),
    "prism-without-prism": (
        ["--runner=prism", "--prism_location=/nowhere/prism"],
        "There is no file at --prism_location /nowhere/prism. Give the path of the Prism binary",
    ),
    "worker-command-that-is-not-there": (
        ["--runner=prism", "--environment_type=PROCESS", '--environment_config={"command": "/nowhere/worker"}'],
        "names the command /nowhere/worker, which does not exist here",
    ),
    "no-endpoint": (["--runner=portable", "--environment_type=LOOPBACK"], "PortableRunner needs --job_endpoint"),
    "no-pool": (
        ["--runner=flink", "--environment_type=EXTERNAL", "--environment_config=localhost:9"],
        "clozeline worker --pool --port 9",
    ),
    "no-cluster": (
        ["--runner=flink", "--flink_master=localhost:9", f"--flink_job_server_jar={__file__}"],
        "Nothing answers at --flink_master localhost:9",
    ),
    "no-master-of-two": (
        ["--runner=spark", "--spark_master_url=spark://localhost:9,localhost:7", f"--spark_job_server_jar={__file__}"],
        "Nothing answers at --spark_master_url spark://localhost:9,localhost:7",
    ),
    "flink-without-java": (
        ["--runner=flink", f"--flink_job_server_jar={__file__}", "--job_server_java_launcher=/nowhere/java"],
        "no executable file /nowhere/java. Install a Java runtime",
    ),
    "endpoint-that-is-not-there": (
        ["--runner=portable", "--job_endpoint=localhost:9", "--environment_type=LOOPBACK", "--job_server_timeout=2"],
        "--job_endpoint",
    ),
}


@pytest.mark.parametrize(("flags", "message"), ENGINES.values(), ids=ENGINES)
def test_a_wrong_flag_or_an_engine_out_of_reach_is_one_line(command, corpus, tmp_path, flags, message) -> None:
    done = command("shard", "--input", corpus, "--output", tmp_path / "out", *flags)
    ends(done, 2, message)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists(), "nothing was started"


def test_what_is_found_missing_at_the_end_leaves_no_staging(command, corpus, tmp_path) -> None:
    """A file to download is looked for when the job is submitted."""
    out = tmp_path / "out"
    shard = ("shard", "--input", corpus, "--output", out, "--runner=flink")
    missing = "http://localhost:9/server.jar"
    done = command(*shard, f"--flink_job_server_jar={missing}", "--job_server_java_launcher=/bin/true")
    ends(done, 2, f"The engine could not be downloaded from {missing}")
    assert not list(tmp_path.glob("out/*"))


class FailedJob:
    """What Beam gives for a job that an engine took and could not run."""

    job_id = "job-7"
    state = "FAILED"

    def wait_until_finish(self) -> None:
        raise RuntimeError(
            "Traceback (most recent call last):\n  File ...\nRuntimeError: something that nobody has met before\n"
        )


class Submitting:
    """A pipeline whose submission ends as given."""

    def __init__(self, end: object):
        self.options = options_of(["--runner=PrismRunner", "--job_name=corpus"])
        self._end = end

    def run(self) -> object:
        if isinstance(self._end, BaseException):
            raise self._end
        return self._end


def test_an_error_of_an_engine_names_the_job_and_its_last_message(tmp_path) -> None:
    failures = Failures(Staging(str(tmp_path), "job"))
    pipeline = Submitting(FailedJob())
    with pytest.raises(EngineError, match=r"job-7 of PrismRunner failed: RuntimeError: something that nob") as caught:
        RemoteJob(pipeline.run(), pipeline.options).follow(failures)
    assert caught.value.exit_code == 1 and not caught.value.may_pass
    assert "Traceback" not in str(caught.value) and "File ..." not in str(caught.value)


def test_what_an_engine_logs_has_no_traceback() -> None:
    shown = display.LastLineOfTracebacks("%(levelname)s %(message)s")
    texts = {
        "x\nTraceback (most recent call last):\n  File ...\nOSError: lost\n": "ERROR engine: OSError: lost",
        "two\nlines": "ERROR two\nlines",
    }
    for text, expected in texts.items():
        assert shown.format(logging.LogRecord("engine", logging.ERROR, "", 0, text, (), None)) == expected


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell that runs tests in the background has them ignore Ctrl-C."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


class Interrupted(Submitting):
    """A pipeline that gets signals while it is submitted, which takes a moment longer than that."""

    def __init__(self, end: object, *signals: signal.Signals):
        super().__init__(end)
        self._signals = signals

    def run(self) -> object:
        for number in self._signals:
            signal.raise_signal(number)
        time.sleep(0.5)
        return super().run()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_stopped_while_it_is_submitted_gets_its_id_first(number, interruptible) -> None:
    """Without an id nobody could cancel it. `timeout` sends its signal twice."""
    twice = [number] * (2 if number == signal.SIGTERM else 1)
    with stop_signals.as_interrupts():
        pipeline = Interrupted("the job", *twice)
        job = submit(pipeline, pipeline.options)  # type: ignore[arg-type]
    assert job.result == "the job"
    assert job.is_stopped


def test_a_job_that_is_stopped_and_not_taken_runs_nowhere(interruptible) -> None:
    pipeline = Interrupted(RuntimeError("no"), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=r"stopped; PrismRunner did not take the job corpus") as caught:
        submit(pipeline, pipeline.options)  # type: ignore[arg-type]
    assert not getattr(caught.value, "still_runs", True)


def test_a_submission_that_is_not_waited_for_says_that_the_job_may_still_run(interruptible) -> None:
    pipeline = Interrupted("the job", signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=r"may still run.*corpus.*the engine") as caught:
        submit(pipeline, pipeline.options)  # type: ignore[arg-type]
    assert getattr(caught.value, "still_runs", False)


def test_a_worker_that_is_started_by_hand_says_so() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CLOZELINE_LAUNCHER"}
    ends(forked.run(["python", "-m", "pipeline.beam.local"], environment, timeout=60), 2, "clozeline shard")


def test_a_move_of_a_file_that_is_gone_is_a_storage_error(tmp_path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        storage.move(str(tmp_path / "gone"), str(tmp_path / "b"))


DAMAGED = {
    "dropout-is-text": lambda content: content["model"].update(dropout="much"),
    "dropout-above-one": lambda content: content["model"].update(dropout=7.5),
    "normalizer-of-unknown-type": lambda content: content.update(normalizer={"type": "Nothing"}),
    "model-field-of-wrong-type": lambda content: content["model"].update(continuing_subword_prefix=[3]),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_tokenizer_that_the_library_rejects_is_bad_data(command, text, byte_vocab, tmp_path, damage) -> None:
    vocab = shutil.copytree(byte_vocab, tmp_path / "vocab")
    content = json.loads((vocab / "tokenizer.json").read_text())
    damage(content)
    (vocab / "tokenizer.json").write_text(json.dumps(content))
    flags = ("--text", text, "--vocab", vocab, "--output", tmp_path / "out", "--objective", "sop")
    ends(command("pairs", *flags), 3, "tokenizer.json")


@pytest.mark.parametrize("limit", [30_000, 37_200])
def test_a_shard_of_more_text_than_arrow_holds_names_num_shards(command, corpus, tmp_path, monkeypatch, limit) -> None:
    """The mean of the shards is judged before they are made, and each shard when its documents are known."""
    monkeypatch.setattr(survey, "MAX_SHARD_BYTES", limit)
    flags = ("shard", "--input", corpus, "--output", tmp_path / "out", "--direct_num_workers=1")
    ends(command(*flags, "--num_shards", 2), 3, "--num_shards 2 is too few", "Give --num_shards")
    assert not list((tmp_path / "out").glob("_unfinished-*/text-*.arrow"))


def ignores_hangups(pid: int) -> bool:
    """Whether a process ignores SIGHUP, as Linux tells it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    ignored = next(line for line in lines if line.startswith("SigIgn"))
    return bool(int(ignored.split()[1], 16) & 1 << (signal.SIGHUP - 1))


NOHUP = """
import runpy, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
runpy.run_module("pipeline", run_name="__main__")
"""


def test_a_command_under_nohup_ignores_the_end_of_its_terminal(corpus: Path, tmp_path: Path) -> None:
    shard = ("shard", "--input", corpus, "--output", tmp_path / "out")
    process = Command(["python", "-m", "tests.run_code", NOHUP, *shard], stderr=subprocess.PIPE)
    while process.poll() is None and not ignores_hangups(process.pid):
        time.sleep(0.005)
    while process.poll() is None:
        process.send_signal(signal.SIGHUP)
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    assert process.returncode == 0, process.communicate()[1]


def test_an_engine_that_is_gone_before_the_second_attempt_is_no_wrong_flag(tmp_path, monkeypatch) -> None:
    """The first attempt ran, so the exit code is not the one that says that nothing was started."""
    options = options_of(["--runner=PortableRunner", "--job_endpoint=localhost:9"])
    job = execution_of("Nothing", beam.Create([]), options, Staging(str(tmp_path), "job"))

    def lose_worker(*_: object) -> None:
        raise EngineError("A worker was lost.", may_pass=True)

    monkeypatch.setattr(beam_runner, "run_once", lose_worker)
    with pytest.raises(EngineError, match=r"Nothing answers at --job_endpoint localhost:9.*Finished pieces are kept"):
        beam_runner.run_attempts(job, job.build())
