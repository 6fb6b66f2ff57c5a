"""The steps before fine-tuning: general -> domain -> task -> fine-tune, killed anywhere, and mistakes in one line."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomli_w

from schemas.errors import ClozelineError
from schemas.manifest import read_manifest
from schemas.vocabulary import read_vocabulary
from tests.conftest import sentence
from tests.trainer.ranks import environments
from trainer.distributed.preemption import StopRequest
from trainer.finetune import cli
from trainer.finetune.steps.drive import run_steps
from trainer.finetune.steps.options import steps_of
from trainer.finetune.steps.schema import TaskStepSection
from trainer.finetune.steps.step_recipe import step_recipe, validated
from trainer.models.pretraining import build_model
from trainer.models.warm_start import warm_start_model

pytestmark = pytest.mark.timeout(900)
"""Each start imports torch and DeepSpeed, and the pipeline's jobs Beam: seconds alone, minutes beside other tests."""

SMALL = [
    "engine.precision=fp32",
    "batch.global_batch=16",
    "run.log_every=1",
    "checkpoint.every=2",
    "schedule.warmup_ratio=0.2",
]


class Adapting:
    """A folder with an encoder, a task, a corpus and a steps file of them."""

    def __init__(self, folder: Path, encoder: Path, corpus: Path):
        self.folder = folder
        self.encoder = encoder
        self.output = folder / "out"
        self.steps: dict[str, Any] = {
            "general": {"folder": str(encoder)},
            "domain": {"recipe": "adapt_domain", "corpus": str(corpus), "set": [*SMALL, "run.max_steps=5"]},
            "task": {"recipe": "adapt_task", "epochs": 2, "set": SMALL},
            "finetune": {"task": "task.toml", "seeds": 2, "set": ["training.epochs=2", "training.save_every=1"]},
        }
        write_task(folder)

    def flags(self) -> list[str]:
        """The flags of the command, once the steps are written."""
        path = self.folder / "steps.toml"
        path.write_text(tomli_w.dumps(self.steps))
        return ["--steps", str(path), "--output", str(self.output)]

    def start(self, *flags: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "trainer.finetune", *(flags or self.flags())],
            env=os.environ | {"DS_ACCELERATOR": "cpu"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *flags: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*flags)
        out, err = process.communicate(timeout=500)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def refusal(self, *flags: str) -> tuple[int, str]:
        """Return the exit code and the line of an error that comes before any rank is started."""
        options = cli.parser("clozeline finetune").parse_args([*(flags or self.flags())])
        with pytest.raises(ClozelineError) as caught:
            steps = steps_of(options)
            assert steps is not None
            run_steps(steps, options.output, StopRequest())
        line = str(caught.value)
        assert "\n" not in line
        return caught.value.exit_code, line

    def fails(self, *flags: str) -> tuple[int, str]:
        """Run what is wrong; returns the exit code and the only line of stderr."""
        done = self.run(*flags)
        assert done.returncode not in (0, 1), done
        assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1, done.stderr
        return done.returncode, done.stderr.strip()


def write_task(folder: Path, texts: list[str] | None = None) -> None:
    """Write a task that asks whether a sentence is about a cat or a dog."""
    rng = random.Random(1)
    for name, count in (("train", 40), ("dev", 12)):
        lines = [{"text": sentence(rng), "label": rng.choice("ab")} for _ in range(count)]
        if texts is not None:
            lines = [line | {"text": text} for line, text in zip(lines, texts, strict=False)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = {"train": "train.jsonl", "dev": "dev.jsonl"}
    training = {"batch": 8, "max_length": 24}
    task = {"name": "letters", "kind": "sentence", "data": files, "training": training}
    (folder / "task.toml").write_text(tomli_w.dumps(task))


def results_of(output: Path) -> dict[str, Any]:
    """results.json without what differs between two runs that are the same."""
    results = json.loads((output / "finetune/results.json").read_text())
    for seed in results["seeds"]:
        del seed["seconds"]
    return results


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


def test_a_run_that_is_killed_in_each_step_ends_with_the_same_results(adapting: Adapting, finished: Adapting) -> None:
    """The killed run has another --output, so that folder's name in the results differs."""
    for moment, path in KILL_WHEN.items():
        process = adapting.start()
        wait_for(adapting.output / path, process)
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
    while not path.exists():
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
    assert err.count("\n") == 1 and "The same command continues." in err


def test_two_ranks_do_all_steps(adapting: Adapting) -> None:
    flags = adapting.flags()
    processes = [adapting.start(*flags, **environment) for environment in environments(2)]
    ended = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    assert len(results_of(adapting.output)["seeds"]) == 2


# Other ways to begin


def test_pretraining_is_continued_on_the_task_s_text(adapting: Adapting, pairs: Path) -> None:
    """The recipe names pairs of its own, so these come first."""
    recipe = {
        "data": {"pairs": str(pairs), "max_length": 24},
        "optimizer": {"lr": 1e-4},
        "batch": {"global_batch": 64, "micro_tokens": 512},
        "run": {"max_steps": 3, "log_every": 1},
    }
    (adapting.folder / "recipe.toml").write_text(tomli_w.dumps(recipe))
    flags = ["--task", str(adapting.folder / "task.toml"), "--output", str(adapting.output)]
    flags += ["--continue_pretraining", str(adapting.folder / "recipe.toml")]
    done = adapting.run(str(adapting.encoder), *flags)
    assert done.returncode == 0, done.stderr
    assert "A batch has" in done.stdout, "the task's text has fewer rows than a batch of 64"

    assert str(pairs) in (adapting.output / "domain/recipe.toml").read_text()
    assert read_manifest(str(adapting.output / "task/pairs"), "pairs").options["max_length"] == 24
    assert results_of(adapting.output)["encoder"] == str(adapting.output / "task/hf")


def test_the_general_encoder_may_be_trained_first(adapting: Adapting, pairs: Path) -> None:
    sizes = ["hidden_size=32", "intermediate_size=64", "num_hidden_layers=2", "num_attention_heads=2"]
    small = [f"model.{size}" for size in sizes]
    changes = [*small, f"data.pairs={pairs}", "run.max_steps=2", "schedule.warmup_steps=1", "batch.micro_batch=8"]
    adapting.steps["general"] = {"recipe": str(Path("tests/recipes/small_bert.toml").absolute()), "set": changes}
    del adapting.steps["domain"]
    done = adapting.run()
    assert done.returncode == 0, done.stderr
    assert f'init_from = "{adapting.output}/general/hf"' in (adapting.output / "task/recipe.toml").read_text()


# Mistakes


MISTAKES: dict[str, tuple[Callable[[dict[str, Any]], Any], int, str]] = {
    "no such recipe": (lambda s: s["task"].update(recipe="adapt_tsk"), 2, "adapt_tsk does not exist. Did you mean"),
    "unknown key": (lambda s: s["task"].update(recpie="x"), 2, "unknown key task.recpie. Did you mean task.recipe?"),
    "unknown step": (lambda s: s.update(tasks={}), 2, "unknown key tasks. Did you mean task?"),
    "unknown key of a recipe": (lambda s: s["task"].update(set=["run.max_step=5"]), 2, "unknown key run.max_step."),
    "no fine-tuning": (lambda s: s.pop("finetune"), 2, "finetune is missing"),
    "no encoder": (lambda s: s.pop("general"), 2, "has no [general]"),
    "no such encoder": (lambda s: s["general"].update(folder="nowhere"), 2, "nowhere has no config.json"),
    "no such task": (lambda s: s["finetune"].update(task="nothing.toml"), 2, "nothing.toml"),
    "no corpus": (lambda s: s["domain"].pop("corpus"), 2, "[domain] needs one of corpus"),
    "rows that are too long": (
        lambda s: s["task"].update(make_pairs={"max_length": 500}),
        2,
        "make_pairs.max_length is 500, but the encoder takes rows of at most 96 tokens",
    ),
    "phases": (lambda s: s["domain"].update(recipe="modernbert_base", set=[]), 2, "has phases"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_before_anything_is_done(adapting: Adapting, mistake: str) -> None:
    change, code, message = MISTAKES[mistake]
    change(adapting.steps)
    assert_refused(adapting, code, message)


def assert_refused(adapting: Adapting, code: int, message: str) -> None:
    found, line = adapting.refusal()
    assert found == code and message in line, line
    assert not (adapting.output / "domain").exists() and not (adapting.output / "task").exists()


def test_steps_in_a_wrong_order_are_refused(adapting: Adapting) -> None:
    steps = adapting.steps
    adapting.steps = {name: steps[name] for name in ("general", "task", "domain", "finetune")}
    assert_refused(adapting, 2, "[domain] stands after [task], but is done before it")


def test_pairs_of_another_vocabulary_are_refused(adapting: Adapting, byte_rows: Path) -> None:
    del adapting.steps["domain"]["corpus"]
    adapting.steps["domain"]["pairs"] = str(byte_rows)
    assert_refused(adapting, 3, "Build the pairs with the folder's vocabulary")


def test_a_task_without_text_is_refused(adapting: Adapting) -> None:
    words = [{"words": [" ", " "], "tags": ["O", "B-X"]}] * 4
    (adapting.folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in words))
    (adapting.folder / "dev.jsonl").write_text("".join(json.dumps(line) + "\n" for line in words))
    task = {"name": "empty", "kind": "tags", "data": {"train": "train.jsonl", "dev": "dev.jsonl"}}
    (adapting.folder / "task.toml").write_text(tomli_w.dumps(task))
    found, line = adapting.refusal()
    assert found in (2, 3) and ("hold no text" in line or "empty" in line or "blank" in line), line


def test_a_changed_step_does_not_mix_with_later_ones(finished: Adapting) -> None:
    before = dict(finished.steps["domain"])
    finished.steps["domain"]["set"] = [*SMALL, "run.max_steps=6"]
    code, line = finished.fails()
    finished.steps["domain"] = before
    assert code == 2 and "domain was made with another recipe" in line
    assert f"remove {finished.output}/domain and {finished.output}/task and {finished.output}/finetune" in line


def test_a_removed_step_takes_later_ones_with_it(finished: Adapting) -> None:
    """They were made from what it left, which may be something else the next time."""
    domain = finished.output / "domain"
    aside = domain.rename(finished.output / "aside")
    code, line = finished.fails()
    aside.rename(domain)
    assert code == 2 and f"{domain} was removed" in line
    assert f"Remove {finished.output}/task and {finished.output}/finetune as well" in line


def test_flags_that_do_not_go_together(adapting: Adapting) -> None:
    flags = adapting.flags()
    assert "--seeds and --steps" in adapting.refusal(*flags, "--seeds", "3")[1]
    assert "has [general], and FOLDER" in adapting.refusal(str(adapting.encoder), *flags)[1]
    assert "FOLDER is missing" in adapting.refusal("--task", "t.toml", "--output", "o")[1]


def test_a_job_s_error_is_the_command_s(adapting: Adapting) -> None:
    adapting.steps["domain"]["corpus"] = "no_such_*.txt"
    code, line = adapting.fails()
    assert code in (2, 3) and "no_such_*.txt" in line


# Encoders


FAMILIES = ["bert", "roberta", "albert", "electra", "modernbert", "eurobert", "xlnet"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_of_a_folder_is_read_from_its_config(encoder, family: str) -> None:
    """Any family is continued: its weights fill the model that its config.json describes."""
    folder = encoder(family)
    section = TaskStepSection(recipe="adapt_task", set=SMALL)
    recipe = validated(step_recipe(section, str(folder), ["pairs"], "run"), section)
    vocabulary = read_vocabulary(str(folder))
    model = build_model(recipe.model, vocabulary.size, 0, vocabulary.special_id("mask"))
    warm_start_model(model, str(folder), vocabulary)
