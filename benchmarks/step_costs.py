"""Measures what a training step costs the host: device reads, synchronizations, collective calls and milliseconds.

    torchrun --nproc_per_node 2 benchmarks/step_costs.py [--cases adamw-1-bf16 lamb-1-bf16] [--micro_batches 4]

The model has BERT-large's 24 layers at a tiny width, and its attention is replaced by a function that copies the
values, so nearly all of the time is work of the host, which the host of a GPU would do as well. The figures are those
of rank 0. A case is OPTIMIZER-STAGE-PRECISION.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.waits import Waits, counted_waits  # noqa: E402
from trainer.anomaly import AnomalyGuard, AnomalyHistory  # noqa: E402
from trainer.checkpoint.background import BackgroundSaves  # noqa: E402
from trainer.checkpoint.run_folder import NodeFolders  # noqa: E402
from trainer.checkpoint.state import TrainingState  # noqa: E402
from trainer.config.load import load_recipe  # noqa: E402
from trainer.config.phases import phases_of  # noqa: E402
from trainer.config.schema import Recipe  # noqa: E402
from trainer.data.share import RankShare  # noqa: E402
from trainer.data.stream import Stream  # noqa: E402
from trainer.distributed.process_group import start_distributed  # noqa: E402
from trainer.distributed.stop import StopAgreement, StopRequest  # noqa: E402
from trainer.distributed.watchdog import Watchdog  # noqa: E402
from trainer.engine import build_engine  # noqa: E402
from trainer.loop import Loop  # noqa: E402
from trainer.models.batch import PackedBatch  # noqa: E402
from trainer.models.pretraining import build_model  # noqa: E402
from trainer.run_context import RunContext  # noqa: E402

CASES = ["adamw-0-fp32", "adamw-0-bf16", "adamw-1-fp32", "adamw-1-bf16", "adamw-2-bf16", "lamb-1-bf16", "lamb-2-bf16"]
CASES += ["stable_adamw-1-bf16"]
VOCABULARY = 512
LAYERS = 24
ROWS = 2
LENGTH = 16
MASKED = 5
TIMED_STEPS = 12


@dataclass
class ReadyStream:
    """A stream that returns the same prepared batches for every step."""

    batches: list[PackedBatch]
    stalled_seconds: float = 0.0

    def batch(self, step: int) -> list[PackedBatch]:
        return self.batches

    def peek(self, step: int) -> list[PackedBatch]:
        return self.batches


def small_batch(number: int) -> PackedBatch:
    """Return ROWS rows of LENGTH tokens, with MASKED tokens in total to predict."""
    generator = torch.Generator().manual_seed(number)
    places = torch.arange(ROWS * LENGTH)
    return PackedBatch(
        ids_T=torch.randint(0, VOCABULARY, (ROWS * LENGTH,), generator=generator),
        segments_T=(places % LENGTH >= LENGTH // 2).long(),
        positions_T=places % LENGTH,
        sequence_T=places // LENGTH,
        sequence_starts_S=torch.arange(ROWS) * LENGTH,
        longest=LENGTH,
        masked_positions_K=torch.randperm(ROWS * LENGTH, generator=generator)[:MASKED].sort().values,
        labels_K=torch.randint(0, VOCABULARY, (MASKED,), generator=generator),
        pair_labels_S=torch.randint(0, 2, (ROWS,), generator=generator),
        tokens=ROWS * LENGTH,
        predicted=MASKED,
        paired=ROWS,
        mask_id=4,
    )


def recipe_of(case: str, run: str) -> Recipe:
    kind, stage, precision = case.split("-")
    return load_recipe(
        "benchmarks/small_bert.toml",
        [
            f"model.num_hidden_layers={LAYERS}",
            "model.hidden_size=16",
            "model.num_attention_heads=2",
            "model.intermediate_size=32",
            "model.max_position_embeddings=16",
            f"optimizer.kind={kind}",
            f"engine.zero_stage={stage}",
            f"engine.precision={precision}",
            f"run.output={run}",
            "run.log_every=1000000",
        ],
    )


def copied_values(qkv_TNd: Tensor, *_: Any) -> Tensor:
    """Stand in for attention: return the values unchanged, (T, D)."""
    return qkv_TNd[:, 2 * qkv_TNd.shape[1] // 3 :].flatten(1)


@contextlib.contextmanager
def loop_of(case: str, micro_batches: int, run: str) -> Iterator[Loop]:
    """Yield a training loop for a case, with its engine, and release both at the end."""
    recipe = recipe_of(case, run)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    share = RankShare(rank, ranks, micro_batches, ranks * micro_batches * ROWS)
    engine = build_engine(build_model(recipe.model, VOCABULARY, 0), recipe, share)
    guard = AnomalyGuard(engine, recipe.anomaly, AnomalyHistory(), recipe.optimizer.clip)

    stream = ReadyStream([small_batch(rank * micro_batches + number) for number in range(micro_batches)])
    watchdog = Watchdog(rank, ranks, 600.0)
    stop = StopAgreement(StopRequest())
    context = RunContext(
        recipe, recipe.run.max_steps, stop, watchdog, NodeFolders([0] * ranks), None, BackgroundSaves(False)
    )
    state = TrainingState(step=0, tokens=0, seconds=0.0, identity={})
    try:
        yield Loop(context, phases_of(recipe)[0], engine, cast(Stream, stream), None, guard, None, state)
    finally:
        stop.close()
        watchdog.close(True)
        engine.destroy()


def one_step(loop: Loop, step: int) -> None:
    """Take a step as `Loop.run` does when nothing is due after it."""
    assert loop.compute_step(step)
    loop.stepper.settle()
    loop.stepper.update()


def measure(case: str, micro_batches: int, run: str) -> tuple[Waits, float, float]:
    """Return the waits of one step, and its wall-clock and CPU milliseconds (medians of TIMED_STEPS)."""
    with patch("trainer.models.encoder.attend", copied_values), loop_of(case, micro_batches, run) as loop:
        for step in range(1, 5):
            one_step(loop, step)
        with counted_waits() as waits:
            one_step(loop, 5)

        walls, cpus = [], []
        for step in range(6, 6 + TIMED_STEPS):
            wall, cpu = time.perf_counter(), time.thread_time()
            one_step(loop, step)
            walls.append(1000 * (time.perf_counter() - wall))
            cpus.append(1000 * (time.thread_time() - cpu))
    return waits, statistics.median(walls), statistics.median(cpus)


def main() -> None:
    flags = argparse.ArgumentParser(description="Counts what a training step costs the host.")
    flags.add_argument("--cases", nargs="+", default=CASES)
    flags.add_argument("--micro_batches", type=int, default=4)
    options = flags.parse_args()

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    start_distributed(timeout=600)
    is_first = dist.get_rank() == 0
    if is_first:
        print(f"\n{dist.get_world_size()} ranks, {options.micro_batches} micro-batches a step")
        print("| case | reads | syncs | collectives | operators | CPU ms a step | wall ms |")
        print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as run:
        for case in options.cases:
            waits, wall, cpu = measure(case, options.micro_batches, run)
            if is_first:
                reads = ", ".join(f"{count} {name}" for name, count in sorted(waits.reads.items()))
                calls = ", ".join(f"{count} {name}" for name, count in sorted(waits.collectives.items()))
                print(
                    f"| {case} | {waits.reads.total()} ({reads}) | {waits.synchronizations.total()} | "
                    f"{waits.collectives.total()} ({calls}) | {waits.operators:,} | {cpu:.1f} | {wall:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
