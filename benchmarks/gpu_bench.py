"""Runs an item of `make gpu` in one process or a few, and returns its figures.

All sides of a case train on the same rows in the same optimizer steps, and the same steps are timed. Each side chooses
its own micro-batch: the trainer with its formulas and a trial (batch.micro_tokens = "auto"), a rival by halving until
it fits. Gradients of the micro-batches of a step are accumulated.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_cases import (
    PROFILED_STEPS,
    ROOT,
    SEED,
    STEP_TOKENS,
    TESTS,
    Bench,
    Item,
    changes,
    longest_of,
    shape_of,
    step_size,
    write_case,
)
from benchmarks.gpu_profile import summarize
from schemas.manifest import read_manifest
from schemas.vocabulary import VOCABULARY_FOLDER, read_vocabulary
from trainer.config.load import load_recipe
from trainer.models.flops import flops_per_token, peak_flops
from trainer.models.hf_config import hf_config

SITE = ROOT / "site"  # the packages of a bundle

LEAST_SECONDS = 30
"""An item is left out if less time remains."""

DONE = "done"
FAILED = "failed"
LEFT_OUT = "left out"

DOES_NOT_FIT = 3
"""The exit code of gpu_rivals.py when a micro-batch does not fit into the GPU."""


@dataclass
class Figures:
    """The figures of one item, and what they were measured on.

    outcome: DONE, FAILED or LEFT_OUT. note: why there are no figures, or what a reader should know.
    seconds: that the item took, its start and compilation included.
    step_tokens: mean tokens of the timed optimizer steps, without padding. micro_batch_tokens: with padding.
    gigabytes: peak memory of its tensors on the GPU; on a CPU, of its process.
    busy, host_ms: of gpu_profile.Profile.
    attention: the kernel that the trainer chose, as it said itself.
    """

    recipe: str
    rows: str
    side: str
    gpus: int = 1
    outcome: str = DONE
    device: str = ""
    torch: str = ""
    label: str = ""
    seconds: float | None = None
    step_tokens: float | None = None
    micro_batch_tokens: int | None = None
    tokens_per_second: float | None = None
    rows_per_second: float | None = None
    mfu: float | None = None
    gigabytes: float | None = None
    busy: float | None = None
    host_ms: float | None = None
    attention: str = ""
    note: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what the figures are of: an item, on one device, with one torch and one code."""
        return self.recipe, self.rows, self.side, self.gpus, self.device, self.torch, self.label


def measure(bench: Bench, item: Item, limit: float) -> Figures:
    """Return the figures of an item, whose processes have `limit` seconds together. The outcome says if it failed."""
    nothing = Figures(item.recipe, item.rows, item.side, item.gpus)
    if bench.seconds_left < LEAST_SECONDS:
        nothing.outcome, nothing.note = LEFT_OUT, "no time left"
        return nothing

    began = time.monotonic()
    figures = nothing
    try:
        figures = run_item(bench.limited_to(limit), item)
    except subprocess.TimeoutExpired:
        nothing.outcome, nothing.note = FAILED, f"took more than {limit:.0f} s{passed_before(bench, item)}"
        if bench.seconds_left < 0:
            nothing.outcome, nothing.note = LEFT_OUT, "no time left to finish"
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        nothing.outcome, nothing.note = FAILED, str(error) or repr(error)
    figures.seconds = round(time.monotonic() - began, 1)
    return figures


def run_item(bench: Bench, item: Item) -> Figures:
    """Return the figures of an item. Raises RuntimeError and TimeoutExpired."""
    if item.recipe == TESTS:
        return run_tests(bench, item)

    found = 1 if bench.dry else torch.cuda.device_count()
    if item.gpus > found:
        return Figures(item.recipe, item.rows, item.side, item.gpus, LEFT_OUT, note=f"this machine has {found}")
    pairs = write_case(bench, item)
    figures = run_ours(bench, item, pairs) if item.side == "ours" else run_rival(bench, item, pairs)
    figures.note = item.case.note
    return figures


# Processes


def environment(bench: Bench) -> dict[str, str]:
    """Return the environment of every process: our packages, no network, and a shared cache of compiled code."""
    paths = [str(path) for path in (ROOT, SITE) if path.exists()]
    ours = {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(bench.scratch / "compiled"),
        "CLOZELINE_GPU_DRY": "1" if bench.dry else "0",
    }
    return {**os.environ, **ours}


def log_of(item: Item) -> str:
    """Return the name of the file with the output of an item's last process."""
    return f"{item.slug}_{item.side}.log"


def run_process(bench: Bench, item: Item, words: list[str], is_over: Callable[[], bool] = lambda: False) -> int:
    """Run a program with its output in a log file, and return its exit code; 0 if it was ended because `is_over`.

    Its own processes end with it. Raises TimeoutExpired when the bench has no time left.
    """
    with (bench.output / log_of(item)).open("w") as file:
        started = subprocess.Popen(
            words, cwd=ROOT, env=environment(bench), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        while started.poll() is None:
            if is_over():
                return 0
            if bench.seconds_left < 0:
                raise subprocess.TimeoutExpired(words, 0)
            time.sleep(0.1)
        return started.returncode
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def check_exit(code: int, item: Item) -> None:
    """Raise RuntimeError if an item's process failed."""
    if code:
        raise RuntimeError(f"exit code {code}, see {log_of(item)}")


# The trainer


def run_ours(bench: Bench, item: Item, pairs: Path) -> Figures:
    """Train with the recipe, apart from the size of a step, and read the run's metrics. Raises RuntimeError.

    The run ends as soon as its profile is written, because a checkpoint of some models takes longer than their steps.
    """
    run = bench.scratch / "run"
    shutil.rmtree(run, ignore_errors=True)
    settings = [*changes(bench), *(f"{key}={value}" for key, value in values_of(bench, item, pairs, run).items())]
    words = [*launcher(item.gpus), "--config", f"trainer/recipes/{item.recipe}.toml"]
    words += ["--profile", str(PROFILED_STEPS), "--profile_after", str(bench.steps_before_profile)]
    words += [word for setting in settings for word in ("--set", setting)]
    tables = (run / "profile").glob
    check_exit(run_process(bench, item, words, lambda: len(list(tables("*.txt"))) >= min(item.gpus, 8)), item)

    lines = {line["step"]: line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
    first, last = (lines[step] for step in (bench.warmup_steps, bench.warmup_steps + bench.timed_steps))
    tokens = last["tokens"] - first["tokens"]
    figures = Figures(item.recipe, item.rows, "ours", item.gpus)
    figures.step_tokens = tokens / bench.timed_steps
    (figures.micro_batch_tokens,) = json.loads((run / "micro_batches.json").read_text()).values()
    figures.gigabytes = last["peak_memory_bytes"] / 1e9
    figures.attention = attention_in((bench.output / log_of(item)).read_text())
    add_speed(figures, bench, pairs, tokens / (last["seconds"] - first["seconds"]))

    (trace,) = tables("rank-00000-*.json.gz")
    profile = summarize(trace, f"{item.name}, GPUs: {item.gpus}", bench.output / f"profile_{item.slug}")
    figures.busy, figures.host_ms = profile.busy, profile.host_ms
    return figures


def attention_in(log: str) -> str:
    """Return the kernel that the last line on attention in the log of a run names, empty without one."""
    lines = re.findall(r"Attention(?: with dropout| within windows)?: (.+)\.$", log, re.MULTILINE)
    return lines[-1] if lines else ""


def values_of(bench: Bench, item: Item, pairs: Path, run: Path) -> dict[str, Any]:
    """Return what a run changes in its recipe, by key."""
    size, unit = step_size(bench, item)
    return {
        "data.pairs": pairs,
        "data.max_length": longest_of(bench, item.case),
        "run.output": run,
        "run.seed": SEED,
        "run.max_steps": bench.steps,
        "run.max_hours": "none",
        "run.stop_at": "none",
        "run.log_every": 2 if bench.dry else 5,
        "schedule.warmup_steps": 1,
        "checkpoint.every": 10_000,
        "batch.global_batch": "none",
        "batch.global_tokens": "none",
        "batch.ramp_from": "none",
        "batch.ramp_steps": "none",
        "batch.global_tokens" if unit == "tokens" else "batch.global_batch": size,
    }


def launcher(gpus: int) -> list[str]:
    """Return the beginning of a command that trains on this many GPUs."""
    if gpus == 1:
        return [sys.executable, "-m", "trainer"]
    return [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(gpus), "--module", "trainer"]


# Rivals


def run_rival(bench: Bench, item: Item, pairs: Path) -> Figures:
    """Run a side of gpu_rivals.py, and halve the micro-batch until it fits. Raises RuntimeError."""
    config = bench.scratch / "config.json"
    shape = shape_of(bench, item.case)
    config.write_text(json.dumps(hf_config(shape, read_vocabulary(str(pairs / VOCABULARY_FOLDER)))))

    # A dry run uses a small micro-batch, so that a step has several of them.
    longest = longest_of(bench, item.case)
    most_rows = 8 if bench.dry else STEP_TOKENS // longest
    found = bench.scratch / "rival.json"
    words = [sys.executable, "benchmarks/gpu_rivals.py", item.side, "--pairs", str(pairs), "--config", str(config)]
    size, unit = step_size(bench, item)
    words += [f"--step_{unit}", str(size)]
    words += ["--seed", str(SEED), "--masked", str(masked_share(bench, item))]
    words += ["--device", bench.device, "--output", str(found)]
    words += ["--warmup", str(bench.warmup_steps), "--steps", str(bench.timed_steps)]
    while True:
        code = run_process(bench, item, [*words, "--micro_batch", str(most_rows)])
        if code != DOES_NOT_FIT or most_rows == 1:
            break
        most_rows //= 2
    check_exit(code, item)

    result = json.loads(found.read_text())
    figures = Figures(item.recipe, item.rows, item.side)
    figures.step_tokens = result["step_tokens"]
    figures.micro_batch_tokens = result["micro_batch_rows"] * longest
    figures.gigabytes = result["gigabytes"]
    add_speed(figures, bench, pairs, result["tokens_per_second"])
    return figures


def masked_share(bench: Bench, item: Item) -> float:
    """Return the share of tokens that the recipe predicts. Every side predicts as many."""
    return load_recipe(str(ROOT / f"trainer/recipes/{item.recipe}.toml"), changes(bench)).masking.prob


def add_speed(figures: Figures, bench: Bench, pairs: Path, tokens_per_second: float) -> None:
    """Add the speed, rows per second and MFU to figures of a case. Every side's tokens are counted without padding."""
    item = Item(figures.recipe, figures.rows, figures.side, figures.gpus)
    manifest = read_manifest(str(pairs), "pairs")
    tokens = manifest.totals["tokens"]
    squares = sum(length * length * rows for length, rows in enumerate(manifest.statistics["lengths"]))
    cost = flops_per_token(shape_of(bench, item.case), squares / tokens, masked_share(bench, item))

    figures.tokens_per_second = tokens_per_second
    figures.rows_per_second = tokens_per_second * manifest.totals["rows"] / tokens
    peak = peak_flops(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    if peak is not None:
        figures.mfu = tokens_per_second * cost / peak / figures.gpus


# Tests


def run_tests(bench: Bench, item: Item) -> Figures:
    """Run the tests marked gpu of one file. Raises RuntimeError with pytest's last line if one failed."""
    # tests/conftest.py imports Beam, which these tests do not need and a bundle does not contain.
    words = [sys.executable, "-m", "pytest", f"tests/gpu/{item.rows}.py", "-m", "gpu", "-p", "no:cacheprovider"]
    code = run_process(bench, item, [*words, "-v", "--confcutdir", "tests/gpu"])
    lines = (bench.output / log_of(item)).read_text().strip().splitlines() or ["no output"]
    said = lines[-1].strip("= ")
    if code not in (0, 5):  # 5: a whole file is left out
        raise RuntimeError(said)
    return Figures(item.recipe, item.rows, item.side, note=said)


def passed_before(bench: Bench, item: Item) -> str:
    """Return how many tests of an item passed before it was ended, empty for any other item."""
    log = bench.output / log_of(item)
    if item.recipe != TESTS or not log.exists():
        return ""
    return f"; {log.read_text().count(' PASSED')} had passed"
