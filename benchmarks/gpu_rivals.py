"""Trains a transformers model on a folder of pairs, for comparison with the trainer: a process that gpu_run.py starts.

    python benchmarks/gpu_rivals.py deepspeed|plain --pairs DIR --config CONFIG.json --micro_batch 32 --output FILE

    deepspeed   transformers' model in DeepSpeed (ZeRO-1, bf16, fused AdamW), as both projects' examples set it up
    plain       transformers' own way: its model under bf16 autocast, compiled, torch's fused AdamW, rows padded to the
                longest

Rows are read from the same shards, padded as transformers takes them, and masked by 15%. Attention is torch's
scaled_dot_product_attention where the class has it. One optimizer step is one micro-batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from schemas import shards, storage  # noqa: E402
from schemas.manifest import read_manifest  # noqa: E402
from schemas.row_checks import read_pairs_vocabulary  # noqa: E402
from schemas.vocabulary import Vocabulary  # noqa: E402

MASKED = 0.15
IGNORED = -100


def main(arguments: list[str] | None = None) -> int:
    """Train for a few steps and write the speed to `--output`. Returns 3 if not even one micro-batch fits."""
    flags = argparse.ArgumentParser(description="Trains transformers' model on pairs, and times it.")
    flags.add_argument("kind", choices=["deepspeed", "plain"])
    flags.add_argument("--pairs", required=True)
    flags.add_argument("--config", required=True, help="a config.json with model_type")
    flags.add_argument("--micro_batch", type=int, required=True)
    flags.add_argument("--steps", type=int, default=20)
    flags.add_argument("--warmup", type=int, default=5)
    flags.add_argument("--device", default="cuda")
    flags.add_argument("--output", required=True)
    options = flags.parse_args(arguments)

    try:
        figures = train(options)
    except torch.OutOfMemoryError:
        return 3
    Path(options.output).write_text(json.dumps(figures))
    return 0


def train(options: argparse.Namespace) -> dict[str, float]:
    """Return tokens (without padding) and rows per second, and the peak of memory."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    model = build(json.loads(Path(options.config).read_text()), device)
    step = {"deepspeed": deepspeed_step, "plain": plain_step}[options.kind](model, options)

    # All batches lie ready in pinned memory: a slow collator is not what is compared.
    rows = rows_of(options.pairs, options.micro_batch, model.config.model_type)
    batches = [pinned(batch, device) for batch in islice(rows, options.warmup + options.steps)]
    timed = batches[options.warmup :]
    tokens = sum(int(batch["attention_mask"].sum()) for batch in timed)

    for batch in batches[: options.warmup]:
        step(to_device(batch, device))
    synchronize(device)

    started = time.perf_counter()
    for batch in timed:
        step(to_device(batch, device))
    synchronize(device)

    seconds = time.perf_counter() - started
    peak_bytes = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return {
        "tokens_per_second": tokens / seconds,
        "rows_per_second": options.steps * options.micro_batch / seconds,
        "gigabytes": peak_bytes / 1e9,
    }


def build(config: dict[str, Any], device: torch.device) -> Any:
    """Return transformers' pretraining class of a config, on the device."""
    from transformers import AutoConfig, AutoModelForPreTraining

    built = AutoConfig.for_model(config.pop("model_type"), **config)
    try:
        model = AutoModelForPreTraining.from_config(built, attn_implementation="sdpa")
    except ValueError:  # a class without it, such as Megatron-BERT's
        model = AutoModelForPreTraining.from_config(built, attn_implementation="eager")
    return model.to(device).train()


def deepspeed_step(model: Any, options: argparse.Namespace) -> Callable[[dict[str, Tensor]], None]:
    """Return a step of DeepSpeed's three calls."""
    import deepspeed

    from trainer.engine import start_distributed

    start_distributed(timeout=600)  # a process group of one, as a launcher would set it up
    config = {
        "train_micro_batch_size_per_gpu": options.micro_batch,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "steps_per_print": 10**9,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=options.device == "cuda")
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def step(batch: dict[str, Tensor]) -> None:
        engine.backward(engine(**batch).loss)
        engine.step()

    return step


def plain_step(model: Any, options: argparse.Namespace) -> Callable[[dict[str, Tensor]], None]:
    """Return a step of a plain loop: autocast, backward, clip, AdamW."""
    is_cuda = options.device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=is_cuda)
    called = torch.compile(model, dynamic=False) if is_cuda else model

    def step(batch: dict[str, Tensor]) -> None:
        with torch.autocast(options.device, torch.bfloat16):
            loss = called(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def rows_of(folder: str, micro_batch: int, model_type: str) -> Iterator[dict[str, Tensor]]:
    """Yield batches without end: the rows in order, padded to the folder's longest, and masked."""
    manifest = read_manifest(folder, "pairs")
    vocabulary = read_pairs_vocabulary(folder, manifest)
    schema = shards.pairs_schema(vocabulary.size)
    while True:
        for shard in manifest.shards:
            path = storage.join(folder, shard.path)
            table = shards.decode_table(storage.read(path), path, schema)
            for start in range(0, table.num_rows - micro_batch + 1, micro_batch):
                rows = table.slice(start, micro_batch)
                yield collated(rows.to_pydict(), manifest.options["max_length"], vocabulary, model_type)


def collated(rows: dict[str, list[Any]], longest: int, vocabulary: Vocabulary, model_type: str) -> dict[str, Tensor]:
    """Return a batch as transformers' pretraining classes take it."""
    count = len(rows["input_ids"])
    ids = torch.full((count, longest), vocabulary.special_id("pad"))
    attention = torch.zeros_like(ids)
    segments = torch.zeros_like(ids)
    for i, (row, first_of_b) in enumerate(zip(rows["input_ids"], rows["segment_b_start"], strict=True)):
        ids[i, : len(row)] = torch.tensor(row)
        attention[i, : len(row)] = 1
        segments[i, first_of_b : len(row)] = 1

    masked = (torch.rand(ids.shape) < MASKED) & (attention == 1)
    labels = torch.where(masked, ids, IGNORED)
    ids[masked] = vocabulary.special_id("mask")
    batch = {"input_ids": ids, "attention_mask": attention, "labels": labels}
    if model_type == "roberta":
        return batch

    pair_name = "sentence_order_label" if model_type == "albert" else "next_sentence_label"
    return batch | {"token_type_ids": segments, pair_name: torch.tensor(rows["pair_label"])}


def pinned(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return the batch in pinned memory, if a GPU will read it."""
    if device.type != "cuda":
        return batch
    return {name: tensor.pin_memory() for name, tensor in batch.items()}


def to_device(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
