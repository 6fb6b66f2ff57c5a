"""Task files: defaults by kind, --set, one line for each wrong key, and the resolved task as TOML."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli_w

from schemas.errors import UsageError
from trainer.finetune.files.sets import example_sets
from trainer.finetune.task import Optimizer, Schedule, TaskTrainerSection
from trainer.finetune.task_file import data_folder, dump_task, read_task, shipped_task_names

PAIR = {
    "name": "small",
    "kind": "pair",
    "data": {
        "train": "a/train.tsv",
        "dev": "a/dev.tsv",
        "columns": {"text": "one", "text_pair": "two", "label": "label"},
    },
}


def task_file(folder: Path, content: dict[str, Any]) -> str:
    path = folder / "task.toml"
    path.write_text(tomli_w.dumps(content))
    return str(path)


def test_what_is_left_out_gets_the_kinds_default(tmp_path: Path) -> None:
    task = read_task(task_file(tmp_path, PAIR), [])
    assert (task.metrics, task.data.format, task.data.quotes) == (("accuracy",), "tsv", False)
    assert (task.training.epochs, task.training.max_length, task.training.dropout) == (None, 128, None)

    span = {"name": "squad", "kind": "span", "data": {"train": "train.json", "dev": "dev.json"}}
    task = read_task(task_file(tmp_path, span), ["training.stride=100"])
    assert (task.metrics, task.data.format) == (("answer_f1", "exact_match"), "squad")
    assert (task.training.max_length, task.training.stride) == (384, 100)
    for max_length, stride in [(384, 128), (512, 128), (128, 42), (16, 5)]:
        task = read_task(task_file(tmp_path, span), [f"training.max_length={max_length}"])
        assert (task.training.max_length, task.training.stride) == (max_length, stride)

    task = read_task(task_file(tmp_path, PAIR), ["data.labels=number"])
    assert task.metrics == ("pearson_and_spearman", "pearson", "spearman")


@pytest.mark.parametrize(("width", "rate"), [(128, 1e-3), (256, 3e-4), (384, 1e-4), (768, 2e-5), (1024, 2e-5)])
def test_a_task_without_a_rate_gets_one_for_the_width(tmp_path: Path, width: int, rate: float) -> None:
    task = read_task(task_file(tmp_path, PAIR), ["training.lr=none"])
    assert task.for_encoder(width, 1000).training.lr == rate
    given = read_task(task_file(tmp_path, PAIR), ["training.lr=0.01"])
    assert given.for_encoder(width, 1000).training.lr == 0.01


@pytest.mark.parametrize(("examples", "epochs"), [(1, 20), (100, 20), (1000, 13), (3000, 5), (100_000, 3)])
def test_a_task_without_epochs_passes_more_often_over_little_data(tmp_path: Path, examples: int, epochs: int) -> None:
    task = read_task(task_file(tmp_path, PAIR), [])
    assert task.for_encoder(768, examples).training.epochs == epochs
    given = read_task(task_file(tmp_path, PAIR), ["training.epochs=2"])
    assert given.for_encoder(768, examples).training.epochs == 2


def test_values_are_set_as_for_recipes(tmp_path: Path) -> None:
    changes = ["name=other", "training.lr=5e-5", 'metrics=["f1"]', "data.header=false", "data.columns.text=3"]
    changes += [
        "data.columns.text_pair=4",
        "data.columns.label=-1",
        "data.labels=[0, true]",
        "training.null_threshold=best",
    ]
    task = read_task(task_file(tmp_path, PAIR), changes)
    assert (task.name, task.training.lr, task.metrics) == ("other", 5e-5, ("f1",))
    assert (task.data.columns.text, task.data.columns.label) == (3, -1)
    assert (task.data.labels, task.training.null_threshold) == (("0", "true"), "best")
    assert read_task(task_file(tmp_path, PAIR), ["training.lr=1", "training.lr=none"]).training.lr is None
    assert read_task(task_file(tmp_path, PAIR), ["training.lr=1", "training=none"]).training.lr == 1


def test_files_may_lie_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    content = PAIR | {"data": PAIR["data"] | {"train": ["~/a.tsv", "b.tsv"], "dev": "file:///c.tsv"}}
    task = read_task(task_file(tmp_path, content), ["data.extra.hard=~/d.tsv"])
    paths = [example_set.paths for example_set in example_sets(task, "folder")]
    assert paths == [["/home/ada/a.tsv", "folder/b.tsv"], ["/c.tsv"], ["/home/ada/d.tsv"]]


@pytest.mark.parametrize("name", shipped_task_names())
def test_a_resolved_task_is_read_as_itself(name: str, tmp_path: Path) -> None:
    task = read_task(name, [])
    path = tmp_path / "task.toml"
    path.write_text(dump_task(task))
    assert read_task(str(path), []) == task
    assert task.name == name.partition("/")[2].replace("-", "")
    assert task.source is not None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("training.epoch=1", "unknown key training.epoch. Did you mean training.epochs?"),
        ("data.column.text=a", "unknown key data.column. Did you mean data.columns?"),
        ("data.columns.txt=a", "unknown key data.columns.txt. Did you mean data.columns.text?"),
        ("sourse=a", "expected section.key=value"),
        ("kind=pairs", "kind: expected 'sentence', 'pair', 'choice', 'tags' or 'span', found 'pairs'"),
        (
            "data.labels=numbr",
            "data.labels: expected a list, or 'number', found 'numbr'. Did you mean number? The names",
        ),
        (
            "kind=span",
            'data.format, or the ending of data.train, says "tsv", but a task of the kind span is read from SQuAD '
            'JSON (data.format = "squad") or parquet.',
        ),
        ("data.format=conll", 'says "conll", but a task of the kind pair is read from jsonl or json or tsv'),
        ("kind=sentence", "data.columns.text_pair is not for the kind sentence"),
        ("kind=choice", "data.columns.text is not for the kind choice, which has context, choices, label, id, prefix"),
        ("data.format=xml", "data.format: expected 'jsonl'"),
        ("data.train=none", "data.train is missing. The training file"),
        ("data.header=false", 'data.columns.text is "one", but without a header columns are numbers from 0'),
        ('data.labels=["a"]', "data.labels has 1 label, expected two or more"),
        ('data.labels=["a", "a"]', 'data.labels has "a" twice'),
        ("data.extra.test=a.tsv", 'data.extra has a set "test"'),
        ("data.replace.three.a=b", 'data.replace has "three", which is not in data.columns'),
        ("data.replace.label.a=b", 'data.replace has "label", which holds labels. It replaces texts only.'),
        (
            'metrics=["acuracy"]',
            'metrics has "acuracy", which is not a metric; a task of kind "pair" can have:',
        ),
        ('metrics=["pearson"]', 'metrics has "pearson", which does not serve a task of kind "pair"'),
        ("training.lr=0", "training.lr: input should be greater than 0, found 0"),
        ("training.lr=nan", "training.lr: input should be a finite number"),
        ("training.layer_decay=1.1", "training.layer_decay: input should be less than or equal to 1"),
        ("training.precision=fp16", "training.precision: expected 'fp32' or 'bf16'"),
        ("data.train=[]", "data.train"),
        ('data.format=["tsv"]', "data.format"),
        ('data.columns="x"', "data.columns"),
        ("training.lr=1e30", "training.lr"),
    ],
)
def test_wrong_keys_are_named(change: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read_task(task_file(tmp_path, PAIR), [change])
    message = str(refused.value)
    assert message.startswith(f"--set {change}: ")
    assert expected in message
    assert "\n" not in message


def test_a_format_that_no_ending_implies(tmp_path: Path) -> None:
    path = task_file(tmp_path, PAIR)
    with pytest.raises(UsageError) as refused:
        read_task(path, ["data.train=a/train.xml"])
    assert str(refused.value).startswith(
        f"{path}: data.format is missing. Format of the files; if unset, by the training file's ending: .jsonl, .tsv,"
    )


def test_the_flag_that_is_wrong_is_named_and_not_a_later_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--set data\.labels=\['a','a'\]: data\.labels has \"a\" twice"):
        read_task(task_file(tmp_path, PAIR), ["data.labels=['a','a']", "kind=sentence", "data.columns.text_pair=none"])


def test_each_mistake_names_where_it_is(tmp_path: Path) -> None:
    path = task_file(tmp_path, PAIR | {"training": {"epochs": "many", "batches": 3, "lr": "fast"}})
    with pytest.raises(UsageError) as refused:
        read_task(path, ["training.lr=1", "training.lr=none", "training.batch=big"])
    message = str(refused.value)
    in_file, _, of_flag = message.partition(" --set training.batch=big: ")
    assert in_file.startswith(f"{path}: training.epochs: expected a whole number, found 'many'.")
    assert "unknown key training.batches. Did you mean training.batch?" in in_file
    assert of_flag.startswith("training.batch: expected a whole number, found 'big'.")


def test_files_that_are_no_task(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("name = ")
    (tmp_path / "latin.toml").write_bytes(b'name = "caf\xe9"')
    for name, expected in [
        ("broken.toml", "is not TOML"),
        ("latin.toml", "is not TOML"),
        ("none.toml", "does not exist"),
    ]:
        with pytest.raises(UsageError, match=expected):
            read_task(str(tmp_path / name), [])
    with pytest.raises(UsageError, match=r"Did you mean glue/rte\? .* the name of a shipped task: babylm/boolq, "):
        read_task("glue/rt", [])


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("polarty.toml", " Did you mean {folder}/polarity.toml? Give the path of a task file."),
        ("zzz.toml", " Give the path of a task file."),
        ("none/polarity.toml", " Give the path of a task file."),
    ],
)
def test_a_wrong_path_gets_the_near_file_and_no_list(name: str, ending: str, tmp_path: Path) -> None:
    for near in ("polarity.toml", "names.toml", "polarty.txt"):
        (tmp_path / near).write_text("")
    with pytest.raises(UsageError) as error:
        read_task(str(tmp_path / name), [])
    assert str(error.value) == f"--task {tmp_path / name} does not exist.{ending.format(folder=tmp_path)}"


def test_paths_are_relative_to_data_or_to_the_task_file(tmp_path: Path) -> None:
    path = task_file(tmp_path, PAIR)
    assert data_folder(path, None) == str(tmp_path)
    assert data_folder(path, "s3://bucket/glue") == "s3://bucket/glue"
    assert data_folder("task.toml", None) == "."
    with pytest.raises(UsageError, match="--data"):
        data_folder("glue/rte", None)


def test_only_columns_with_other_names_are_named(tmp_path: Path) -> None:
    content = PAIR | {"data": PAIR["data"] | {"columns": {"text": "sentence1"}}}
    columns = read_task(task_file(tmp_path, content), []).data.columns
    assert (columns.text, columns.text_pair, columns.label) == ("sentence1", "text_pair", "label")


def test_arguments_of_trainer_are_read_and_written(tmp_path: Path) -> None:
    values = {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"a": 1}}
    task = read_task(task_file(tmp_path, PAIR | {"trainer": values}), ["trainer.report_to=wandb"])
    assert task.trainer.model_dump(exclude_none=True) == values | {"report_to": "wandb"}
    assert tomllib.loads(dump_task(task))["trainer"] == values | {"report_to": "wandb"}

    # Trainer takes a list, and refuses a tuple.
    several = read_task(task_file(tmp_path, PAIR), ['trainer.report_to=["wandb", "tensorboard"]'])
    assert several.trainer.report_to == ["wandb", "tensorboard"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("learning_rate=1", r"unknown key trainer.learning_rate. \[trainer\] has lr_scheduler_type, "),
        ("save_strategy=no", r"unknown key trainer.save_strategy. \[trainer\] has lr_scheduler_type, "),
        ("hub_token=secret", "unknown key trainer.hub_token. "),
        ("accelerator_config={dispatch_batches=true}", "unknown key trainer.accelerator_config. "),
        ("lr_sheduler_type=x", "unknown key trainer.lr_sheduler_type.* Did you mean trainer.lr_scheduler_type"),
        ("gradient_accumulation_steps=0", "trainer.gradient_accumulation_steps: .* greater than 0, found 0"),
        ("gradient_accumulation_steps=1.5", "trainer.gradient_accumulation_steps: expected a whole number"),
        ("lr_scheduler_type=greedy", "trainer.lr_scheduler_type: expected 'linear', "),
        ("lr_scheduler_type=cosinus", "trainer.lr_scheduler_type: expected 'linear', .* Did you mean cosine"),
    ],
)
def test_arguments_that_are_taken_or_unknown_are_refused(tmp_path: Path, change: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"^--set trainer.{re.escape(change)}: {reason}"):
        read_task(task_file(tmp_path, PAIR), [f"trainer.{change}"])


def test_an_empty_task_file_lacks_what_has_no_default(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"name is missing\..* kind is missing\..* data is missing\.") as raised:
        read_task(task_file(tmp_path, {}), [])
    assert "metrics" not in str(raised.value)


def test_smoothed_labels_are_not_for_spans(tmp_path: Path) -> None:
    span = {"name": "squad", "kind": "span", "data": {"train": "train.json", "dev": "dev.json"}}
    with pytest.raises(UsageError, match=r"is for classes of texts and words, and this is a task of kind span"):
        read_task(task_file(tmp_path, span), ["trainer.label_smoothing_factor=0.1"])
    with pytest.raises(UsageError, match=r"and this is a task whose labels are numbers"):
        read_task(task_file(tmp_path, PAIR), ["trainer.label_smoothing_factor=0.1", "data.labels=number"])


def test_trainer_has_the_arguments_that_a_task_may_pass() -> None:
    from transformers import TrainingArguments
    from transformers.trainer_utils import SchedulerType
    from transformers.training_args import OptimizerNames

    assert set(TaskTrainerSection.model_fields) <= set(TrainingArguments.__dataclass_fields__)
    assert set(get_args(Schedule)) <= {name.value for name in SchedulerType}
    assert set(get_args(Optimizer)) <= {name.value for name in OptimizerNames}
