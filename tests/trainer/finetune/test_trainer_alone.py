"""transformers' Trainer without us: the same weights where it is right, and other losses where batches add up.

If the last test fails with a new version of transformers, what trainer/finetune/fit.py adds there may go.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from tests.trainer.finetune.tasks import lines_of, write_task

SEED = 3
LABELS = ["first", "second"]
TAGS = ["B-WHAT", "B-WHO", "O"]
VALUES: dict[str, Any] = {"epochs": 2, "batch": 8, "lr": 5e-3, "weight_decay": 0.5, "warmup_ratio": 0.25}


def encoded_sentences(path: Path, tokenizer: Any) -> list[dict[str, Any]]:
    return [dict(tokenizer(line["text"])) | {"labels": LABELS.index(line["label"])} for line in lines_of(path)]


def encoded_tags(path: Path, tokenizer: Any) -> list[dict[str, Any]]:
    rows = []
    for line in lines_of(path):
        row = tokenizer(line["words"], is_split_into_words=True)
        words = row.word_ids()
        is_first = [word is not None and word != before for word, before in zip(words, [None, *words], strict=False)]
        tags = [TAGS.index(line["tags"][word]) if first else -100 for word, first in zip(words, is_first, strict=True)]
        rows.append(dict(row) | {"labels": tags})
    return rows


def encoded_questions(path: Path, tokenizer: Any) -> list[dict[str, Any]]:
    rows = []
    for paragraph in json.loads(path.read_text())["data"][0]["paragraphs"]:
        [question] = paragraph["qas"]
        row = tokenizer(question["question"], paragraph["context"], return_offsets_mapping=True)
        offsets = row.pop("offset_mapping")
        places = [0]  # [CLS], where there is no answer
        for answer in question["answers"]:
            begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
            in_context = [place for place, sequence in enumerate(row.sequence_ids()) if sequence == 1]
            places = [place for place in in_context if offsets[place][0] < end and offsets[place][1] > begin]
        rows.append(dict(row) | {"start_positions": places[0], "end_positions": places[-1]})
    return rows


class Encoded(Dataset):
    """Rows as a script would encode them."""

    def __init__(self, rows: list[dict[str, Any]]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.rows[number]


SCRIPTS: dict[str, tuple[Any, Any, Any, int]] = {
    "sentence": (AutoModelForSequenceClassification, DataCollatorWithPadding, encoded_sentences, 2),
    "tags": (AutoModelForTokenClassification, DataCollatorForTokenClassification, encoded_tags, 3),
    "span": (AutoModelForQuestionAnswering, DataCollatorWithPadding, encoded_questions, 2),
}
"""What a script for a kind of task uses: the model, the collator, the rows and the number of labels."""


def plain(encoder: Path, folder: Path, output: Path, kind: str = "sentence", **arguments: Any) -> Trainer:
    """A Trainer as a script would make it, with VALUES under Trainer's names."""
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    set_seed(SEED)
    auto_class, collator, encoded, labels = SCRIPTS[kind]
    model = auto_class.from_pretrained(encoder, num_labels=labels)
    ending = "json" if kind == "span" else "jsonl"
    return Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(output),
            per_device_train_batch_size=VALUES["batch"],
            learning_rate=VALUES["lr"],
            weight_decay=VALUES["weight_decay"],
            warmup_steps=VALUES["warmup_ratio"],
            seed=SEED,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            **{"num_train_epochs": VALUES["epochs"], **arguments},
        ),
        train_dataset=Encoded(encoded(folder / f"train.{ending}", tokenizer)),
        eval_dataset=Encoded(encoded(folder / f"dev.{ending}", tokenizer)),
        data_collator=collator(tokenizer),
    )


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_plain_script_ends_with_the_same_weights_and_losses(finetune, encoder, kind: str, tmp_path: Path) -> None:
    """With random batches, which Trainer draws rightly. Decay and rate are high, so that a difference would show.

    Only of sentences it trains two epochs, among which the scores choose.
    """
    values = VALUES | ({} if kind == "sentence" else {"epochs": 1})
    task = write_task(tmp_path / "task", kind, group_by_length=False, **values)
    done = finetune(encoder("bert"), task, tmp_path / "out", "--first_seed", SEED)
    assert done.returncode == 0, done.stderr
    seed = json.loads((tmp_path / f"out/seed-{SEED}/result.json").read_text())

    steps: dict[str, Any] = {"num_train_epochs": values["epochs"], "logging_steps": 1, "save_strategy": "no"}
    if kind == "sentence":
        steps |= {"eval_strategy": "epoch", "save_strategy": "epoch"}
        steps |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_accuracy"}
    threads = torch.get_num_threads()
    torch.set_num_threads(json.loads((tmp_path / "out/inputs.json").read_text())["threads"]["number"])
    try:
        trainer = plain(encoder("bert"), task.parent, tmp_path / "plain", kind, **steps)
        if kind == "sentence":
            trainer.compute_metrics = lambda found: {
                "accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())
            }
        trainer.train()
    finally:
        torch.set_num_threads(threads)

    ours = SCRIPTS[kind][0].from_pretrained(tmp_path / "out/hf").state_dict()
    assert trainer.model is not None
    for name, weight in trainer.model.state_dict().items():
        assert torch.equal(ours[name], weight), name

    history = trainer.state.log_history
    losses = [line["loss"] for line in history if "loss" in line]
    assert [epoch["loss"] for epoch in seed["epochs"]] == [
        sum(losses[first : first + 6]) / 6 for first in range(0, len(losses), 6)
    ]
    if kind == "sentence":
        found = [line["eval_accuracy"] for line in history if "eval_accuracy" in line]
        assert [epoch["accuracy"] for epoch in seed["epochs"]] == found


def test_accumulated_batches_are_averaged(encoder, tmp_path: Path) -> None:
    """Trainer takes BERT's classifier for one that divides by the number of labels that it passes, and it is not."""
    task = write_task(tmp_path / "task", "sentence", **VALUES)
    first_losses = {}
    for accumulated in (1, 2):
        for accepts in (True, False):
            arguments = {"gradient_accumulation_steps": accumulated, "logging_steps": 1, "save_strategy": "no"}
            trainer = plain(encoder("bert"), task.parent, tmp_path / "plain", max_steps=1, **arguments)
            assert trainer.model_accepts_loss_kwargs
            trainer.model_accepts_loss_kwargs = accepts
            trainer.train()
            first_losses[accumulated, accepts] = trainer.state.log_history[0]["loss"]
    assert first_losses[2, True] == pytest.approx(2 * first_losses[1, True], rel=0.2)
    assert first_losses[2, False] == pytest.approx(first_losses[1, False], rel=0.2)
