"""`make bench_gpu`: times training steps of every recipe that fits on this machine's GPU, and of transformers' models.

    python benchmarks/gpu.py [--recipes bert_large ...] [--output figures.jsonl]

Needs torch 2.11 or newer and this source tree; without transformers, its lines are left out. A step is forward,
backward and AdamW: bf16 weights and gradients, float32 moments and a float32 copy of the weights, as in DeepSpeed, on
one rank without ZeRO. Dropout is the recipe's, but 0 in attention for both. Speeds count tokens without padding.

Three kinds of rows: full rows of 128 and of 512 tokens, and rows of evenly spread lengths from 1 to 507 tokens, whose
mean of 254 is that of Wikipedia at 512 (as MLPerf packs it). Our rows are packed; theirs are padded to the longest.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the source tree is all there is

from schemas.vocabulary import SPECIALS, Vocabulary  # noqa: E402
from trainer.models.batch import IGNORE_INDEX, PackedBatch  # noqa: E402
from trainer.models.families import encoder_shape  # noqa: E402
from trainer.models.flops import flops_per_token, peak_flops  # noqa: E402
from trainer.models.hf_config import hf_config  # noqa: E402
from trainer.models.pretraining import PretrainingModel  # noqa: E402
from trainer.models.shape import EncoderShape  # noqa: E402
from trainer.models.starting_weights import initialize  # noqa: E402

ROWS = {"128": (128, 128), "512": (512, 512), "1 to 507": (1, 507)}
MASKED = 0.15
Loss = Callable[[], Tensor]


@dataclass
class Figures:
    """The figures of one model on one kind of rows. mfu: None if the device's peak is unknown. gigabytes: the peak."""

    recipe: str
    rows: str
    who: str
    micro_batch_tokens: int
    tokens_per_second: float
    sequences_per_second: float
    mfu: float | None
    gigabytes: float


def main(arguments: list[str] | None = None) -> list[Figures]:
    flags = argparse.ArgumentParser(description="Training speed of every recipe on one device.")
    flags.add_argument("--recipes", nargs="*", help="names in trainer/recipes, or files; all but tiny by default")
    flags.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    flags.add_argument("--tokens", type=int, default=65_536, help="of a micro-batch; halved until it fits")
    flags.add_argument("--steps", type=int, default=20, help="timed, after as many as 5 that are not")
    flags.add_argument("--device", default="cuda")
    flags.add_argument("--no_compile", action="store_true")
    flags.add_argument("--output", help="a file for the figures, a JSON object a line")
    options = flags.parse_args(arguments)
    names = options.recipes or sorted(p.stem for p in (ROOT / "trainer/recipes").glob("*.toml") if p.stem != "tiny")
    print(
        "| recipe | rows | who | micro-batch | tokens/s | sequences/s | MFU | GB |\n|---|---|---|---|---|---|---|---|"
    )
    found: list[Figures] = []
    for name in names:
        shape = shape_of(name)
        for rows in options.rows:
            for who in ("ours", "transformers"):
                figures = largest_that_fits(name, shape, rows, who, options)
                if figures is not None:
                    found.append(figures)
                    show(figures, options.output)
    return found


class PlainSection(SimpleNamespace):
    """A recipe's [model] as it is in the file. A missing key is None."""

    def __getattr__(self, name: str) -> None:
        return None


def shape_of(recipe: str) -> EncoderShape:
    """Return a recipe's model shape. Skips the recipe's validation, which needs packages that may be missing here."""
    path = Path(recipe) if recipe.endswith(".toml") else ROOT / f"trainer/recipes/{recipe}.toml"
    model = tomllib.loads(path.read_text())["model"]
    settings = model | {"attention_probs_dropout_prob": 0.0}
    return encoder_shape(PlainSection(**settings), settings.get("vocab_size", 30_522))  # type: ignore[arg-type]


def show(figures: Figures, output: str | None) -> None:
    mfu = "-" if figures.mfu is None else f"{figures.mfu:.1%}"
    print(
        f"| {figures.recipe} | {figures.rows} | {figures.who} | {figures.micro_batch_tokens:,} | "
        f"{figures.tokens_per_second:,.0f} | {figures.sequences_per_second:,.0f} | {mfu} | {figures.gigabytes:.1f} |",
        flush=True,
    )
    if output:
        with open(output, "a") as file:
            file.write(json.dumps(asdict(figures)) + "\n")


def largest_that_fits(name: str, shape: EncoderShape, rows: str, who: str, options: Any) -> Figures | None:
    """Halve the micro-batch until it fits. Returns None if 2,048 tokens do not fit, or without transformers."""
    tokens = options.tokens
    while True:
        try:
            return measure(Case(name, shape, rows, who), tokens, options)
        except ImportError:
            return None
        except torch.OutOfMemoryError:
            tokens //= 2
        if tokens < 2048:
            print(f"| {name} | {rows} | {who} | does not fit | | | | |", flush=True)
            return None
        gc.collect()
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Case:
    """One line of the table: a recipe's model, the lengths of the rows, and whose code computes it."""

    name: str
    shape: EncoderShape
    rows: str
    who: str


def measure(case: Case, tokens: int, options: Any) -> Figures:
    """Time `options.steps` training steps on one batch of about `tokens` tokens without padding."""
    shape = case.shape
    device = torch.device(options.device)
    torch.compiler.reset()
    batch = random_batch(shape, lengths_of(case.rows, tokens, shape.max_position_embeddings), device)
    build = {"ours": our_loss, "transformers": their_loss}[case.who]
    model, loss = build(shape, batch, device, not options.no_compile)
    step = training_step(model, loss)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(min(5, options.steps)):
        step()
    seconds = timed(step, options.steps, device)
    speed = batch.tokens * options.steps / seconds
    lengths = torch.bincount(batch.sequence_T).double()
    cost = flops_per_token(
        shape, float((lengths**2).sum() / lengths.sum()), len(batch.masked_positions_K) / batch.tokens
    )
    peak = peak_flops(torch.cuda.get_device_name()) if device.type == "cuda" else None
    is_gpu = device.type == "cuda"
    return Figures(
        case.name,
        case.rows,
        case.who,
        batch.tokens,
        speed,
        speed * len(lengths) / batch.tokens,
        None if peak is None else cost * speed / peak,
        torch.cuda.max_memory_allocated() / 1e9 if is_gpu else 0.0,
    )


def timed(step: Callable[[], None], steps: int, device: torch.device) -> float:
    synchronize = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return time.perf_counter() - started


def lengths_of(rows: str, tokens: int, longest: int) -> Tensor:
    """Return row lengths of one kind that add up to about `tokens`: at least one row, and none above `longest`."""
    low, high = (min(length, longest) for length in ROWS[rows])
    count = max(1, round(tokens / ((low + high) / 2)))
    lengths = torch.linspace(low, high, count).round().long()
    return lengths[torch.randperm(count, generator=torch.Generator().manual_seed(0))]


def random_batch(shape: EncoderShape, lengths_S: Tensor, device: torch.device) -> PackedBatch:
    """Return rows of random tokens. The second half of each is segment B, and 15% of all positions are predicted."""
    generator = torch.Generator().manual_seed(1)
    tokens = int(lengths_S.sum())
    count = len(lengths_S)
    sequence_T = torch.repeat_interleave(torch.arange(count), lengths_S)
    first_S = lengths_S.cumsum(0) - lengths_S
    positions_T = torch.arange(tokens) - first_S[sequence_T]
    ids_T = torch.randint(5, shape.vocab_size, (tokens,), generator=generator)
    masked_K = torch.randperm(tokens, generator=generator)[: max(1, round(MASKED * tokens))].sort().values
    return PackedBatch(
        ids_T=ids_T,
        segments_T=(positions_T > lengths_S[sequence_T] // 2).long() * (shape.type_vocab_size - 1),
        positions_T=positions_T,
        sequence_T=sequence_T,
        sequence_starts_S=first_S,
        longest=int(lengths_S.max()),
        masked_positions_K=masked_K,
        labels_K=ids_T[masked_K],
        pair_labels_S=torch.randint(0, 2, (count,), generator=generator),
        tokens=tokens,
        predicted=len(masked_K),
        paired=count,
    ).to(device)


def precision_on(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def our_loss(shape: EncoderShape, batch: PackedBatch, device: torch.device, compiled: bool) -> tuple[nn.Module, Loss]:
    model = PretrainingModel(shape)
    initialize(model, shape, 0.02, 0)
    model = model.to(device, precision_on(device)).train()
    if compiled:
        model.compile_parts()
    masked = len(batch.masked_positions_K)
    pairs = max(1, model.labeled_pairs(batch))

    def loss() -> Tensor:
        losses = model(batch)
        return losses.mlm_sum / masked + losses.pair_sum / pairs

    return model, loss


def their_loss(shape: EncoderShape, batch: PackedBatch, device: torch.device, compiled: bool) -> tuple[nn.Module, Loss]:
    """Return transformers' model and its loss on the batch. Raises ImportError if transformers is not installed."""
    from transformers import AutoConfig, AutoModelForPreTraining

    kind = "bytebpe" if shape.family == "roberta" else "wordpiece"
    settings = hf_config(shape, Vocabulary(kind, tuple(SPECIALS[kind].values()), ""))
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    try:
        model = AutoModelForPreTraining.from_config(config, attn_implementation="sdpa")
    except ValueError:  # a class without sdpa, Megatron-BERT's
        model = AutoModelForPreTraining.from_config(config, attn_implementation="eager")
    model = model.to(device, precision_on(device)).train()
    inputs = padded(batch, shape)
    called = torch.compile(model, dynamic=False) if compiled else model

    def loss() -> Tensor:
        return called(**inputs).loss

    return model, loss


def padded(batch: PackedBatch, shape: EncoderShape) -> dict[str, Tensor]:
    """Return the same rows as transformers' arguments: int64 (rows, longest), padded."""
    place = (batch.sequence_T, batch.positions_T)
    ids = torch.full((len(batch.sequence_starts_S), batch.longest), 1 if shape.family == "roberta" else 0).to(
        batch.ids_T.device
    )
    segments = torch.zeros_like(ids)
    attention = torch.zeros_like(ids)
    labels = torch.full_like(ids, IGNORE_INDEX)
    ids[place] = batch.ids_T
    segments[place] = batch.segments_T
    attention[place] = 1
    labels[place[0][batch.masked_positions_K], place[1][batch.masked_positions_K]] = batch.labels_K
    inputs = {"input_ids": ids, "attention_mask": attention, "token_type_ids": segments, "labels": labels}
    name = "sentence_order_label" if shape.family == "albert" else "next_sentence_label"
    return inputs | {name: batch.pair_labels_S} if shape.pair_head else inputs


def training_step(model: nn.Module, loss: Loss) -> Callable[[], None]:
    """Return a step: forward, backward, AdamW on float32 copies of the weights, and copying these back."""
    weights: list[Tensor] = list(model.parameters())
    copies = [weight.detach().float().clone() for weight in weights]
    optimizer = torch.optim.AdamW(copies, lr=1e-4, fused=True)

    def step() -> None:
        loss().backward()
        for copy, weight in zip(copies, weights, strict=True):
            copy.grad = None if weight.grad is None else weight.grad.float()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(weights, copies)  # type: ignore[attr-defined]
        for weight in weights:
            weight.grad = None

    return step


if __name__ == "__main__":
    main()
