"""Fine-tunes an encoder on sentences with transformers' Trainer and several seeds, for finetune_rival.py.

    python benchmarks/finetune_trainer.py MODEL --data FOLDER --output OUT.json --seeds 3 [--same_draws]

FOLDER has task.toml, and train.jsonl and dev.jsonl with `text` and `label`. OUT.json gets the best accuracy of each
seed on the dev set, measured after each epoch. --same_draws: the initial head, the batches, the dropout masks and the
learning rates are those of `clozeline finetune` (same_draws.py).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from same_draws import arguments_of, trainer_with_same_draws
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    set_seed,
)

from trainer.finetune.task import Task
from trainer.finetune.task_file import read_task


def main() -> None:
    flags = argparse.ArgumentParser(description="Fine-tunes with transformers' Trainer.")
    flags.add_argument("model")
    flags.add_argument("--data", type=Path, required=True)
    flags.add_argument("--output", type=Path, required=True)
    flags.add_argument("--seeds", type=int, required=True)
    flags.add_argument("--same_draws", action="store_true")
    options = flags.parse_args()

    task = read_task(str(options.data / "task.toml"), [])
    tokenizer = AutoTokenizer.from_pretrained(options.model)

    train = read_lines(options.data / "train.jsonl")
    dev = read_lines(options.data / "dev.jsonl")
    names = sorted({line["label"] for line in train})
    sets = [encoded(lines, names, tokenizer, task.training.max_length) for lines in (train, dev)]

    accuracies = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            shared = common_arguments(task, sets, tokenizer, seed, folder)
            if options.same_draws:
                trainer = trainer_with_same_draws(options.model, task, str(options.data), seed, **shared)
            else:
                trainer = plain_trainer(options.model, seed, shared)
            accuracies.append(best_accuracy(trainer))
    options.output.write_text(json.dumps(accuracies))


def read_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def encoded(lines: list[dict[str, str]], names: list[str], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    """Return the examples in the form that Trainer takes: token ids and a label id."""
    examples = []
    for line in lines:
        example = dict(tokenizer(line["text"], truncation=True, max_length=max_length))
        examples.append(example | {"labels": names.index(line["label"])})
    return examples


def common_arguments(task: Task, sets: list[Any], tokenizer: Any, seed: int, folder: str) -> dict[str, Any]:
    """Return the arguments of either Trainer. sets: the training examples and the dev examples."""
    train, dev = sets
    steps_an_epoch = -(-len(train) // task.training.batch)
    steps = steps_an_epoch * task.training.epochs

    arguments = arguments_of(
        task.training,
        folder,
        seed=seed,
        warmup_steps=int(task.training.warmup_ratio * steps),
        per_device_eval_batch_size=64,
        eval_strategy="epoch",
        save_strategy="no",
    )
    return {
        "args": arguments,
        "train_dataset": train,
        "eval_dataset": dev,
        "data_collator": DataCollatorWithPadding(tokenizer),
        "compute_metrics": lambda result: {"accuracy": float(np.mean(result[0].argmax(-1) == result[1]))},
    }


def plain_trainer(model: str, seed: int, shared: dict[str, Any]) -> Trainer:
    """Return Trainer as transformers' scripts use it."""
    set_seed(seed)  # for the random weights of the head

    labels = len({example["labels"] for example in shared["train_dataset"]})
    classifier = AutoModelForSequenceClassification.from_pretrained(model, num_labels=labels)
    return Trainer(model=classifier, **shared)


def best_accuracy(trainer: Trainer) -> float:
    """Train, and return the best accuracy of all epochs."""
    trainer.train()
    return max(line["eval_accuracy"] for line in trainer.state.log_history if "eval_accuracy" in line)


if __name__ == "__main__":
    main()
