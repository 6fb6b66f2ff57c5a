"""Whole fine-tunings by the command: what they leave and say, several ranks, other heads, refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import pipeline

from tests import forked
from tests.trainer.finetune.tasks import lines_of, results_of, write_task


def words(folder: Path, task: Path, output: Path, *flags: object) -> list[str]:
    return [str(folder), "--task", str(task), "--output", str(output), *map(str, flags)]


WITH_A_LINE_PER_STEP = """
import sys
from trainer.finetune import seed_events
seed_events.SECONDS_BETWEEN_LINES = 0.0
from trainer.finetune.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"), "sentence", save_every=2)


@pytest.fixture(scope="module")
def finished(encoder: Callable[[str], Path], task: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The output folder of two seeds, never stopped, in a process of their own, and what that printed."""
    output = tmp_path_factory.mktemp("straight") / "out"
    arguments = words(encoder("bert"), task, output, "--seeds", 2)
    done = forked.run(["python", "-m", "tests.run_code", WITH_A_LINE_PER_STEP, *arguments])
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return output, done.stdout


@pytest.fixture(scope="module")
def straight(finished: tuple[Path, str]) -> Path:
    return finished[0]


def test_what_a_fine_tuning_leaves(encoder, straight: Path) -> None:
    assert {path.name for path in straight.iterdir()} == {
        "hf",
        "inputs.json",
        "lock",
        "log.txt",
        "report.html",
        "results.json",
        "seed-0",
        "seed-1",
        "task.toml",
    }
    names = {path.name for path in (straight / "seed-0").iterdir()}
    assert names == {"metrics.jsonl", "predictions_dev.jsonl", "predictions_test.jsonl", "result.json"}

    results = results_of(straight)
    scores = [seed["scores"]["dev"]["accuracy"] for seed in results["seeds"]]
    assert results["summary"]["dev"]["accuracy"]["mean"] == pytest.approx(sum(scores) / 2)
    assert results["best_seed"] == scores.index(max(scores))
    for seed in results["seeds"]:
        epochs = [epoch["accuracy"] for epoch in seed["epochs"]]
        assert seed["scores"]["dev"]["accuracy"] == max(epochs) == epochs[seed["epoch"] - 1]
    page = (straight / "report.html").read_text()
    assert "<svg" in page and "accuracy" in page and "http" not in page
    assert (
        "/".join(encoder("bert").parts[-2:]) + ", task of kind sentence." in page and str(encoder("bert")) not in page
    )


def test_the_model_opens_in_a_pipeline_and_says_what_the_predictions_say(straight: Path, task: Path) -> None:
    best = results_of(straight)["best_seed"]
    predictions = lines_of(straight / f"seed-{best}" / "predictions_dev.jsonl")
    classify = pipeline("text-classification", model=str(straight / "hf"))
    answers = classify([line["text"] for line in lines_of(task.with_name("dev.jsonl"))])
    assert [line["prediction"] for line in predictions] == [answer["label"] for answer in answers]
    assert [line["score"] for line in predictions] == pytest.approx([answer["score"] for answer in answers], abs=1e-5)


def test_the_same_command_again_trains_nothing_and_one_with_more_seeds_adds_them(
    finetune, encoder, straight: Path, task: Path, tmp_path: Path
) -> None:
    before = results_of(straight)
    again = finetune(encoder("bert"), task, straight, "--seeds", 2)
    assert again.returncode == 0 and "epoch 1 of" not in again.stdout
    assert "Seed 1 is finished already, so it is not trained again." in again.stdout
    assert results_of(straight) == before

    one = tmp_path / "one"
    assert finetune(encoder("bert"), task, one, "--first_seed", 1).returncode == 0
    assert finetune(encoder("bert"), task, one, "--seeds", 1).returncode == 0
    assert results_of(one) == before
    for name in ("config.json", "model.safetensors"):
        assert (one / "hf" / name).read_bytes() == (straight / "hf" / name).read_bytes()


def test_an_epoch_says_how_far_it_is(finished: tuple[Path, str]) -> None:
    lines = re.findall(
        r"^seed 1, epoch (\d) of 2: step (\d+) of 12, loss \d\.\d{4}, \d+\.\d examples per second, about \d.* left$",
        finished[1],
        re.MULTILINE,
    )
    assert lines == [("1" if step <= 6 else "2", str(step)) for step in range(1, 13)]


def test_ranks_share_the_work(finetune, encoder, straight: Path, task: Path, tmp_path: Path) -> None:
    """Dropout's draws differ with the number of ranks, so it is off. Trainer's defaults would double the losses."""
    off = ("--set", "training.dropout=0.0")
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert finetune(encoder("bert"), task, alone, *off).returncode == 0
    launcher = ["torchrun", "--standalone", "--nproc_per_node", "2", "-m"]
    line = [*launcher, "trainer.finetune", *words(encoder("bert"), task, together, *off)]
    done = forked.run(line)
    assert done.returncode == 0, done.stderr

    ours, theirs = results_of(alone)["seeds"][0], results_of(together)["seeds"][0]
    assert [e["loss"] for e in ours["epochs"]] == pytest.approx([e["loss"] for e in theirs["epochs"]], rel=1e-4)
    assert ours["scores"]["dev"] == pytest.approx(theirs["scores"]["dev"], abs=0.05)

    other = finetune(encoder("bert"), task, together, *off)
    assert other.returncode == 2 and "holds results with ranks = 2 instead of 1. Undo the change" in other.stderr


def test_a_folder_belongs_to_one_fine_tuning(finetune, encoder, straight: Path, task: Path, tmp_path: Path) -> None:
    cases = [
        (encoder("bert"), ("--set", "training.lr=1e-4"), "results with task.training.lr = 0.001 instead of 0.0001. "),
        (encoder("roberta"), (), "results with encoder = "),
        (encoder("bert"), ("--random_weights",), 'results with weights = "of the encoder" instead of "random"'),
        (encoder("bert"), ("--new_head",), 'instead of "random". Undo the change to continue it, choose another'),
        (
            encoder("bert"),
            ("--set", 'data.labels=["second", "first"]'),
            'results with task.data.labels = (unset) instead of ["second", "first"], labels = ["first", "second"]',
        ),
    ]
    for folder, flags, reason in cases:
        done = finetune(folder, task, straight, *flags)
        assert done.returncode == 2 and reason in done.stderr and "Traceback" not in done.stderr, done.stderr

    (tmp_path / "note.txt").write_text("mine")
    done = finetune(encoder("bert"), task, tmp_path)
    assert done.returncode == 2 and "such as note.txt: it has no inputs.json" in done.stderr


def test_a_kind_that_a_family_cannot_serve_is_refused(finetune, encoder, tmp_path: Path) -> None:
    done = finetune(encoder("eurobert"), write_task(tmp_path, "span"), tmp_path / "out")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "eurobert" in done.stderr and "It serves sentence, pair, tags" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_head_is_replaced_where_that_is_asked(finetune, encoder, straight: Path, task: Path, tmp_path: Path) -> None:
    one_epoch = ("--set", "training.epochs=1")
    kept = finetune(straight / "hf", task, tmp_path / "kept", *one_epoch)
    assert kept.returncode == 0 and "A head of the same size is kept" in kept.stdout
    fresh = finetune(straight / "hf", task, tmp_path / "fresh", "--new_head", *one_epoch)
    assert fresh.returncode == 0 and "is replaced, as --new_head asks" in fresh.stdout


def test_further_arguments_of_trainer(finetune, encoder, task: Path, tmp_path: Path) -> None:
    """Two batches an update of half the size: `batch` stays the number of examples an update."""
    flags = [f"--set=trainer.{change}" for change in ("gradient_accumulation_steps=2", "lr_scheduler_type=cosine")]
    done = finetune(encoder("bert"), task, tmp_path / "out", *flags)
    assert done.returncode == 0 and "6 steps of 8 per epoch" in done.stdout, done.stderr
    assert [epoch["step"] for epoch in results_of(tmp_path / "out")["seeds"][0]["epochs"]] == [6, 12]
    assert "lr_scheduler_type" in (tmp_path / "out/task.toml").read_text()

    for change, reason in (
        ("gradient_accumulation_steps=3", "training.batch is 8, expected a multiple of 3: 1, the number of ranks"),
        ("lr_scheduler_type=cosine_with_min_lr", "refuses values of the task: One of min_lr or min_lr_rate should be"),
        (
            "lr_scheduler_kwargs={a=1}",
            "refuses values of the task: get_linear_schedule_with_warmup() got",
        ),
        ("report_to=wandb", "refuses values of the task: WandbCallback requires wandb to be installed"),
    ):
        done = finetune(encoder("bert"), task, tmp_path / "other", "--set", *f"trainer.{change}".split(" "))
        assert done.returncode == 2 and reason in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert not (tmp_path / "other").exists()


def test_a_service_that_fails_to_start_leaves_the_folder_free(
    finetune, encoder, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(task / "a file is no folder"))
    one_epoch = ("--set", "training.epochs=1")
    failed = finetune(encoder("bert"), task, tmp_path / "out", *one_epoch, "--set", "trainer.report_to=tensorboard")
    assert failed.returncode != 0 and "epoch 1 of" not in failed.stdout
    corrected = finetune(encoder("bert"), task, tmp_path / "out", *one_epoch)
    assert corrected.returncode == 0, corrected.stderr
