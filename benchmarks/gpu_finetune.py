"""Fine-tunes a BERT-base with random weights on generated texts, and measures samples per second, for gpu_run.py.

    python benchmarks/gpu_finetune.py ours|plain --folder DIR --output FILE [--dry]

    ours    clozeline finetune
    plain   transformers' Trainer with the same values, as its examples set it up

Both train three epochs in bf16 and evaluate and save after each of them. The time is that of training as each counts it
itself, without loading and without the scores of the end.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

WORDS = [f"word{number}" for number in range(30_000)]
LABELS = 2
EPOCHS = 3
BATCH = 32
RATE = 2e-5
WARMUP = 0.1
MAX_LENGTH = 128
LENGTHS = (16, 120)
"""Words of the shortest and of the longest text. Each is one token."""

TASK = f"""
name = "generated"
kind = "sentence"
data = {{ train = "train.jsonl", dev = "dev.jsonl" }}

[training]
epochs = {EPOCHS}
batch = {BATCH}
lr = {RATE}
warmup_ratio = {WARMUP}
max_length = {MAX_LENGTH}
precision = "PRECISION"
"""


def main(arguments: list[str] | None = None) -> int:
    """Fine-tune with one side, and write its speed to `--output`."""
    flags = argparse.ArgumentParser(description="Fine-tunes on generated texts, and times it.")
    flags.add_argument("side", choices=["ours", "plain"])
    flags.add_argument("--folder", required=True, type=Path, help="for the encoder, the task and results")
    flags.add_argument("--output", required=True, type=Path)
    flags.add_argument("--dry", action="store_true", help="a tiny model and few texts, on a CPU")
    options = flags.parse_args(arguments)

    shutil.rmtree(options.folder, ignore_errors=True)
    write_encoder(options.folder / "encoder", options.dry)
    rows, tokens = write_task(options.folder, options.dry)
    seconds = ours(options.folder) if options.side == "ours" else plain(options.folder, options.dry)
    speeds = {"rows_per_second": EPOCHS * rows / seconds, "tokens_per_second": EPOCHS * tokens / seconds}
    options.output.write_text(json.dumps(speeds))
    return 0


def write_encoder(folder: Path, dry: bool) -> None:
    """Write a BERT-base of transformers with random weights and a vocabulary of whole words."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tiny = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(vocab_size=len(tokens), **(tiny if dry else {}))).save_pretrained(folder)
    BertTokenizer(vocab={token: number for number, token in enumerate(tokens)}).save_pretrained(folder)


def write_task(folder: Path, dry: bool) -> tuple[int, int]:
    """Write a task of random texts, and return its training texts and their tokens, special ones included."""
    draws = random.Random(0)
    tokens = 0
    rows = 64 if dry else 8192
    for name, count in (("dev", 64), ("train", rows)):
        lines = []
        tokens = 0
        for _ in range(count):
            words = draws.choices(WORDS, k=draws.randint(*LENGTHS))
            tokens += len(words) + 2
            lines.append(json.dumps({"text": " ".join(words), "label": f"class {draws.randrange(LABELS)}"}) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(lines))
    (folder / "task.toml").write_text(TASK.replace("PRECISION", "fp32" if dry else "bf16"))
    return rows, tokens


def ours(folder: Path) -> float:
    """Return the seconds of training by `clozeline finetune`. Raises CalledProcessError."""
    words = [sys.executable, "-m", "trainer.finetune", str(folder / "encoder"), "--task", str(folder / "task.toml")]
    subprocess.run([*words, "--output", str(folder / "ours"), "--seeds", "1"], check=True, cwd=ROOT)
    return json.loads((folder / "ours/seed-0/result.json").read_text())["seconds"]


def plain(folder: Path, dry: bool) -> float:
    """Return the seconds of training by transformers' Trainer."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    model = AutoModelForSequenceClassification.from_pretrained(folder / "encoder", num_labels=LABELS)
    arguments = TrainingArguments(
        output_dir=str(folder / "plain"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=64,
        learning_rate=RATE,
        warmup_steps=WARMUP,
        bf16=not dry,
        use_cpu=dry,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        report_to="none",
    )
    sets = {name: features_of(folder / f"{name}.jsonl", tokenizer) for name in ("train", "dev")}
    trainer = Trainer(
        model,
        arguments,
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=sets["train"],
        eval_dataset=sets["dev"],
    )
    return trainer.train().metrics["train_runtime"]


def features_of(path: Path, tokenizer: Any) -> list[dict[str, Any]]:
    """Return the inputs of a file's texts, prepared beforehand."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    encoded = tokenizer([line["text"] for line in lines], truncation=True, max_length=MAX_LENGTH)["input_ids"]
    labels = [int(line["label"].removeprefix("class ")) for line in lines]
    return [{"input_ids": ids, "labels": label} for ids, label in zip(encoded, labels, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
