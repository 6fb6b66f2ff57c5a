"""What a steps file may say: other ways to begin, mistakes in one line, and encoders of every family."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from schemas.manifest import read_manifest
from schemas.vocabulary import read_vocabulary
from tests.trainer.finetune.adapting import SMALL, Adapting, results_of
from trainer.finetune.steps.schema import FinetuneSection, TaskStepSection
from trainer.finetune.steps.step_recipe import fitted, step_recipe, validated
from trainer.finetune.steps.steps_file import continued_steps, read_steps
from trainer.models.hf_load import warm_start_model
from trainer.models.starting_weights import build_model

pytestmark = pytest.mark.timeout(900)
"""Each start imports torch and DeepSpeed, and the pipeline's jobs Beam: seconds alone, minutes beside other tests."""


@pytest.fixture
def adapting(tmp_path: Path, encoder, corpus: Path) -> Adapting:
    return Adapting(tmp_path, encoder("bert"), corpus)


# Other ways to begin


@pytest.mark.thorough
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
    flags += ["--continue_pretraining", str(adapting.folder / "recipe.toml"), "--set_pretraining", "run.max_steps=2"]
    done = adapting.run(str(adapting.encoder), *flags)
    assert done.returncode == 0, done.stderr
    assert "A batch has" in done.stdout, "the task's text has fewer rows than a batch of 64"

    assert str(pairs) in (adapting.output / "domain/recipe.toml").read_text()
    for step in ("domain", "task"):
        assert tomllib.loads((adapting.output / step / "recipe.toml").read_text())["run"]["max_steps"] == 2
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
    "no such recipe": (
        lambda s: s["task"].update(recipe="adapt_tsk"),
        2,
        "steps.toml: task.recipe {folder}/adapt_tsk does not exist. Did you mean adapt_task?",
    ),
    "no such general recipe": (
        lambda s: s.update(general={"recipe": "tny"}),
        2,
        "steps.toml: general.recipe {folder}/tny does not exist. Did you mean tiny?",
    ),
    "unknown key of the general recipe": (
        lambda s: s.update(general={"recipe": "tiny", "set": ["run.max_step=5"]}),
        2,
        "unknown key run.max_step.",
    ),
    "no change": (
        lambda s: s["domain"].update(set=["run"]),
        2,
        "steps.toml: domain.set run: expected section.key=value",
    ),
    "no change of the task": (
        lambda s: s["finetune"].update(set=["training"]),
        2,
        "steps.toml: finetune.set training: expected section.key=value",
    ),
    "unknown key": (lambda s: s["task"].update(recpie="x"), 2, "unknown key task.recpie. Did you mean task.recipe?"),
    "unknown step": (lambda s: s.update(tasks={}), 2, "unknown key tasks. Did you mean task?"),
    "unknown key of a recipe": (lambda s: s["task"].update(set=["run.max_step=5"]), 2, "unknown key run.max_step."),
    "no fine-tuning": (lambda s: s.pop("finetune"), 2, "finetune is missing"),
    "no encoder": (lambda s: s.pop("general"), 2, "has no [general]"),
    "no such encoder": (lambda s: s["general"].update(folder="nowhere"), 2, "nowhere does not exist"),
    "no such task": (
        lambda s: s["finetune"].update(task="nothing.toml"),
        2,
        "steps.toml: finetune.task {folder}/nothing.toml does not exist.",
    ),
    "a shipped task without data": (
        lambda s: s["finetune"].update(task="glue/rte"),
        2,
        "steps.toml: finetune.task glue/rte ships with Clozeline without data. Give the folder of its files with "
        "finetune.data.",
    ),
    "no such corpus": (
        lambda s: s["domain"].update(corpus="corpus/none.jsonl,task.toml"),
        2,
        "steps.toml: domain.corpus {folder}/corpus/none.jsonl matches no file.",
    ),
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
    assert found == code and message.replace("{folder}", str(adapting.folder)) in line, line
    assert not adapting.output.exists()


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


def test_flags_that_do_not_go_together(adapting: Adapting) -> None:
    flags = adapting.flags()
    assert "--seeds and --steps" in adapting.refusal(*flags, "--seeds", "3")[1]
    assert "has [general], and FOLDER" in adapting.refusal(str(adapting.encoder), *flags)[1]
    assert "FOLDER is missing" in adapting.refusal("--task", "t.toml", "--output", "o")[1]

    changes = ["--set_pretraining", "engine.precision=fp32"]
    assert "--set_pretraining and --steps: give `set` in the steps of" in adapting.refusal(*flags, *changes)[1]
    alone = [str(adapting.encoder), "--task", "t.toml", "--output", "o", *changes]
    assert "--set_pretraining changes the recipe of --continue_pretraining" in adapting.refusal(*alone)[1]
    wrong = [*alone, "--continue_pretraining", "adapt_task", "--set_pretraining", "precision"]
    assert "precision" in adapting.refusal(*wrong)[1]


def test_a_job_s_error_is_the_command_s(adapting: Adapting) -> None:
    (adapting.folder / "broken.jsonl").write_text("{\n")
    adapting.steps["domain"]["corpus"] = "brok*.jsonl"
    code, line = adapting.fails()
    assert code in (2, 3) and "broken.jsonl" in line


def test_a_recipe_of_the_command_line_is_named_with_its_flag(adapting: Adapting) -> None:
    flags = ["--task", str(adapting.folder / "task.toml"), "--output", str(adapting.output)]
    _, line = adapting.refusal(str(adapting.encoder), *flags, "--continue_pretraining", "adapt_taks")
    assert line.startswith("--continue_pretraining adapt_taks does not exist. Did you mean adapt_task?")
    assert not adapting.output.exists()


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


@pytest.mark.parametrize(("epochs", "steps"), [(0.1, 1), (1, 1), (2, 3), (3, 4)])
def test_a_step_makes_no_more_passes_than_it_is_told(encoder, pairs: Path, epochs: float, steps: int) -> None:
    """A batch has two thirds of the rows, so that a second step would begin a second pass."""
    batch = read_manifest(str(pairs), "pairs").totals["rows"] * 2 // 3
    section = TaskStepSection(recipe="adapt_task", epochs=epochs, set=[*SMALL, f"batch.global_batch={batch}"])
    content = step_recipe(section, str(encoder("bert")), [str(pairs)], "run")
    content["batch"]["micro_batch"] = batch
    assert fitted(content, section)["run"]["max_steps"] == steps


def test_paths_of_steps_may_lie_in_the_home_folder(adapting: Adapting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(adapting.folder))
    for name in ("a.txt", "b.txt"):
        (adapting.folder / name).write_text("A sentence.\n")
    adapting.steps["domain"]["corpus"] = ["~/a.txt,~/*.txt", f"file://{adapting.folder}/b.txt", "a.txt"]
    adapting.steps["finetune"]["task"] = "~/task.toml"
    path = adapting.flags()[1]

    home = str(adapting.folder)
    steps = read_steps(path, None)
    assert steps.domain is not None
    assert steps.domain.corpus == [f"{home}/a.txt,{home}/*.txt", f"{home}/b.txt", f"{home}/a.txt"]
    assert steps.finetune.task == f"{home}/task.toml"


def test_a_recipe_s_own_pairs_keep_their_weights_however_they_are_written(
    encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    (tmp_path / "recipe.toml").write_text(
        '[data]\npairs = ["~/a", "/b/"]\nweights = [0.9, 0.1]\n[run]\nmax_steps = 9\n'
    )
    task = FinetuneSection(task="task.toml")
    steps = continued_steps(str(encoder("bert")), str(tmp_path / "recipe.toml"), [], task)
    assert steps.domain is not None and isinstance(steps.domain.pairs, list)
    content = step_recipe(steps.domain, str(encoder("bert")), steps.domain.pairs, "run")
    assert content["data"] == {"pairs": ["/home/ada/a", "/b"], "weights": [0.9, 0.1]}
