"""Runs each side of a case of `make gpu` as a process that trains on pairs.

All sides train on the same rows in the same optimizer steps, and the same steps are timed. Each side chooses its own
micro-batch: the trainer with its formulas and a trial (batch.micro_tokens = "auto"), a rival by halving until it fits.
Gradients of the micro-batches of a step are accumulated.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_cases import (
    ROOT,
    SEED,
    STEP_TOKENS,
    Bench,
    Case,
    StepSize,
    changes,
    longest_of,
    shape_of,
    step_size,
)
from schemas.manifest import read_manifest
from schemas.vocabulary import VOCABULARY_FOLDER, read_vocabulary
from trainer.config.load import load_recipe
from trainer.models.flops import flops_per_token, peak_flops
from trainer.models.hf_config import hf_config
from trainer.models.shape import EncoderShape

SITE = ROOT / "site"  # the packages of a bundle

SIDES = ("ours", "deepspeed", "plain")
MOST_SECONDS_OF_A_RUN = 240
DOES_NOT_FIT = 3
"""The exit code of gpu_rivals.py when a micro-batch does not fit into the GPU."""


@dataclass
class Figures:
    """The figures of one side in one case. note: why there are no figures; empty if there are.

    step_tokens: mean tokens of the timed optimizer steps, without padding. micro_batch_tokens: with padding.
    gigabytes: peak memory of its tensors on the GPU; on a CPU, of its process.
    """

    recipe: str
    rows: str
    side: str
    step_tokens: float | None = None
    micro_batch_tokens: int | None = None
    tokens_per_second: float | None = None
    rows_per_second: float | None = None
    mfu: float | None = None
    gigabytes: float | None = None
    note: str = ""


def environment(bench: Bench) -> dict[str, str]:
    """Return the environment of every process: our packages, no network, and a shared cache of compiled code."""
    paths = [str(path) for path in (ROOT, SITE) if path.exists()]
    ours = {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(bench.output / "compiled"),
        "CLOZELINE_GPU_DRY": "1" if bench.dry else "0",
    }
    return {**os.environ, **ours}


def measure(bench: Bench, case: Case, side: str, pairs: Path) -> Figures:
    """Run one side of a case in its own process. If it fails or there is no time left, `note` says so."""
    nothing = Figures(case.recipe, case.rows, side)
    if bench.seconds_left < 30:
        nothing.note = "not run: no time left"
        return nothing

    try:
        if side == "ours":
            return run_ours(bench, case, pairs)
        return run_rival(bench, case, side, pairs)
    except subprocess.TimeoutExpired:
        nothing.note = "failed: took too long"
    except RuntimeError as error:
        nothing.note = f"failed: {error}"
    return nothing


def run_process(bench: Bench, words: list[str], log: str) -> int:
    """Run a program with its output in a log file, and return its exit code. Raises TimeoutExpired."""
    limit = max(30.0, min(MOST_SECONDS_OF_A_RUN, bench.seconds_left))
    with (bench.output / log).open("w") as file:
        done = subprocess.run(
            words, cwd=ROOT, env=environment(bench), stdout=file, stderr=subprocess.STDOUT, timeout=limit
        )
    return done.returncode


def run_ours(bench: Bench, case: Case, pairs: Path) -> Figures:
    """Train with the recipe, apart from the size of a step, and read the run's metrics. Raises RuntimeError."""
    run = bench.output / "run"
    shutil.rmtree(run, ignore_errors=True)
    values = {
        "data.pairs": pairs,
        "run.output": run,
        "run.seed": SEED,
        "run.max_steps": bench.warmup_steps + bench.timed_steps,
        "run.stop_at": "none",
        "run.log_every": 2 if bench.dry else 5,
        "schedule.warmup_steps": 1,
        "checkpoint.every": 10_000,
        **batch_of(step_size(bench, case)),
    }
    settings = [*changes(bench), *(f"{key}={value}" for key, value in values.items())]
    recipe = f"trainer/recipes/{case.recipe}.toml"
    words = [sys.executable, "-m", "trainer", "--config", recipe]
    words += [word for setting in settings for word in ("--set", setting)]
    code = run_process(bench, words, "ours.log")
    if code:
        raise RuntimeError(f"exit code {code}, see {bench.output}/ours.log")

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = lines[-1]
    first = next(line for line in lines if line["step"] == bench.warmup_steps)
    tokens = last["tokens"] - first["tokens"]

    figures = Figures(case.recipe, case.rows, "ours")
    figures.step_tokens = tokens / bench.timed_steps
    (figures.micro_batch_tokens,) = json.loads((run / "micro_batches.json").read_text()).values()
    figures.gigabytes = last["peak_memory_bytes"] / 1e9
    masked = load_recipe(str(ROOT / recipe), changes(bench)).masking.prob
    return with_speed(figures, tokens / (last["seconds"] - first["seconds"]), pairs, shape_of(bench, case), masked)


def batch_of(step: StepSize) -> dict[str, Any]:
    """Return the settings of a recipe's [batch] for a step size."""
    if step.by_tokens:
        return {"batch.global_batch": "none", "batch.global_tokens": step.size}
    return {"batch.global_batch": step.size}


def run_rival(bench: Bench, case: Case, side: str, pairs: Path) -> Figures:
    """Run a side of gpu_rivals.py, and halve the micro-batch until it fits. Raises RuntimeError."""
    shape = shape_of(bench, case)
    config = bench.output / "config.json"
    config.write_text(json.dumps(hf_config(shape, read_vocabulary(str(pairs / VOCABULARY_FOLDER)))))

    # A dry run uses a small micro-batch, so that a step has several of them.
    longest = longest_of(bench, case)
    most_rows = 8 if bench.dry else STEP_TOKENS // longest
    step = step_size(bench, case)
    found = bench.output / "rival.json"
    while True:
        words = [sys.executable, "benchmarks/gpu_rivals.py", side, "--pairs", str(pairs), "--config", str(config)]
        words += ["--step_tokens" if step.by_tokens else "--step_rows", str(step.size), "--seed", str(SEED)]
        words += ["--micro_batch", str(most_rows), "--device", bench.device, "--output", str(found)]
        words += ["--warmup", str(bench.warmup_steps), "--steps", str(bench.timed_steps)]
        code = run_process(bench, words, f"{side}.log")
        if code == 0:
            break
        if code != DOES_NOT_FIT or most_rows == 1:
            raise RuntimeError(f"exit code {code}, see {bench.output}/{side}.log")
        most_rows //= 2

    result = json.loads(found.read_text())
    figures = Figures(case.recipe, case.rows, side, result["step_tokens"], result["micro_batch_rows"] * longest)
    figures.gigabytes = result["gigabytes"]
    return with_speed(figures, result["tokens_per_second"], pairs, shape, masked=0.15)


def with_speed(figures: Figures, tokens_per_second: float, pairs: Path, shape: EncoderShape, masked: float) -> Figures:
    """Add the speed, rows per second and MFU to figures. Tokens are counted without padding on every side."""
    manifest = read_manifest(str(pairs), "pairs")
    tokens = manifest.totals["tokens"]
    squares = sum(length * length * rows for length, rows in enumerate(manifest.statistics["lengths"]))
    cost = flops_per_token(shape, squares / tokens, masked)

    figures.tokens_per_second = tokens_per_second
    figures.rows_per_second = tokens_per_second * manifest.totals["rows"] / tokens
    peak = peak_flops(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    if peak is not None:
        figures.mfu = tokens_per_second * cost / peak
    return figures
