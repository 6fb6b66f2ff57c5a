"""What our loop costs above DeepSpeed's own three calls, and for how long a checkpoint stops a run.

    python benchmarks/training.py [--steps 10] [--rounds 60]

The loop is measured where it costs most, on the steps of `tiny`, a few hundredths of a second each. Both loops train
one engine on the same batches in turns.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import deepspeed
import torch

from trainer.anomaly import AnomalyGuard, AnomalyHistory
from trainer.checkpoint import layout as checkpoints
from trainer.checkpoint.background import BackgroundSaves
from trainer.checkpoint.layout import TrainingState
from trainer.checkpoint.node_folders import NodeFolders
from trainer.config.load import load_recipe
from trainer.config.phases import phases_of
from trainer.config.schema import Recipe
from trainer.data.build import build_stream, open_folders
from trainer.data.loader import RankShare, Stream
from trainer.distributed.preemption import StopRequest
from trainer.distributed.stop_agreement import StopAgreement
from trainer.distributed.watchdog import Watchdog
from trainer.distributed.zero import parameter_slices
from trainer.engine import build_engine, share_of, start_distributed
from trainer.evaluate import EvaluationResult
from trainer.loop import Loop, Progress
from trainer.metrics.log import MetricsLog
from trainer.models.batch import PackedBatch
from trainer.models.pretraining import build_model, empty_model
from trainer.optim.lr_schedule import set_learning_rate
from trainer.run_context import RunContext
from trainer.save import Saver

SMALL_ROWS = 4
SMALL_BATCH = (f"batch.global_batch={SMALL_ROWS}", f"batch.micro_batch={SMALL_ROWS}")
VOCABULARY = 4000
"""For recipes that take the vocabulary of their pairs."""


def make_pairs(out: Path) -> None:
    """The demo's data in small: a vocabulary of 4,000 tokens, rows of up to 64."""
    job = f"{sys.executable} -m pipeline"
    for command in (
        f"{sys.executable} deploy/demo/corpus.py {out}/corpus.jsonl --megabytes 2",
        f"{job} shard --input {out}/corpus.jsonl --output {out}/text",
        f"{job} vocab --text {out}/text --output {out}/vocab --model wordpiece --size 4000",
        f"{job} pairs --text {out}/text --vocab {out}/vocab --output {out}/pairs --objective nsp --max_length 64",
    ):
        subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL)


def bare(engine: deepspeed.DeepSpeedEngine, steps: list[list[PackedBatch]]) -> None:
    """engine, backward, step, with the losses of our loop."""
    for batches in steps:
        masked = sum(len(batch.labels_K) for batch in batches)
        pairs = sum(len(batch.pair_labels_S) for batch in batches)
        for batch in batches:
            losses = engine(batch)
            engine.backward((losses.mlm_sum / masked + losses.pair_sum / pairs) * len(batches))
            engine.step()


def ours(loop: Loop, first: int, last: int) -> None:
    """The training loop's own steps: rows read and masked, losses added up, the learning rate, the guard, metrics."""
    progress = Progress(TrainingState(step=first - 1, tokens=0, seconds=0.0, identity={}))
    for step in range(first, last + 1):
        completed = loop.compute_step(step, skipped_batches=0, is_last=step == last)
        assert completed, "nobody asks it to stop"
        loop.settle(progress, EvaluationResult())
        loop.stepper.update()
    loop.settle(progress, EvaluationResult())


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@dataclass
class AtHand:
    """A stream whose batches are ready."""

    batches: list[list[PackedBatch]]
    stalled: float = 0.0

    def batch(self, step: int) -> list[PackedBatch]:
        return self.batches[step]


def overhead(recipe: Recipe, steps: int, rounds: int) -> None:
    """Time the same steps by both loops in alternating order: on prepared batches, then with their reading included."""
    folders = open_folders(recipe)
    share = share_of(recipe, 0, 1, folders)
    stream = build_stream(recipe, folders, share)
    ahead = build_stream(recipe, folders, share)
    batches = [ahead.batch(step) for step in range(steps * (rounds + 1))]
    ahead.close()
    engine = build_engine(build_model(recipe.model, folders[0].vocabulary.size, 0), recipe, share)
    metrics = MetricsLog(recipe.run.output, 0, recipe.run.max_steps)
    guard = AnomalyGuard(engine, recipe.anomaly, AnomalyHistory(), recipe.optimizer.clip)
    watchdog = Watchdog(0, 1, recipe.engine.timeout_seconds)
    phase = phases_of(recipe)[0]
    stop = StopAgreement(StopRequest())
    context = RunContext(recipe, recipe.run.max_steps, stop, watchdog, NodeFolders([0]), None, BackgroundSaves(False))
    for what, source in (("the loop of `tiny`, a step", AtHand(batches)), ("and reading its rows", stream)):
        loop = Loop(context, phase, engine, cast(Stream, source), None, guard, metrics)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            times = [in_turns(loop, engine, batches, steps, i) for i in range(rounds + 1)][1:]  # the first warms up
        mine, theirs = (statistics.median(column) / steps for column in zip(*times, strict=True))
        low, more, high = (f"{ratio - 1:+.1%}" for ratio in statistics.quantiles((a / b for a, b in times), n=4))
        figures = f"{1000 * mine:.1f} ms | {1000 * theirs:.1f} ms | {more} ({low} to {high})"
        print(f"| {what} | {figures} |", flush=True)
    stream.close()
    metrics.close()
    watchdog.close()


def in_turns(
    loop: Loop, engine: deepspeed.DeepSpeedEngine, batches: list[list[PackedBatch]], steps: int, i: int
) -> tuple[float, float]:
    """Seconds of (ours, bare) for the i-th `steps` steps."""
    first = i * steps
    both = (partial(ours, loop, first + 1, first + steps), partial(bare, engine, batches[first : first + steps]))
    if i % 2:
        theirs = seconds(both[1])
        return seconds(both[0]), theirs
    return seconds(both[0]), seconds(both[1])


def stall(name: str, rounds: int) -> None:
    """For how long a run stands still for a checkpoint of its model, weights and optimizer, and how long that takes.

    In the foreground and in the background, where steps are taken meanwhile; they show what the save costs training.
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
            # The first save in the background allocates the memory for the copy, and is shown beside the others.
            stalls, totals, steps = zip(*times[1:], strict=True)
            size = checkpoint_bytes(recipe.run.output, rounds + 1)
            what = f"a checkpoint of `{name}`, {size / 1e6:,.0f} MB, {'background' if background else 'foreground'}"
            print(
                f"| {what} | stall {statistics.median(stalls):.2f} s (first {times[0][0]:.2f} s) "
                f"| total {statistics.median(totals):.2f} s "
                f"| steps of {undisturbed:.2f} s meanwhile: {statistics.median(steps):.2f} s |",
                flush=True,
            )
        engine.destroy()


@contextlib.contextmanager
def save_context(recipe: Recipe, background: bool) -> Iterator[RunContext]:
    """What a run of one rank needs to save."""
    watchdog = Watchdog(0, 1, recipe.engine.timeout_seconds)
    stop = StopAgreement(StopRequest())
    with contextlib.closing(BackgroundSaves(background)) as saves:
        yield RunContext(recipe, recipe.run.max_steps, stop, watchdog, NodeFolders([0]), None, saves)
    watchdog.close()


def timed_save(
    saver: Saver, engine: deepspeed.DeepSpeedEngine, batch: list[PackedBatch], step: int
) -> tuple[float, float, float]:
    """Return the seconds for which training stands still, until the checkpoint is there, and of a step meanwhile."""
    state = TrainingState(step=step, tokens=0, seconds=0.0, identity={})
    started = time.perf_counter()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        saver.save(state, {}, must_save=False)
    stalled = time.perf_counter() - started

    steps = [0.0]
    while saver.saved_step != step:
        steps.append(seconds(partial(bare, engine, [batch])))
    saver.wait(step)
    return stalled, time.perf_counter() - started, statistics.median(steps[1:] or steps)


def checkpoint_bytes(run: str, step: int) -> int:
    saved = checkpoints.checkpoint_path(run, step)
    return sum(file.stat().st_size for file in saved.rglob("*") if file.is_file())


def random_batch(vocabulary_size: int) -> PackedBatch:
    """Rows of 64 random tokens, of which ten are to be predicted."""
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
    flags = argparse.ArgumentParser(description="Compares our loop with bare DeepSpeed calls in one process.")
    flags.add_argument("--steps", type=int, default=10)
    flags.add_argument("--rounds", type=int, default=60)
    flags.add_argument("--stall", metavar="RECIPE", help="measure only the saves of this recipe")
    options = flags.parse_args()
    start_distributed(timeout=600)
    torch.manual_seed(0)
    if options.stall:
        stall(options.stall, 3)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_pairs(Path(folder))
        pairs = f"data.pairs={folder}/pairs"
        tiny = load_recipe("trainer/recipes/tiny.toml", [pairs, f"run.output={folder}/tiny"])
        print("\n| one process | ours | bare | more |\n|---|---|---|---|")
        overhead(tiny, options.steps, options.rounds)
        stall("tiny", 5)
        stall("bert_base", 3)


if __name__ == "__main__":
    main()
