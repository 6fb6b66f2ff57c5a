"""A real Flink cluster writes the bytes of a local run, also when it loses a TaskManager or a worker on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from schemas.manifest import FolderKind, read_manifest
from tests.pipeline.engines.conftest import Flink
from tests.processes import wait_for

SECONDS = 120
"""After which a job counts as hung, on a busy machine too."""


@pytest.fixture(scope="module")
def large_corpus(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight files, so that two workers are busy for some seconds."""
    folder = tmp_path_factory.mktemp("flink_corpus")
    for number in range(8):
        texts = [f"File {number}, part {part}. {text}" for part in range(8) for text in documents]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


@pytest.fixture(scope="module")
def local_text(command, large_corpus: Path) -> Path:
    """The text shards of a local run."""
    folder = large_corpus / "local" / "text"
    assert command(*shard(large_corpus, folder)).returncode == 0
    return folder


def shard(corpus: Path, output: Path) -> list[str]:
    return ["shard", "--input", f"{corpus}/*.jsonl", "--output", str(output), "--num_shards=8"]


def pairs(text: Path, vocab: Path, output: Path) -> list[str]:
    objective = ["--objective=nsp", "--max_length=64", "--dupe_factor=2"]
    return ["pairs", "--text", str(text), "--vocab", str(vocab), "--output", str(output), *objective]


def run_and_disturb(arguments: list[str], output: Path, piece: str, disturb: Callable[[], None]) -> str:
    """Run a command and call `disturb` once a first piece is finished. Returns what it printed on stderr."""
    command = [sys.executable, "-m", "pipeline", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: list(output.glob(f"_unfinished-*/{piece}")), "no piece was written", process, seconds=SECONDS)
        disturb()
        _, shown = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, shown
    assert "Traceback" not in shown
    return shown


def check_equal(output: Path, local: Path, kind: FolderKind) -> None:
    """The folders have the same fingerprint and files, and nothing is left over."""
    assert read_manifest(str(output), kind).fingerprint == read_manifest(str(local), kind).fingerprint
    assert sorted(path.name for path in output.iterdir()) == sorted(path.name for path in local.iterdir())


@pytest.mark.thorough
def test_a_killed_task_manager_leaves_no_trace(
    flink: Flink, large_corpus: Path, local_text: Path, tmp_path: Path
) -> None:
    output = tmp_path / "text"
    job = [*shard(large_corpus, output), *flink.flags]
    run_and_disturb(job, output, "split-*.json", lambda: flink.kill_task_manager(1))
    check_equal(output, local_text, "text")


@pytest.fixture(scope="module")
def local_pairs(command, local_text: Path, vocab: Path) -> Path:
    """The pairs of a local run."""
    folder = local_text.parent / "pairs"
    assert command(*pairs(local_text, vocab, folder)).returncode == 0
    return folder


@pytest.mark.thorough
def test_a_killed_worker_leaves_no_trace(
    flink: Flink, pool, local_text: Path, local_pairs: Path, vocab: Path, tmp_path: Path
) -> None:
    """With the default cache of workers, Flink may give the dead worker out again until its restarts are used up."""

    def kill_worker() -> None:
        workers = [
            child for child in psutil.Process(pool.process.pid).children(recursive=True) if child.num_threads() > 5
        ]
        os.kill(workers[0].pid, signal.SIGKILL)

    output = tmp_path / "pairs"
    job = [*pairs(local_text, vocab, output), *flink.flags]
    run_and_disturb(job, output, "pairs-*.json", kill_worker)
    check_equal(output, local_pairs, "pairs")


@pytest.mark.thorough
def test_a_task_manager_killed_in_pairs_leaves_no_trace(
    own_flink: Flink, local_text: Path, local_pairs: Path, vocab: Path, tmp_path: Path
) -> None:
    output = tmp_path / "pairs"
    job = [*pairs(local_text, vocab, output), *own_flink.flags]
    run_and_disturb(job, output, "pairs-*.json", lambda: own_flink.kill_task_manager(1))
    check_equal(output, local_pairs, "pairs")


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_job_that_is_stopped_while_flink_gets_it_ends_before_its_folder_is_free(
    own_flink: Flink, large_corpus: Path, local_text: Path, tmp_path: Path
) -> None:
    """Beam's job server calls it canceled while it submits it, and Flink then runs it. A busy machine takes long."""
    output = tmp_path / "text"
    job = [sys.executable, "-m", "pipeline", *shard(large_corpus, output), *own_flink.flags]
    process = subprocess.Popen(job, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "has been submitted" not in process.stderr.readline():
        assert process.poll() is None
    process.terminate()
    told = process.communicate(timeout=2 * SECONDS)[1]

    assert process.returncode == 130 and "Traceback" not in told, told
    if "was canceled" not in told:
        assert "of FlinkRunner was asked to end, has not ended yet and may still run" in told, told
        refused = subprocess.run(job, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert refused.returncode == 2 and "may still run on its engine" in refused.stderr, refused.stderr
        wait_for(lambda: not list(output.glob("_lease-*")), "the job does not end itself", seconds=3 * SECONDS)

    assert not list(output.glob("_lease-*")) and not (output / "manifest.json").exists()
    done = subprocess.run(job, capture_output=True, text=True, timeout=3 * SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    check_equal(output, local_text, "text")
