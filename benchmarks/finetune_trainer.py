"""Fine-tunes an encoder on sentences with transformers' Trainer and several seeds, for finetune_rival.py.

    python benchmarks/finetune_trainer.py MODEL --data FOLDER --output OUT.json --seeds 3 ...

FOLDER has train.jsonl and dev.jsonl with `text` and `label`. OUT.json gets the best accuracy of each seed on the dev
set, measured after each epoch. Needs the package accelerate, which Trainer imports.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)


def main() -> None:
    flags = argparse.ArgumentParser(description="Fine-tunes by transformers' Trainer.")
    flags.add_argument("model")
    flags.add_argument("--data", type=Path, required=True)
    flags.add_argument("--output", type=Path, required=True)
    flags.add_argument("--seeds", type=int, required=True)
    flags.add_argument("--epochs", type=int, required=True)
    flags.add_argument("--batch", type=int, required=True)
    flags.add_argument("--lr", type=float, required=True)
    flags.add_argument("--warmup_ratio", type=float, required=True)
    flags.add_argument("--weight_decay", type=float, required=True)
    flags.add_argument("--max_length", type=int, required=True)
    options = flags.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    train = read_lines(options.data / "train.jsonl")
    dev = read_lines(options.data / "dev.jsonl")
    names = sorted({line["label"] for line in train})
    sets = [encoded(lines, names, tokenizer, options.max_length) for lines in (train, dev)]

    accuracies = [fine_tuned(seed, names, tokenizer, sets, options) for seed in range(options.seeds)]
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


def fine_tuned(seed: int, names: list[str], tokenizer: Any, sets: list[Any], options: argparse.Namespace) -> float:
    """Train one seed and return the best accuracy of its epochs."""
    train, dev = sets
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=len(names))
    steps = -(-len(train) // options.batch) * options.epochs
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            seed=seed,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch,
            per_device_eval_batch_size=64,
            learning_rate=options.lr,
            warmup_steps=int(options.warmup_ratio * steps),
            weight_decay=options.weight_decay,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=train,
            eval_dataset=dev,
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda result: {"accuracy": float(np.mean(result[0].argmax(-1) == result[1]))},
        )
        trainer.train()
    return max(line["eval_accuracy"] for line in trainer.state.log_history if "eval_accuracy" in line)


if __name__ == "__main__":
    main()
