"""Errors that no retry can cure, on engines: they end the job within seconds, with their own exit code."""

from __future__ import annotations

import errno
import json
import shutil
import time
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList, AsSingleton

from pipeline.beam.steps import Distribute, call, call_once, generate
from pipeline.commit import failures, leases
from pipeline.commit.failures import Failures, is_carried
from pipeline.commit.staging import Staging
from schemas.errors import ClozelineError, DataError, StorageError, UsageError

SECONDS = 60
"""What a failing job may take on a busy machine. An engine that repeats it takes minutes."""


def caused(message: str, cause: Exception) -> StorageError:
    """A StorageError as `schemas.storage` raises it."""
    error = StorageError(message)
    error.__cause__ = cause
    return error


ERRORS = {
    "bad data": (DataError("x"), True),
    "wrong option": (UsageError("x"), True),
    "no permission": (caused("x", OSError(errno.EACCES, "denied")), True),
    "no permission in a store": (caused("x", PermissionError("Access Denied")), True),
    "no such bucket": (caused("x", FileNotFoundError("NoSuchBucket")), True),
    "lost lease": (StorageError("x"), True),
    "full disk": (caused("x", OSError(errno.ENOSPC, "full")), False),
    "store out of reach": (caused("x", ConnectionError("reset")), False),
}


@pytest.mark.parametrize(("error", "expected"), ERRORS.values(), ids=ERRORS)
def test_only_what_another_attempt_would_meet_again_is_permanent(error: ClozelineError, expected: bool) -> None:
    assert failures.is_permanent(error) == expected


def test_an_error_that_was_reported_is_raised_until_it_is_removed(tmp_path: Path) -> None:
    reported = Failures(Staging(str(tmp_path), "job", token="now"))
    assert reported.error() is None
    with leases.held(reported.staging.output, "now"):
        assert reported.report(DataError("a"))
    error = reported.error()
    assert (type(error), str(error)) == (DataError, "a")

    reported.remove()
    assert reported.error() is None


def test_an_attempt_does_not_see_the_errors_of_another(tmp_path: Path) -> None:
    with leases.held(str(tmp_path), "old"):
        assert Failures(Staging(str(tmp_path), "job", token="old")).report(DataError("old"))
    assert Failures(Staging(str(tmp_path), "job", token="new")).error() is None


def refuse_three(number: int) -> int:
    if number == 3:
        raise DataError("three is refused")
    return number


def twice(number: int) -> list[int]:
    return [number, number]


def add(numbers: list[int]) -> int:
    return sum(numbers)


def publish(total: int, kept: list[int], place: str) -> None:
    Path(place).write_text(json.dumps([total, len(kept)]))


class Chain(beam.PTransform):
    """A graph with every kind of call, side inputs of both kinds, and a last step that writes a file."""

    def __init__(self, numbers: list[int], place: Path):
        super().__init__()
        self.numbers = numbers
        self.place = str(place)

    def expand(self, pbegin):
        kept = (
            pbegin
            | beam.Create(list(enumerate(self.numbers)))
            | Distribute()
            | "Refuse" >> call(refuse_three)
            | "Twice" >> generate(twice)
        )
        total = pbegin | "Add" >> call_once(add, AsList(kept))
        shown = total | "Show" >> call(str)
        _ = shown | "Keep shown" >> call(str)
        return pbegin | "Publish" >> call_once(publish, AsSingleton(total), AsList(kept), self.place)


@pytest.mark.parametrize("workers", [1, 3])
def test_after_a_reported_error_no_side_input_is_missing_and_nothing_is_published(tmp_path: Path, workers: int) -> None:
    reported = Failures(Staging(str(tmp_path), "job", token="now"))
    for numbers, is_refused in (([1, 2], False), ([1, 2, 3, 4], True)):
        place = tmp_path / f"published-{is_refused}"
        options = [f"--direct_num_workers={workers}", "--direct_running_mode=multi_threading"]
        with (
            leases.held(str(tmp_path), "now"),
            failures.collected(reported),
            beam.Pipeline("FnApiRunner", PipelineOptions(options)) as pipeline,
        ):
            _ = pipeline | Chain(numbers, place)
        assert (reported.error() is not None) == is_refused
        assert place.exists() != is_refused
    assert str(reported.error()) == "three is refused"


def test_without_an_engine_the_same_graph_raises(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as caught, beam.Pipeline("FnApiRunner") as pipeline:
        _ = pipeline | Chain([1, 2, 3, 4], tmp_path / "published")
    assert is_carried(str(caught.value))
    assert not (tmp_path / "published").exists()


@pytest.fixture(params=["Prism", "job service"])
def engine(request: pytest.FixtureRequest) -> list[str]:
    """Beam's flags for an engine."""
    if request.param == "Prism":
        return ["--runner=prism", f"--prism_location={request.getfixturevalue('prism')}"]
    return ["--runner=portable", f"--job_endpoint={request.getfixturevalue('beam_job_service')}"]


def check_failed(done, code: int, message: str, output: Path) -> None:
    """The command ended with one line of the error, published nothing, and left no report of it."""
    assert done.returncode == code, done.stderr
    last = done.stderr.strip().rpartition("\n")[2]
    assert last.startswith("clozeline: ") and message in last, done.stderr
    assert "Traceback" not in done.stderr and "Trying again" not in done.stderr
    assert not (output / "manifest.json").exists()
    assert not list(output.glob("_unfinished-*/failed-*"))


def test_too_many_bad_records_end_a_job_on_an_engine(run, corpus: Path, tmp_path: Path, engine: list[str]) -> None:
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text(corpus.read_text() + "{\n" * 40)
    began = time.monotonic()
    done = run("python", "-m", "pipeline", "shard", "--input", mixed, "--output", tmp_path / "out", *engine)
    check_failed(done, 3, "above --max_bad_ratio 0.01", tmp_path / "out")
    assert time.monotonic() - began < SECONDS


def test_a_missing_file_ends_a_job_on_an_engine(
    run, text: Path, vocab: Path, tmp_path: Path, engine: list[str]
) -> None:
    damaged = tmp_path / "text"
    shutil.copytree(text, damaged)
    gone = sorted(damaged.glob("text-*.arrow"))[1]
    gone.unlink()
    pairs = ["pairs", "--text", damaged, "--vocab", vocab, "--output", tmp_path / "out", "--objective", "nsp"]
    began = time.monotonic()
    done = run("python", "-m", "pipeline", *pairs, *engine)
    check_failed(done, 3, f"{gone} does not exist", tmp_path / "out")
    assert time.monotonic() - began < SECONDS
