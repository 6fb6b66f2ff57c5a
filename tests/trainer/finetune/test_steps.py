"""The steps before fine-tuning: general -> domain -> task -> fine-tune, whole, killed anywhere, and on two ranks."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from schemas.manifest import read_manifest
from tests.trainer.finetune.adapting import SMALL, Adapting, results_of
from tests.trainer.ranks import environments

pytestmark = pytest.mark.timeout(900)
"""Each start imports torch and DeepSpeed, and the pipeline's jobs Beam: seconds alone, minutes beside other tests."""


@pytest.fixture
def adapting(tmp_path: Path, encoder, corpus: Path) -> Adapting:
    return Adapting(tmp_path, encoder("bert"), corpus)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, encoder, corpus: Path) -> Adapting:
    """All steps, done without a break."""
    adapting = Adapting(tmp_path_factory.mktemp("whole"), encoder("bert"), corpus)
    done = adapting.run()
    assert done.returncode == 0, done.stderr
    return adapting


# The whole path


def test_each_step_begins_with_the_one_before(finished: Adapting) -> None:
    for name in ("domain", "task"):
        step = finished.output / name
        assert (step / "hf/model.safetensors").exists() and (step / "run/metrics.jsonl").exists()
    assert f'init_from = "{finished.encoder}"' in (finished.output / "domain/recipe.toml").read_text()
    assert f'init_from = "{finished.output}/domain/hf"' in (finished.output / "task/recipe.toml").read_text()

    results = results_of(finished.output)
    assert results["encoder"] == str(finished.output / "task/hf")
    assert len(results["seeds"]) == 2 and (finished.output / "finetune/hf/config.json").exists()


def test_the_task_s_step_reads_the_training_text_alone(finished: Adapting) -> None:
    texts = [json.loads(line)["text"] for line in (finished.output / "task/texts.jsonl").read_text().splitlines()]
    lines = [json.loads(line)["text"] for line in (finished.folder / "train.jsonl").read_text().splitlines()]
    assert texts == list(dict.fromkeys(lines))

    manifest = read_manifest(str(finished.output / "task/pairs"), "pairs")
    assert manifest.totals["rows"] == len(texts), "a row for each example"


def test_two_passes_over_the_text_are_so_many_steps(finished: Adapting) -> None:
    rows = read_manifest(str(finished.output / "task/pairs"), "pairs").totals["rows"]
    lines = (finished.output / "task/run/metrics.jsonl").read_text().splitlines()
    assert len(lines) == -(-2 * rows // 16)


def test_what_is_finished_is_not_done_again(finished: Adapting) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.output.glob("*/hf/*")}
    assert before
    done = finished.run()
    assert done.returncode == 0, done.stderr
    steps = {path: time for path, time in before.items() if path.parent.parent.name != "finetune"}
    assert all(path.stat().st_mtime_ns == time for path, time in steps.items())
    assert "Step domain" not in done.stdout and "Step task" not in done.stdout


# Kills


KILL_WHEN = {
    "the corpus becomes text": "domain",
    "the domain is learned": "domain/run/metrics.jsonl",
    "the domain's encoder is exported": "domain/run/checkpoints/step-00000005/manifest.json",
    "the task's text becomes pairs": "task/texts.jsonl",
    "the task's text is learned": "task/run/metrics.jsonl",
    "the task is learned": "finetune/seed-0/state",
}
"""What is there when a run is killed."""


@pytest.mark.parametrize(
    "moments",
    [["the task's text is learned"], pytest.param(list(KILL_WHEN), marks=pytest.mark.thorough)],
    ids=["once", "in each step"],
)
def test_a_run_that_is_killed_ends_with_the_same_results(
    adapting: Adapting, finished: Adapting, moments: list[str]
) -> None:
    """The killed run has another --output, so that folder's name in the results differs."""
    for moment in moments:
        process = adapting.start()
        wait_for(adapting.output / KILL_WHEN[moment], process)
        jobs = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        psutil.wait_procs(jobs, timeout=20)
        assert not [job for job in jobs if job.is_running()], f"{moment}: jobs outlived the run"

    done = adapting.run()
    assert done.returncode == 0, done.stderr
    found, expected = results_of(adapting.output), results_of(finished.output)
    assert found.pop("encoder") != expected.pop("encoder")
    assert found == expected


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 400
    while not (path.exists() and (path.is_dir() or path.stat().st_size)):
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.005)


def test_a_run_that_is_asked_to_stop_saves_and_says_so(adapting: Adapting) -> None:
    adapting.steps["domain"]["set"] = [*SMALL, "run.max_steps=2000"]
    process = adapting.start()
    wait_for(adapting.output / "domain/run/metrics.jsonl", process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and "Traceback" not in err
    assert list(adapting.output.glob("domain/run/checkpoints/step-*"))


def test_a_stop_during_a_job_of_the_pipeline(adapting: Adapting) -> None:
    process = adapting.start()
    wait_for(adapting.output / "domain", process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75
    assert err.count("\n") == 1 and "he same command " in err


def test_an_interrupt_during_a_job_after_a_training(adapting: Adapting) -> None:
    """There is no step to save, so the command ends at once."""
    process = adapting.start()
    wait_for(adapting.output / "task/texts.jsonl", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        err.splitlines()[-1]
        == "clozeline: interrupted between two trainings. Nothing was lost; the same command continues."
    )


@pytest.mark.thorough
def test_two_ranks_do_all_steps(adapting: Adapting) -> None:
    flags = adapting.flags()
    processes = [adapting.start(*flags, **environment) for environment in environments(2)]
    ended = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    assert len(results_of(adapting.output)["seeds"]) == 2


def test_a_changed_step_does_not_mix_with_later_ones(finished: Adapting) -> None:
    before = dict(finished.steps["domain"])
    finished.steps["domain"]["set"] = [*SMALL, "run.max_steps=6"]
    code, line = finished.fails()
    finished.steps["domain"] = before
    assert code == 2 and "domain was made with another recipe (run.max_steps = " in line
    assert f"remove {finished.output}/domain and {finished.output}/task and {finished.output}/finetune" in line
