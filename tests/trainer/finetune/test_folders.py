"""What a fine-tuned folder holds, and what the next task takes from it: head, labels, dropout, tokenizer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from schemas.errors import StorageError, UsageError
from tests.trainer.finetune.tasks import write_task
from trainer.finetune.files.read import read_task_data
from trainer.finetune.inputs import INPUTS_FILE, check_inputs, record_inputs
from trainer.finetune.job import Order
from trainer.finetune.kinds import kind_of
from trainer.finetune.model import build_model, write_model
from trainer.finetune.opening import open_tokenizer
from trainer.finetune.results import read_seed_result
from trainer.finetune.run import CHANGED, inputs_of, too_large_batch
from trainer.finetune.seed_events import DivergedError
from trainer.finetune.task import Task
from trainer.finetune.task_file import read_task
from trainer.micro_batches import DeviceMemoryError, noting_out_of_memory


def task_of(kind: str, **data: Any) -> Task:
    files = {"train": "t.jsonl", "dev": "d.jsonl"}
    training = {"dropout": data.pop("dropout", None)}
    return Task.model_validate({"name": "test", "kind": kind, "data": files | data, "training": training})


def model_of(folder: Path, task: Task, labels: Sequence[str], seed: int = 0, new_head: bool = False) -> Any:
    kind = kind_of(task, labels, open_tokenizer(str(folder), task.kind))
    job: Any = SimpleNamespace(folder=str(folder), task=task, kind=kind, random_weights=False, new_head=new_head)
    return build_model(job, seed)


@pytest.fixture
def reviews(encoder, tmp_path: Path) -> Path:
    """A BERT that was fine-tuned to tell bad from good, with a dropout of its own."""
    task = task_of("sentence", dropout=0.3)
    write_model(tmp_path, model_of(encoder("bert"), task, ("bad", "good")), str(encoder("bert")), "sentence")
    return tmp_path / "hf"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_model_has_the_permissions_that_the_umask_asks_for(encoder, tmp_path: Path, umask: int) -> None:
    task = task_of("sentence")
    before = os.umask(umask)
    try:
        model = model_of(encoder("bert"), task, ("bad", "good"))
        write_model(tmp_path, model, str(encoder("bert")), "sentence")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "hf").iterdir()}
    assert "model.safetensors" in modes and set(modes.values()) == {0o666 & ~umask}, modes


def head_of(model: Any) -> torch.Tensor:
    return model.classifier.weight.detach()


def test_a_head_with_the_same_labels_is_kept(reviews: Path) -> None:
    first = model_of(reviews, task_of("sentence"), ("bad", "good"), seed=1)
    second = model_of(reviews, task_of("sentence"), ("bad", "good"), seed=2)
    assert torch.equal(head_of(first), head_of(second))


def test_a_head_with_other_labels_is_replaced_and_the_encoder_kept(reviews: Path) -> None:
    """In another order, too: row 0 of the head was trained to mean "bad"."""
    kept = model_of(reviews, task_of("sentence"), ("bad", "good"))
    for labels in (("good", "bad"), ("no", "yes")):
        fresh = model_of(reviews, task_of("sentence"), labels, seed=1)
        assert not torch.equal(head_of(fresh), head_of(kept))
        assert torch.equal(head_of(fresh), head_of(model_of(reviews, task_of("sentence"), labels, seed=1)))
        for (name, values), other in zip(fresh.bert.named_parameters(), kept.bert.parameters(), strict=True):
            assert torch.equal(values, other), name


@pytest.mark.parametrize(("kind", "labels"), [("sentence", ("bad", "good")), ("tags", ("O", "B-X"))])
def test_a_new_head_is_new_in_any_case(reviews: Path, kind: str, labels: tuple[str, str]) -> None:
    """Also one of another kind with the same number of labels, whose weights have the same names."""
    trained = model_of(reviews, task_of("sentence"), ("bad", "good"))
    model = model_of(reviews, task_of(kind), labels, new_head=True)
    assert not torch.equal(head_of(model), head_of(trained))
    assert torch.equal(head_of(model), head_of(model_of(reviews, task_of(kind), labels, new_head=True)))
    for name, values in model.bert.named_parameters():
        assert torch.equal(values, trained.bert.get_parameter(name)), name


def test_a_task_leaves_neither_its_dropout_nor_its_problem_to_the_next(encoder, reviews: Path, tmp_path: Path) -> None:
    assert AutoConfig.from_pretrained(reviews).hidden_dropout_prob == 0.1

    regression = model_of(encoder("bert"), task_of("sentence", labels="number"), ())
    write_model(tmp_path / "numbers", regression, str(encoder("bert")), "sentence")
    folder = tmp_path / "numbers/hf"
    assert AutoConfig.from_pretrained(folder).problem_type == "regression"
    assert model_of(folder, task_of("sentence"), ("bad", "good")).config.problem_type is None


def test_the_tokenizer_is_the_one_of_the_training(encoder, tmp_path: Path) -> None:
    """Words that are already split begin with a space in byte-level BPE."""
    folder = encoder("roberta")
    write_model(tmp_path, model_of(folder, task_of("tags"), ("O", "B-X")), str(folder), "tags")
    sentence = [["The", "cat", "sees"]]
    trained = open_tokenizer(str(folder), "tags")(sentence, is_split_into_words=True)
    written = AutoTokenizer.from_pretrained(tmp_path / "hf")(sentence, is_split_into_words=True)
    assert written["input_ids"] == trained["input_ids"]


def test_a_span_needs_a_classification_token(encoder, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(encoder("bert"), folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | {"post_processor": None}))
    assert open_tokenizer(str(folder), "sentence")
    with pytest.raises(UsageError, match=r"adds no \[CLS\] to its rows"):
        open_tokenizer(str(folder), "span")


@pytest.fixture
def claim(encoder, tmp_path: Path) -> Callable[..., None]:
    """Claims an output folder for a task whose training and extra sets have two files each.

    Returns a function that claims it again, after changes of files or of the task.
    """
    path = write_task(tmp_path, "sentence")
    shutil.copy(tmp_path / "dev.jsonl", tmp_path / "more.jsonl")
    files = ['data.train=["train.jsonl", "more.jsonl"]', 'data.extra.far=["dev.jsonl", "test.jsonl"]']
    output = tmp_path / "out"

    def claim_again(*changes: str) -> None:
        task = read_task(str(path), [*files, *changes])
        examples = read_task_data(task, str(tmp_path))
        inputs = inputs_of(Order(str(encoder("bert")), task, str(tmp_path), examples, output, [0]), ranks=1)
        check_inputs(output, inputs, CHANGED)
        record_inputs(output, inputs)

    claim_again()
    return claim_again


def change_line(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the first line of a JSONL file."""
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(change(json.loads(first))), *others]) + "\n")


def test_how_often_checkpoints_are_saved_is_no_other_task(claim) -> None:
    claim("training.save_every=7")


def test_more_than_three_differences_are_counted(claim, tmp_path: Path) -> None:
    for file in ("more.jsonl", "dev.jsonl", "test.jsonl"):
        change_line(tmp_path / file, lambda line: line | {"text": "Another text."})
    with pytest.raises(UsageError, match=r"examples\.test \(test\.jsonl\) = .* and 1 more difference\. "):
        claim()


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("more.jsonl", r"examples\.train \(train.jsonl, more\.jsonl\) = "),
        (
            "test.jsonl",
            r"examples\.test \(test\.jsonl\) = .* instead of .*, examples\.far \(dev\.jsonl, test\.jsonl\) = ",
        ),
    ],
)
def test_files_of_a_changed_set_are_named(claim, tmp_path: Path, file: str, told: str) -> None:
    change_line(tmp_path / file, lambda line: line | {"text": "Another text."})
    with pytest.raises(UsageError, match=f"holds results with {told}"):
        claim()


@pytest.mark.parametrize("content", ["", "[1]", '"x"', "{"])
def test_a_damaged_record_is_named(claim, tmp_path: Path, content: str) -> None:
    """What the folder belongs to cannot be told, so nothing is said of the task or its data."""
    (tmp_path / "out" / INPUTS_FILE).write_text(content)
    with pytest.raises(UsageError, match=r"inputs\.json is damaged, so it is not known what .* Undo the change"):
        claim()


def test_inputs_may_be_added_and_files_of_something_else_stay(tmp_path: Path) -> None:
    record_inputs(tmp_path, {"task": {"a": 1}})
    check_inputs(tmp_path, {"encoder": "x", "task": {"a": 1}}, "")
    record_inputs(tmp_path, {"encoder": "x"})
    with pytest.raises(UsageError, match=r'encoder = "x" instead of "y", task\.b = \(unset\) instead of 2\. Try\.'):
        check_inputs(tmp_path, {"encoder": "y", "task": {"a": 1, "b": 2}}, "Try.")
    (tmp_path / INPUTS_FILE).rename(tmp_path / "other")
    with pytest.raises(UsageError, match=r"such as other: it has no inputs\.json"):
        check_inputs(tmp_path, {}, "")


@pytest.mark.parametrize("kind", ["sentence", "span"])
def test_a_last_update_that_was_too_large_is_an_error(finetune, encoder, tmp_path: Path, kind: str) -> None:
    """The loss of the only step is finite. What the model computes after it is not."""
    task = write_task(tmp_path / "task", kind, train=8, epochs=1, lr=1.0, warmup_ratio=0.0, weight_decay=1e38)
    done = finetune(encoder("bert"), task, tmp_path / "out")
    assert done.returncode == 1, done.stderr
    assert "scores that are NaN or infinite. Lower training.lr" in done.stderr and "Traceback" not in done.stderr
    assert DivergedError.everywhere and not (tmp_path / "out/hf").exists()


def test_running_out_of_memory_says_what_takes_less() -> None:
    noting = noting_out_of_memory(lambda: too_large_batch(torch.device("cpu")))
    with pytest.raises(DeviceMemoryError, match=r"^out of memory on cpu\. Lower training\.batch"), noting:
        torch.empty(1 << 60)
    with pytest.raises(RuntimeError, match="other"), noting_out_of_memory(lambda: ""):
        raise RuntimeError("other")


def test_a_result_that_cannot_be_read_is_not_trained_again(tmp_path: Path) -> None:
    assert read_seed_result(tmp_path) is None
    (tmp_path / "result.json").mkdir()
    with pytest.raises(StorageError, match=r"result\.json cannot be read"):
        read_seed_result(tmp_path)
