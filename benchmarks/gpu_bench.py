"""The cases of the benchmark of `make gpu`, and how each side of one is run: as a process that trains on pairs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_pairs import spread_lengths, write_pairs
from schemas.manifest import read_manifest
from schemas.vocabulary import VOCABULARY_FOLDER, read_vocabulary
from trainer.config.load import load_recipe
from trainer.models.families import encoder_shape
from trainer.models.flops import flops_per_token, peak_flops
from trainer.models.hf_config import hf_config
from trainer.models.shape import EncoderShape

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "site"  # the packages of a bundle

SIDES = ("ours", "deepspeed", "plain")
MICRO_BATCH_TOKENS = 32_768
"""Of transformers' runs, with padding; halved until it fits. Ours chooses by itself (batch.micro_tokens = "auto")."""

WARMUP_STEPS = 10
TIMED_STEPS = 20
MOST_SECONDS_OF_A_RUN = 240


@dataclass(frozen=True)
class Case:
    """One line of the table. low, high: the shortest and longest row; their lengths are evenly spread."""

    recipe: str
    rows: str
    low: int
    high: int


# The most important ones first. Rows of 1 to 507 tokens have Wikipedia's mean of 254 at a length of 512.
CASES = (
    Case("bert_large", "128", 128, 128),
    Case("bert_large", "512", 512, 512),
    Case("bert_large", "packed, mean 254", 8, 500),
    Case("bert_base", "128", 128, 128),
    Case("bert_base", "512", 512, 512),
    Case("bert_base", "packed, mean 254", 8, 500),
    Case("roberta_base", "512", 512, 512),
    Case("albert_base", "512", 512, 512),
)

TINY = {
    "model.num_hidden_layers": 2,
    "model.hidden_size": 32,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "model.vocab_size": 200,
    "engine.precision": "fp32",
}


@dataclass
class Figures:
    """What one side did in one case. note: why there are no figures; empty if there are."""

    recipe: str
    rows: str
    side: str
    micro_batch_tokens: int | None = None
    tokens_per_second: float | None = None
    rows_per_second: float | None = None
    mfu: float | None = None
    gigabytes: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Bench:
    """What all runs share."""

    output: Path
    ends_at: float
    dry: bool

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    @property
    def seconds_left(self) -> float:
        return self.ends_at - time.monotonic()


def environment(bench: Bench) -> dict[str, str]:
    """Return the environment of every process: our packages, no network, one cache of compiled code."""
    paths = [str(path) for path in (ROOT, SITE) if path.exists()]
    ours = {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(bench.output / "compiled"),
        "CLOZELINE_GPU_DRY": "1" if bench.dry else "0",
    }
    return {**os.environ, **ours}


def write_case(bench: Bench, case: Case) -> Path:
    """Write a case's pairs: enough rows for all steps of the side that computes most at once."""
    low, high = (min(length, 32) for length in (case.low, case.high)) if bench.dry else (case.low, case.high)
    tokens = (WARMUP_STEPS + TIMED_STEPS + 2) * 65_536
    count = 400 if bench.dry else 2 * tokens // (low + high)

    shape = shape_of(bench, case)
    folder = bench.output / "pairs"
    shutil.rmtree(folder, ignore_errors=True)
    kind = "bytebpe" if shape.family == "roberta" else "wordpiece"
    write_pairs(
        folder, spread_lengths(low, high, count), high if bench.dry else longest_of(case), kind, shape.vocab_size
    )
    return folder


def longest_of(case: Case) -> int:
    """Return what rows are padded to: 128 or 512."""
    return 128 if case.high <= 128 else 512


def shape_of(bench: Bench, case: Case) -> EncoderShape:
    """Return the shape of a case's model."""
    recipe = load_recipe(str(ROOT / f"trainer/recipes/{case.recipe}.toml"), changes(bench))
    return encoder_shape(recipe.model, recipe.model.vocab_size or 30_000)


def changes(bench: Bench) -> list[str]:
    """Return the changes to a recipe that make it small enough for a dry run."""
    return [f"{key}={value}" for key, value in TINY.items()] if bench.dry else []


def measure(bench: Bench, case: Case, side: str, pairs: Path) -> Figures:
    """Run one side of a case in a process of its own."""
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
    """Run a program and return its exit code; its output goes to a file."""
    limit = max(30.0, min(MOST_SECONDS_OF_A_RUN, bench.seconds_left))
    with (bench.output / log).open("w") as file:
        done = subprocess.run(
            words, cwd=ROOT, env=environment(bench), stdout=file, stderr=subprocess.STDOUT, timeout=limit
        )
    return done.returncode


def run_ours(bench: Bench, case: Case, pairs: Path) -> Figures:
    """Train by the recipe, with as many rows in a step as one micro-batch holds, and read its metrics."""
    run = bench.output / "run"
    shutil.rmtree(run, ignore_errors=True)
    shape = shape_of(bench, case)
    longest = 32 if bench.dry else longest_of(case)
    steps = 4 if bench.dry else WARMUP_STEPS + TIMED_STEPS

    values = {
        "data.pairs": pairs,
        "run.output": run,
        "run.max_steps": steps,
        "run.stop_at": "none",
        "run.log_every": 2 if bench.dry else 5,
        "schedule.warmup_steps": 1,
        "checkpoint.every": 10_000,
        **batch_of(bench, case, longest),
    }
    settings = [*changes(bench), *(f"{key}={value}" for key, value in values.items())]
    recipe = f"trainer/recipes/{case.recipe}.toml"
    words = [sys.executable, "-m", "trainer", "--config", recipe]
    words += [word for setting in settings for word in ("--set", setting)]
    code = run_process(bench, words, "ours.log")
    if code:
        raise RuntimeError(f"exit code {code}, see {bench.output}/ours.log")

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["step"] >= (2 if bench.dry else WARMUP_STEPS))
    seconds = lines[-1]["seconds"] - first["seconds"]
    speed = (lines[-1]["tokens"] - first["tokens"]) / seconds

    recorded = json.loads((run / "micro_batches.json").read_text())[-1]["micro_tokens"]
    masked = load_recipe(str(ROOT / recipe), changes(bench)).masking.prob
    return with_speed(Figures(case.recipe, case.rows, "ours", recorded), speed, pairs, shape, masked)


def batch_of(bench: Bench, case: Case, longest: int) -> dict[str, Any]:
    """Return the [batch] of a case: one micro-batch a step, if the GPU holds 65,536 tokens."""
    if bench.dry:
        return {"batch.global_batch": 16}
    if case.low == case.high:
        return {"batch.global_batch": 65_536 // longest}

    # Rows of many lengths are counted in tokens, as `batch.shape = "fixed"` then pads them by 2%.
    return {"batch.global_batch": "none", "batch.global_tokens": 64_000}


def run_rival(bench: Bench, case: Case, side: str, pairs: Path) -> Figures:
    """Run one of gpu_rivals.py, with half the micro-batch as often as it does not fit."""
    shape = shape_of(bench, case)
    config = bench.output / "config.json"
    config.write_text(json.dumps(hf_config(shape, read_vocabulary(str(pairs / VOCABULARY_FOLDER)))))

    longest = 32 if bench.dry else longest_of(case)
    micro_batch = 4 if bench.dry else MICRO_BATCH_TOKENS // longest
    while True:
        found = bench.output / "rival.json"
        words = [sys.executable, "benchmarks/gpu_rivals.py", side, "--pairs", str(pairs), "--config", str(config)]
        words += ["--micro_batch", str(micro_batch), "--device", bench.device, "--output", str(found)]
        words += ["--steps", "2", "--warmup", "1"] if bench.dry else ["--steps", str(TIMED_STEPS)]
        code = run_process(bench, words, f"{side}.log")
        if code == 0:
            break
        if code != 3 or micro_batch == 1:
            raise RuntimeError(f"exit code {code}, see {bench.output}/{side}.log")
        micro_batch //= 2

    result = json.loads(found.read_text())
    figures = Figures(case.recipe, case.rows, side, micro_batch * longest, gigabytes=result["gigabytes"])
    return with_speed(figures, result["tokens_per_second"], pairs, shape, masked=0.15)


def with_speed(figures: Figures, tokens_per_second: float, pairs: Path, shape: EncoderShape, masked: float) -> Figures:
    """Add rows per second and MFU to a speed. Tokens are real ones, without padding, on every side."""
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
