"""Fine-tuning against transformers' Trainer: with the same random choices, both end with the same weights.

Trainer gets examples that are encoded as in transformers' own scripts, and uses its collators and the model's loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoTokenizer,
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)

from tests.trainer.finetune.conftest import SIZES
from tests.trainer.finetune.same_draws import arguments_of, trainer_with_same_draws
from tests.trainer.finetune.tasks import write_task
from trainer.finetune.kinds.table import KINDS
from trainer.finetune.task import Task
from trainer.finetune.task_file import read_task

SEED = 0
LAST_LAYER = SIZES["num_hidden_layers"] - 1
IGNORED = -100

FAMILIES = {
    "sentence": ["bert", "albert"],
    "pair": ["modernbert", "eurobert"],
    "choice": ["roberta"],
    "tags": ["xlnet", "bert"],
    "span": ["electra"],
}

Line = dict[str, Any]


def read_examples(folder: Path, kind: str) -> list[Line]:
    if kind == "span":
        paragraphs = json.loads((folder / "train.json").read_text())["data"]
        return [paragraph for article in paragraphs for paragraph in article["paragraphs"]]
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def encoded_sentence(tokenizer: Any, line: Line) -> Line:
    return tokenizer(line["text"]) | {"labels": ["first", "second"].index(line["label"])}


def encoded_pair(tokenizer: Any, line: Line) -> Line:
    return tokenizer(line["text"], line["text_pair"]) | {"labels": line["label"]}


def encoded_choice(tokenizer: Any, line: Line) -> Line:
    choices = line["choices"]
    return tokenizer([line["context"]] * len(choices), choices) | {"labels": line["label"]}


def encoded_tags(tokenizer: Any, line: Line) -> Line:
    encoding = tokenizer(line["words"], is_split_into_words=True)
    names = ["B-WHAT", "B-WHO", "O"]
    labels = []
    word_before = None
    for word in encoding.word_ids():
        is_first_piece = word is not None and word != word_before
        labels.append(names.index(line["tags"][word]) if is_first_piece else IGNORED)
        word_before = word
    return encoding | {"labels": labels}


def encoded_span(tokenizer: Any, line: Line) -> Line:
    (question,) = line["qas"]
    encoding = tokenizer(question["question"], line["context"])
    if question["is_impossible"]:
        return encoding | {"start_positions": 0, "end_positions": 0}

    (answer,) = question["answers"]
    first = answer["answer_start"]
    last = first + len(answer["text"]) - 1

    return encoding | {
        "start_positions": encoding.char_to_token(first, sequence_index=1),
        "end_positions": encoding.char_to_token(last, sequence_index=1),
    }


ENCODED: dict[str, Callable[[Any, Line], Line]] = {
    "sentence": encoded_sentence,
    "pair": encoded_pair,
    "choice": encoded_choice,
    "tags": encoded_tags,
    "span": encoded_span,
}

COLLATORS: dict[str, Any] = {
    "choice": DataCollatorForMultipleChoice,
    "tags": DataCollatorForTokenClassification,
}


def weights_by_trainer(task: Task, task_folder: Path, encoder: Path, scratch: Path) -> dict[str, torch.Tensor]:
    """The final weights of Trainer, which starts from our initial weights and takes our batches."""
    tokenizer = AutoTokenizer.from_pretrained(encoder, add_prefix_space=True)
    trainer = trainer_with_same_draws(
        str(encoder),
        task,
        str(task_folder),
        SEED,
        args=arguments_of(task.training, str(scratch), save_strategy="no"),
        train_dataset=[dict(ENCODED[task.kind](tokenizer, line)) for line in read_examples(task_folder, task.kind)],
        data_collator=COLLATORS.get(task.kind, DataCollatorWithPadding)(tokenizer),
    )
    trainer.train()
    return trainer.model.state_dict()


def has_no_gradient(name: str, kind: str) -> bool:
    """Whether a weight adds the same number to all scores of a softmax, so that its true gradient is zero.

    What remains is rounding, which AdamW scales up to the size of any other gradient.
    """
    of_scores = {
        "choice": ("key.bias", "classifier.bias"),
        "span": ("key.bias", "qa_outputs.bias", f"layer.{LAST_LAYER}.output.LayerNorm.bias"),
    }
    return name.endswith(of_scores.get(kind, "key.bias"))


CASES = [(kind, family) for kind, families in FAMILIES.items() for family in families]


@pytest.mark.parametrize(("kind", "family"), CASES)
def test_the_weights_are_those_of_trainer(finetune, encoder, kind: str, family: str, tmp_path: Path) -> None:
    """Decay and rate are high, so that a weight that decays in only one of the programs differs much."""
    values = {"epochs": 1, "lr": 5e-3, "weight_decay": 0.5, "warmup_ratio": 0.25, "dropout": 0.1}
    path = write_task(tmp_path / "task", kind, train=44, max_length=96, stride=16, **values)
    done = finetune(encoder(family), path, tmp_path / "out")
    assert done.returncode == 0, done.stderr

    theirs = weights_by_trainer(read_task(str(path), []), path.parent, encoder(family), tmp_path / "scratch")
    auto_class = getattr(transformers, KINDS[kind].model_class)
    ours = auto_class.from_pretrained(tmp_path / "out/hf").state_dict()
    assert ours.keys() == theirs.keys()
    distances = {name: float((weight - theirs[name]).abs().max()) for name, weight in ours.items()}
    unequal = {name: distance for name, distance in distances.items() if distance > 1e-5}
    assert [name for name in unequal if not has_no_gradient(name, kind)] == []
