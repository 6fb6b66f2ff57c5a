"""Measures the overhead of our training loop over DeepSpeed's bare forward, backward and step calls.

    python benchmarks/training.py [--steps 10] [--rounds 60]

The overhead is measured where it matters most, on the steps of a small BERT, which take a few hundredths of a second.
Both loops train one engine on the same batches, in alternation. Ours reads and masks them, the bare one finds them
ready.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import deepspeed
import torch
from torch.nn.utils import clip_grad_norm_

from trainer.anomaly import AnomalyGuard, AnomalyHistory
from trainer.build_model import fill_in_initial_weights
from trainer.checkpoint.background import BackgroundSaves
from trainer.checkpoint.run_folder import NodeFolders
from trainer.checkpoint.state import TrainingState
from trainer.config.load import load_recipe
from trainer.config.phases import phases_of
from trainer.config.schema import Recipe
from trainer.data.folder import open_folders
from trainer.data.share import share_of
from trainer.data.stream import Stream, build_stream
from trainer.distributed.process_group import start_distributed
from trainer.distributed.stop import StopAgreement, StopRequest
from trainer.distributed.watchdog import Watchdog
from trainer.engine import build_engine
from trainer.loop import Loop
from trainer.metrics.log import MetricsLog
from trainer.models.batch import PackedBatch
from trainer.models.starting_weights import empty_model
from trainer.run_context import RunContext


def make_pairs(out: Path) -> None:
    """Make a small version of the demo's data in `out`: a vocabulary of 4,000 tokens, and rows of up to 64 tokens."""
    commands = (
        f"clozeline.demo.corpus {out}/corpus.jsonl --megabytes 2",
        f"pipeline shard --input {out}/corpus.jsonl --output {out}/text",
        f"pipeline vocab --text {out}/text --output {out}/vocab --model wordpiece --size 4000",
        f"pipeline pairs --text {out}/text --vocab {out}/vocab --output {out}/pairs --objective nsp --max_length 64",
    )
    for command in commands:
        subprocess.run([sys.executable, "-m", *command.split()], check=True, stdout=subprocess.DEVNULL)


# The two loops


def bare(engine: deepspeed.DeepSpeedEngine, steps: list[list[PackedBatch]]) -> None:
    """Take steps with DeepSpeed's bare calls: engine, backward and step, with the losses of our loop."""
    for batches in steps:
        masked = sum(len(batch.labels_K) for batch in batches)
        pairs = sum(len(batch.pair_labels_S) for batch in batches)

        for i, batch in enumerate(batches):
            losses = engine(batch)
            loss = losses.mlm_sum / masked + losses.pair_sum / pairs

            # The counts are already those of the whole step, so undo DeepSpeed's division by the micro-batches.
            engine.backward(loss * len(batches))

            # At this ZeRO stage our guard clips instead of DeepSpeed, so the bare loop has to clip as well.
            if i == len(batches) - 1:
                clip_grad_norm_(engine.module.parameters(), max_norm=1.0)  # type: ignore[operator]
            engine.step()


def ours(loop: Loop, first: int, last: int) -> None:
    """Take our loop's steps: read and mask rows, sum losses, set the learning rate, run the guard, log metrics."""
    for step in range(first, last + 1):
        was_computed = loop.compute_step(step, is_last=step == last)
        assert was_computed, "no stop was requested"
        loop.settle()
        loop.stepper.update()
        loop.clock.step_ended(loop.stream.stalled_seconds)
    loop.settle()


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# Timing


def overhead(recipe: Recipe, steps: int, rounds: int) -> None:
    """Time the same steps with both loops, and print a row of the table."""
    folders = open_folders(recipe)
    share = share_of(recipe, 0, 1, folders)
    engine = build_engine(empty_model(recipe.model, folders[0].vocabulary.size), recipe, share)
    fill_in_initial_weights(engine, recipe, folders)
    with contextlib.closing(build_stream(recipe, open_folders(recipe), share)) as ahead:  # and closes its folders
        batches = [ahead.batch(step) for step in range(steps * (rounds + 1))]

    with contextlib.ExitStack() as resources:
        stream = resources.enter_context(contextlib.closing(build_stream(recipe, folders, share)))
        metrics = resources.enter_context(contextlib.closing(MetricsLog(recipe.run.output, 0, recipe.run.max_steps)))
        watchdog = resources.enter_context(contextlib.closing(Watchdog(0, 1, recipe.engine.timeout_seconds)))
        compare(make_loop(recipe, engine, stream, metrics, watchdog), batches, steps)


def make_loop(
    recipe: Recipe, engine: deepspeed.DeepSpeedEngine, stream: Stream, metrics: MetricsLog, watchdog: Watchdog
) -> Loop:
    """Return the loop of the recipe's first phase, without evaluation and without remote copies."""
    context = RunContext(
        run_recipe=recipe,
        last_step=recipe.run.max_steps,
        stop=StopAgreement(StopRequest()),
        watchdog=watchdog,
        folders=NodeFolders([0]),
        url=None,
        saves=BackgroundSaves(False),
    )
    return Loop(
        context=context,
        phase=phases_of(recipe)[0],
        engine=engine,
        stream=stream,
        evaluation=None,
        guard=AnomalyGuard(engine, recipe.anomaly, AnomalyHistory(), recipe.optimizer.clip),
        metrics=metrics,
        state=TrainingState(step=0, tokens=0, seconds=0.0, identity={}),
    )


def compare(loop: Loop, batches: list[list[PackedBatch]], steps: int) -> None:
    """Print a row of the table: the time of a step in both loops, and the overhead of ours over the bare calls."""
    rounds = len(batches) // steps
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        times = [in_turns(loop, batches, steps, i) for i in range(rounds)]
    times = times[1:]  # the first round warms up

    our_step, bare_step = (statistics.median(of_loop) / steps for of_loop in zip(*times, strict=True))

    # Use the ratio of each round, because a temporary slowdown of the machine affects both loops of a round.
    ratios = [ours / bare for ours, bare in times]
    low, middle, high = (f"{ratio - 1:+.1%}" for ratio in statistics.quantiles(ratios, n=4))
    figures = f"{1000 * our_step:.1f} ms | {1000 * bare_step:.1f} ms | {middle} ({low} to {high})"
    print(f"| the loop of a small BERT with reading its rows, a step | {figures} |", flush=True)


def in_turns(loop: Loop, batches: list[list[PackedBatch]], steps: int, i: int) -> tuple[float, float]:
    """Return the seconds of the i-th round of steps with our loop and the bare one. They alternate in going first."""
    first = i * steps
    our_steps = partial(ours, loop, first + 1, first + steps)
    bare_steps = partial(bare, loop.engine, batches[first : first + steps])

    if i % 2 == 0:
        return seconds(our_steps), seconds(bare_steps)

    bare_seconds = seconds(bare_steps)
    return seconds(our_steps), bare_seconds


def main() -> None:
    flags = argparse.ArgumentParser(description="Compares our loop with bare DeepSpeed calls in one process.")
    flags.add_argument("--steps", type=int, default=10)
    flags.add_argument("--rounds", type=int, default=60)
    options = flags.parse_args()

    start_distributed(timeout=600)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        make_pairs(Path(folder))

        pairs = f"data.pairs={folder}/pairs"
        tiny = load_recipe("benchmarks/small_bert.toml", [pairs, f"run.output={folder}/tiny"])

        print("\n| one process | ours | bare | more |\n|---|---|---|---|")
        overhead(tiny, options.steps, options.rounds)


if __name__ == "__main__":
    main()
