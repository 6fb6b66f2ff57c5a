"""Measures how long a checkpoint stalls a run in the foreground and in the background, and how it slows steps.

python benchmarks/saves.py [RECIPE ...]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial

import deepspeed
import torch
from training import bare, seconds

from trainer.checkpoint import format as checkpoints
from trainer.checkpoint.background import BackgroundSaves
from trainer.checkpoint.run_folder import NodeFolders
from trainer.checkpoint.state import TrainingState
from trainer.config.load import load_recipe
from trainer.config.schema import Recipe
from trainer.data.share import RankShare
from trainer.distributed.process_group import start_distributed
from trainer.distributed.stop import StopAgreement, StopRequest
from trainer.distributed.watchdog import Watchdog
from trainer.distributed.zero import parameter_slices
from trainer.engine import build_engine
from trainer.models.batch import PackedBatch
from trainer.models.starting_weights import empty_model
from trainer.optim.lr_schedule import set_learning_rate
from trainer.run_context import RunContext
from trainer.save import Saver

SMALL_ROWS = 4
SMALL_BATCH = (f"batch.global_batch={SMALL_ROWS}", f"batch.micro_batch={SMALL_ROWS}")
VOCABULARY = 4000
"""The vocabulary size of recipes that take it from their pairs."""


def stall(name: str, rounds: int) -> None:
    """Print how long checkpoints of a recipe's model and optimizer stall the run, and how long they take in total.

    Measures saves in the foreground and in the background. During background saves, steps are taken and timed. What
    training lost is the stall and the time by which these steps took longer than undisturbed ones.
    """
    with tempfile.TemporaryDirectory() as run:
        recipe = load_recipe(name, [f"run.output={run}", "data.pairs=pairs", "checkpoint.keep=1", *SMALL_BATCH])
        vocabulary_size = recipe.model.vocab_size or VOCABULARY
        share = RankShare(0, 1, 1, SMALL_ROWS)
        engine = build_engine(empty_model(recipe.model, vocabulary_size), recipe, share)
        set_learning_rate(engine.optimizer, recipe.optimizer.lr)
        for part in parameter_slices(engine):
            part.weights.uniform_(-0.04, 0.04)
        batch = [random_batch(vocabulary_size)]
        bare(engine, [batch])
        undisturbed = statistics.median(seconds(partial(bare, engine, [batch])) for _ in range(rounds))

        for background in (False, True):
            with save_context(recipe, background) as context:
                saver = Saver(context, engine, writes_report=False)
                times = [timed_save(saver, engine, batch, step) for step in range(1, rounds + 2)]
            # The first background save also allocates the memory for the copy, so it is shown separately.
            stalls, totals, steps = zip(*times[1:], strict=True)
            during = zip(stalls, steps, strict=True)
            losses = [stall + sum(taken) - len(taken) * undisturbed for stall, taken in during]
            size = checkpoint_bytes(recipe.run.output, rounds + 1)
            what = f"a checkpoint of `{name}`, {size / 1e6:,.0f} MB, {'background' if background else 'foreground'}"
            print(
                f"| {what} | stall {statistics.median(stalls):.2f} s (first {times[0][0]:.2f} s) "
                f"| total {statistics.median(totals):.2f} s "
                f"| training lost {statistics.median(losses):.2f} s |",
                flush=True,
            )
        engine.destroy()


@contextlib.contextmanager
def save_context(recipe: Recipe, background: bool) -> Iterator[RunContext]:
    """Yield the context that a run of one rank needs for saving."""
    watchdog = Watchdog(0, 1, recipe.engine.timeout_seconds)
    stop = StopAgreement(StopRequest())
    with contextlib.closing(BackgroundSaves(background)) as saves:
        yield RunContext(recipe, recipe.run.max_steps, stop, watchdog, NodeFolders([0]), None, saves)
    watchdog.close()


def timed_save(
    saver: Saver, engine: deepspeed.DeepSpeedEngine, batch: list[PackedBatch], step: int
) -> tuple[float, float, list[float]]:
    """Return times in seconds: the stall of training, until the checkpoint is saved, and of each step until then."""
    state = TrainingState(step=step, tokens=0, seconds=0.0, identity={})
    started = time.perf_counter()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        saver.save(state, must_save=False)
    stalled = time.perf_counter() - started

    steps = []
    while saver.saved_step != step:
        steps.append(seconds(partial(bare, engine, [batch])))
    saver.wait(step)
    return stalled, time.perf_counter() - started, steps


def checkpoint_bytes(run: str, step: int) -> int:
    saved = checkpoints.checkpoint_path(run, step)
    return sum(file.stat().st_size for file in saved.rglob("*") if file.is_file())


def random_batch(vocabulary_size: int) -> PackedBatch:
    """Return SMALL_ROWS rows of 64 random tokens. Every sixth token is to be predicted."""
    length = 64
    places = torch.arange(SMALL_ROWS * length)
    return PackedBatch(
        ids_T=torch.randint(vocabulary_size, places.shape),
        segments_T=(places % length >= length // 2).long(),
        positions_T=places % length,
        sequence_T=places // length,
        sequence_starts_S=torch.arange(SMALL_ROWS) * length,
        longest=length,
        masked_positions_K=places[:: length // 10],
        labels_K=torch.randint(vocabulary_size, places[:: length // 10].shape),
        pair_labels_S=torch.randint(2, (SMALL_ROWS,)),
        tokens=len(places),
        predicted=len(places[:: length // 10]),
        paired=SMALL_ROWS,
    )


def main() -> None:
    flags = argparse.ArgumentParser(description="Measures for how long a checkpoint stops a run.")
    flags.add_argument("recipes", nargs="*", default=["tiny", "bert_base"])
    flags.add_argument("--rounds", type=int, default=3)
    options = flags.parse_args()

    start_distributed(timeout=600)
    torch.manual_seed(0)
    for recipe in options.recipes:
        stall(recipe, options.rounds)


if __name__ == "__main__":
    main()
