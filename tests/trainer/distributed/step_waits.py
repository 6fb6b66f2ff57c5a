"""What a step of each optimizer, stage and precision waits for, for test_bf16_updates.py.

    step_waits.py OUT.json    (as one of the ranks that the environment names)

The model is narrow, and its attention is replaced by a function that copies the
values, so nearly all of the work is the host's. A case is OPTIMIZER-STAGE-PRECISION.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from tests.trainer.distributed.waits import counted_waits
from tests.trainer.one_rank import VOCABULARY, filled_engine, small_batch
from trainer.anomaly import AnomalyGuard, AnomalyHistory
from trainer.checkpoint.background import BackgroundSaves
from trainer.checkpoint.run_folder import NodeFolders
from trainer.checkpoint.state import TrainingState
from trainer.config.load import load_recipe
from trainer.config.phases import phases_of
from trainer.config.schema import Recipe
from trainer.data.share import RankShare
from trainer.data.stream import Stream
from trainer.distributed.process_group import start_distributed
from trainer.distributed.stop import StopAgreement, StopRequest
from trainer.distributed.watchdog import Watchdog
from trainer.loop import Loop
from trainer.models.batch import PackedBatch
from trainer.models.starting_weights import build_model
from trainer.run_context import RunContext

MICRO_BATCHES = 2
CASES = ["adamw-0-fp32", "adamw-1-fp32", "adamw-1-bf16", "adamw-2-bf16", "lamb-1-bf16", "lamb-2-bf16"]
CASES += ["stable_adamw-1-bf16"]
LAYERS = 4
ROWS = 2
LENGTH = 16
MASKED = 5


@dataclass
class ReadyStream:
    """A stream that returns the same prepared batches for every step."""

    batches: list[PackedBatch]
    stalled_seconds: float = 0.0

    def batch(self, step: int) -> list[PackedBatch]:
        return self.batches

    def peek(self, step: int) -> list[PackedBatch]:
        return self.batches


def batch_of(number: int) -> PackedBatch:
    return replace(small_batch(number, ROWS, LENGTH, MASKED), mask_id=4)


def recipe_of(case: str, run: str) -> Recipe:
    kind, stage, precision = case.split("-")
    return load_recipe(
        "tests/recipes/small_bert.toml",
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
    engine = filled_engine(build_model(recipe.model, VOCABULARY, 0), recipe, share)
    guard = AnomalyGuard(engine, recipe.anomaly, AnomalyHistory(), recipe.optimizer.clip)

    stream = ReadyStream([batch_of(rank * micro_batches + number) for number in range(micro_batches)])
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
    """Take a step as `Loop.take_steps` does when nothing is due after it."""
    assert loop.compute_step(step)
    loop.stepper.settle()
    loop.stepper.update()


def main(out: Path) -> None:
    torch.set_num_threads(1)
    start_distributed(timeout=600)
    found = {}
    with tempfile.TemporaryDirectory() as run:
        for case in CASES:
            with patch("trainer.models.encoder.attend", copied_values), loop_of(case, MICRO_BATCHES, run) as loop:
                for step in (1, 2):
                    one_step(loop, step)
                with counted_waits() as waits:
                    one_step(loop, 3)
            found[case] = vars(waits)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
