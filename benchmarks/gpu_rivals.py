"""Trains a transformers model on a folder of pairs, for comparison with the trainer, as a process of gpu_run.py.

    python benchmarks/gpu_rivals.py deepspeed|plain --pairs DIR --config CONFIG.json --step_rows 512 --micro_batch 256
                                    --output FILE

    deepspeed   transformers' model in DeepSpeed (ZeRO-1, bf16, fused AdamW), set up as in both projects' examples
    plain       transformers' model without DeepSpeed: bf16 autocast, torch.compile, torch's fused AdamW

Rows are masked, and padded to the folder's maximum length. Step n takes the rows of the trainer's global batch n, in
the fewest micro-batches of at most `--micro_batch` rows. Attention is torch's scaled_dot_product_attention if the model
class supports it.

Shape suffixes: B rows, T their tokens, concatenated.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from schemas.vocabulary import Vocabulary  # noqa: E402
from trainer.data.folder import PairFolder  # noqa: E402
from trainer.data.order import order_of  # noqa: E402
from trainer.data.rows import PairRows, join_rows  # noqa: E402
from trainer.models.batch import IGNORE_INDEX  # noqa: E402

PAIRED = ("bert", "albert")
"""Kinds of models (as in config.json) with segments and a pair label."""

Inputs = dict[str, Tensor]
"""The arguments of a pretraining class of transformers."""

TakeStep = Callable[[list[Inputs]], None]
"""Makes one update of the weights from the micro-batches of a step."""


def main(arguments: list[str] | None = None) -> int:
    """Train for a few steps and write the speed to `--output`. Returns 3 if the GPU runs out of memory."""
    flags = argparse.ArgumentParser(description="Trains transformers' model on pairs, and times it.")
    flags.add_argument("kind", choices=["deepspeed", "plain"])
    flags.add_argument("--pairs", required=True)
    flags.add_argument("--config", required=True, help="a config.json with model_type")
    size = flags.add_mutually_exclusive_group(required=True)
    size.add_argument("--step_rows", type=int, help="rows of an optimizer step")
    size.add_argument("--step_tokens", type=int, help="tokens of an optimizer step, without padding")
    flags.add_argument("--micro_batch", type=int, required=True, help="rows at once, at most")
    flags.add_argument("--seed", type=int, default=1, help="of the order of rows, as run.seed")
    flags.add_argument("--masked", type=float, default=0.15, help="the share of tokens to predict")
    flags.add_argument("--steps", type=int, default=20)
    flags.add_argument("--warmup", type=int, default=10)
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
    """Return the speed in tokens without padding, the sizes of steps and micro-batches, and the peak memory."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    config = json.loads(Path(options.config).read_text())
    steps = steps_of(options, config["model_type"])
    model = build(config, device)

    micro_batches = len(steps[0].micro_batches)
    rows = len(steps[0].micro_batches[0]["input_ids"])
    if options.kind == "deepspeed":
        take_step = deepspeed_step(model, rows, micro_batches, options.device)
    else:
        take_step = plain_step(model, options.device)

    # All batches are prepared in pinned memory, because the comparison should not depend on a slow collator.
    steps = [replace(step, micro_batches=[pinned(one, device) for one in step.micro_batches]) for step in steps]
    timed = steps[options.warmup :]
    for step in steps[: options.warmup]:
        take_step([to_device(one, device) for one in step.micro_batches])
    synchronize(device)

    started = time.perf_counter()
    for step in timed:
        take_step([to_device(one, device) for one in step.micro_batches])
    synchronize(device)

    seconds = time.perf_counter() - started
    tokens = sum(step.tokens for step in timed)
    return {
        "tokens_per_second": tokens / seconds,
        "step_tokens": tokens / len(timed),
        "micro_batch_rows": rows,
        "gigabytes": peak_bytes(device) / 1e9,
    }


def steps_of(options: argparse.Namespace, model_type: str) -> list[Step]:
    """Return the batches of all steps, on the CPU."""
    folder = PairFolder(options.pairs)
    by_tokens = options.step_tokens is not None
    size = options.step_tokens if by_tokens else options.step_rows
    rows = rows_of_steps(folder, size, by_tokens, options.seed, options.warmup + options.steps)

    count, room = cut(rows, options.micro_batch)
    form = Form(room, folder.max_length, folder.vocabulary, model_type, options.masked)
    steps = [step_of(one, count, form) for one in rows]
    folder.close()
    return steps


def build(config: dict[str, Any], device: torch.device) -> Any:
    """Return transformers' pretraining class of a config, on the device."""
    import transformers

    from trainer.models.hf_config import AUTO_CLASSES

    auto_class = getattr(transformers, AUTO_CLASSES[config["model_type"]])
    built = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    try:
        model = auto_class.from_config(built, attn_implementation="sdpa")
    except ValueError:  # a class without it, such as Megatron-BERT's
        model = auto_class.from_config(built, attn_implementation="eager")
    return model.to(device).train()


def deepspeed_step(model: Any, rows: int, micro_batches: int, device: str) -> TakeStep:
    """Return a step of DeepSpeed: forward, backward and step for each micro-batch. DeepSpeed updates after the last."""
    import deepspeed

    from trainer.distributed.process_group import start_distributed

    start_distributed(timeout=600)  # a process group of one, as a launcher would set it up
    config = {
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "steps_per_print": 10**9,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")

    # BF16_Optimizer runs the garbage collector for each memory figure that it prints. Freezing objects saves seconds.
    gc.freeze()
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    gc.unfreeze()

    def step(batches: list[Inputs]) -> None:
        for batch in batches:
            engine.backward(engine(**batch).loss)
            engine.step()

    return step


def plain_step(model: Any, device: str) -> TakeStep:
    """Return a step of a plain training loop: autocast, backward, gradient clipping and AdamW."""
    is_cuda = device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=is_cuda)
    called = torch.compile(model, dynamic=False) if is_cuda else model

    def step(batches: list[Inputs]) -> None:
        for batch in batches:
            with torch.autocast(device, torch.bfloat16):
                loss = called(**batch).loss
            (loss / len(batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def pinned(batch: Inputs, device: torch.device) -> Inputs:
    """Return the batch in pinned memory, if a GPU will read it."""
    if device.type != "cuda":
        return batch
    return {name: tensor.pin_memory() for name, tensor in batch.items()}


def to_device(batch: Inputs, device: torch.device) -> Inputs:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory so far, like the trainer's peak_memory_bytes: of tensors on a GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# The trainer's batches as inputs of transformers


@dataclass(frozen=True)
class Step:
    """One optimizer step: its micro-batches, all of the same shape, and their total rows and tokens without padding."""

    micro_batches: list[Inputs]
    rows: int
    tokens: int


@dataclass(frozen=True)
class Form:
    """The format of micro-batches.

    rows: rows per micro-batch, some of which may be fillers. longest: the length that rows are padded to.
    model_type: as in config.json. masked: the share of tokens to predict.
    """

    rows: int
    longest: int
    vocabulary: Vocabulary
    model_type: str
    masked: float = 0.15


def rows_of_steps(folder: PairFolder, size: int, by_tokens: bool, seed: int, steps: int) -> list[PairRows]:
    """Return the rows of the trainer's first global batches of `size` rows or tokens."""
    order = order_of(folder, seed, by_tokens)
    found = []
    for step in range(steps):
        parts = []
        for row_range in order.row_ranges(step * size, (step + 1) * size):
            parts.append(folder.block(row_range.shards).take(row_range.rows_N))
        found.append(join_rows(parts))
    return found


def cut(steps: list[PairRows], most_rows: int) -> tuple[int, int]:
    """Return (micro-batches per step, rows per micro-batch), given a limit of `most_rows` rows per micro-batch.

    Both are the same for all steps: DeepSpeed needs a constant number of micro-batches, and compiled code constant
    shapes.
    """
    largest = max(len(rows.labels_B) for rows in steps)
    count = -(-largest // most_rows)
    return count, -(-largest // count)


def step_of(rows: PairRows, count: int, form: Form) -> Step:
    """Cut the rows of a step into `count` micro-batches."""
    micro_batches = []
    for numbers_B in np.array_split(np.arange(len(rows.labels_B)), count):
        micro_batches.append(inputs_of(rows.take(numbers_B), form))
    return Step(micro_batches, len(rows.labels_B), len(rows.ids_T))


def inputs_of(rows: PairRows, form: Form) -> Inputs:
    """Return rows as arguments of transformers' pretraining classes, with some of the tokens masked.

    Fillers are rows of padding tokens without labels, which only keep the shape constant.
    """
    lengths_B = rows.lengths()
    row_T = torch.from_numpy(np.repeat(np.arange(len(lengths_B)), lengths_B))
    place_T = torch.from_numpy(np.arange(len(rows.ids_T)) - np.repeat(rows.offsets_B1[:-1], lengths_B))
    first_of_b_T = torch.from_numpy(np.repeat(rows.segment_b_B, lengths_B))

    ids = torch.full((form.rows, form.longest), form.vocabulary.special_id("pad"))
    attention = torch.zeros_like(ids)
    segments = torch.zeros_like(ids)
    ids[row_T, place_T] = torch.from_numpy(rows.ids_T.astype(np.int64))
    attention[row_T, place_T] = 1
    segments[row_T, place_T] = (place_T >= first_of_b_T).long()

    masked = (torch.rand(ids.shape) < form.masked) & (attention == 1)
    labels = torch.where(masked, ids, IGNORE_INDEX)
    ids[masked] = form.vocabulary.special_id("mask")

    # A filler attends to its first token: with nothing to attend to, the softmax would divide by zero.
    attention[len(lengths_B) :, 0] = 1
    inputs = {"input_ids": ids, "attention_mask": attention, "labels": labels}
    if form.model_type not in PAIRED:
        return inputs

    pair_labels = torch.full((form.rows,), IGNORE_INDEX)
    pair_labels[: len(lengths_B)] = torch.from_numpy(rows.labels_B.astype(np.int64))
    pair_name = "sentence_order_label" if form.model_type == "albert" else "next_sentence_label"
    return inputs | {"token_type_ids": segments, pair_name: pair_labels}


if __name__ == "__main__":
    sys.exit(main())
