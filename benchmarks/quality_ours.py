"""Trains a recipe for quality.py in its own process, for as many steps as fit into a number of seconds.

On a CPU these are CPU seconds, so that other work on the machine changes little; on a GPU they are wall-clock seconds.
The time of a step is measured first in a run that is thrown away, as the slope between two readings of its metrics,
which excludes start-up. It is written down, and the training saves checkpoints, so an interrupted benchmark continues
where it was, with the same number of steps. The commands before and after a training are here, too.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from schemas import storage
from schemas.manifest import NAME
from trainer.metrics.log import read_metrics

HERE = Path(__file__).parent

SMALL_BERT = "tiny as it was"
"""The name of the contestant whose recipe is small_bert.toml."""

TIMED_SECONDS = 15
"""How long steps are timed after the first reading."""

FIRST_LOOK = 20
"""The first reading is after this step, because earlier steps also allocate memory."""

WARMUP_SHARE = 0.07
CHECKPOINTS = 20
"""The number of checkpoints of a run, every other with an evaluation. The last five may be averaged: a quarter."""

NEVER = 10**9

Settings = dict[str, Any]

DRAWN: Settings = {
    "model.initial_embeddings": "none",
    "model.initial_embedding_std": "none",
    "model.initial_attention": "none",
    "model.initial_head": "none",
}
"""Changes of a recipe that make all its initial weights random."""

PARTS: dict[str, Settings] = {
    "4x256": {
        "model.num_hidden_layers": "4",
        "model.hidden_size": "256",
        "model.num_attention_heads": "8",
        "model.intermediate_size": "688",
        "optimizer.lr": "2e-3",
    },
    "6x384": {
        "model.num_hidden_layers": "6",
        "model.hidden_size": "384",
        "model.num_attention_heads": "12",
        "model.intermediate_size": "1024",
        "optimizer.lr": "1.5e-3",
    },
    "drawn": DRAWN,
    "drawn_embeddings": {"model.initial_embeddings": "none", "model.initial_embedding_std": "none"},
    "drawn_attention": {"model.initial_attention": "none"},
    "drawn_head": {"model.initial_head": "none"},
    "averaged": {"checkpoint.keep": 5},
}
"""What may stand behind a name and a plus instead of KEY=VALUE. Wider models need lower learning rates."""


def train_ours(name: str, seconds: float, folder: Path, settings: Settings, device: str) -> dict[str, Any]:
    """Time some steps, then train as many as fit into `seconds`, with ten evaluations whose time does not count.

    name: of a recipe, or SMALL_BERT. settings: keys of the recipe to change, evaluation.every for fewer evaluations.
    Writes FOLDER/hf, and returns the outcome of quality.py. Continues a run that was interrupted. If checkpoint.keep is
    above 1, FOLDER/hf has the mean weights of as many checkpoints.
    """
    seconds_a_step = time_steps(name, folder, settings, device)
    steps = max(1, int(seconds / seconds_a_step))
    every = max(1, steps // CHECKPOINTS)
    run = folder / "run"
    words = command(name, run, steps, {"evaluation.every": 2 * every, "checkpoint.every": every} | settings)
    subprocess.run(words, check=True, env=one_thread(device), stdout=subprocess.DEVNULL)
    export(run, folder / "hf", settings.get("checkpoint.keep", 1))

    lines = read_metrics(str(run))
    evaluated = [line for line in lines if "eval_mlm_loss_masked" in line]
    curve = [(line["step"] * seconds_a_step, line["eval_mlm_loss_masked"]) for line in evaluated]
    return {"steps": steps, "tokens": lines[-1]["tokens"], "seconds": steps * seconds_a_step, "curve": curve}


def export_untrained(name: str, folder: Path, settings: Settings, device: str) -> None:
    """Write FOLDER/hf with the initial weights of a recipe, by one step at a learning rate that changes nothing."""
    still = settings | {"optimizer.lr": 1e-12, "schedule.warmup_steps": 1}
    still |= {"evaluation.pairs": "none", "evaluation.every": NEVER}
    run = folder / "run"
    subprocess.run(command(name, run, 1, still), check=True, env=one_thread(device), stdout=subprocess.DEVNULL)
    export(run, folder / "hf", averaged=1)


def time_steps(name: str, folder: Path, settings: Settings, device: str) -> float:
    """Return the seconds per step, measured once and kept in FOLDER/step_seconds.json, or step_seconds_cuda.json."""
    path = folder / ("step_seconds.json" if device == "cpu" else f"step_seconds_{device}.json")
    if not path.exists():
        storage.publish(str(path), json.dumps([time_a_step(name, folder / "timed", settings, device)]).encode())
    return json.loads(path.read_text())[0]


def time_a_step(name: str, run: Path, settings: Settings, device: str) -> float:
    """Return the seconds per step, from a run that is killed once enough steps are timed."""
    shutil.rmtree(run, ignore_errors=True)
    unevaluated = settings | {"evaluation.pairs": "none", "evaluation.every": NEVER, "run.log_every": 2}
    words = command(name, run, NEVER, unevaluated)
    trainer = subprocess.Popen(words, env=one_thread(device), stdout=subprocess.DEVNULL)
    try:
        first = look(trainer, run, device, FIRST_LOOK, 0.0)
        second = look(trainer, run, device, FIRST_LOOK, first[1] + TIMED_SECONDS)
    finally:
        trainer.kill()
        trainer.wait()
    shutil.rmtree(run)
    return (second[1] - first[1]) / (second[0] - first[0])


def look(
    trainer: subprocess.Popen[bytes], run: Path, device: str, after_step: int, after_seconds: float
) -> tuple[int, float]:
    """Wait for a new line of metrics after this step and these seconds, and return its step and the seconds.

    Raises RuntimeError if the trainer ends first.
    """
    process = psutil.Process(trainer.pid)
    seen = len(read_metrics(str(run)))
    while trainer.poll() is None:
        lines = read_metrics(str(run))
        if len(lines) > seen and lines[-1]["step"] > after_step:
            times = process.cpu_times()
            seconds = times.user + times.system if device == "cpu" else float(lines[-1]["seconds"])
            if seconds > after_seconds:
                return lines[-1]["step"], seconds
        seen = len(lines)
        time.sleep(0.005)
    raise RuntimeError(f"The trainer ended with code {trainer.returncode} while its steps were timed.")


def command(name: str, run: Path, steps: int, settings: Settings) -> list[str]:
    """Return the trainer's command line for a recipe with a number of steps."""
    recipe = str(HERE / "small_bert.toml") if name == SMALL_BERT else name
    chosen: Settings = {
        "run.output": run,
        "run.max_steps": steps,
        "run.log_every": max(1, steps // 200),
        "checkpoint.every": NEVER,
        "checkpoint.keep": 1,
    }
    if name == SMALL_BERT:
        chosen["schedule.warmup_steps"] = max(1, int(WARMUP_SHARE * steps))
    else:
        chosen["run.max_hours"] = "none"

    words = [sys.executable, "-m", "trainer", "--config", recipe]
    for key, value in (chosen | settings).items():
        words += ["--set", f"{key}={value}"]
    return words


def one_thread(device: str) -> Mapping[str, str]:
    """Return the environment of a contestant: one thread, and no GPU if the device is "cpu"."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return environment | {"DS_ACCELERATOR": "cpu"} if device == "cpu" else environment


# ---- Commands of the pipeline and the export, whose finished folders are kept ----


def run_line(line: str) -> None:
    """Print a command and run it with this Python. Raises CalledProcessError if it fails."""
    print(f"$ {line}", file=sys.stderr, flush=True)
    words = [sys.executable if word == "python" else word for word in shlex.split(line)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=one_thread("cpu"))


def make(folder: Path, line: str) -> None:
    """Run a command of the pipeline unless its folder is finished."""
    if not (folder / NAME).exists():
        run_line(line)


def export(run: Path, hf: Path, averaged: int) -> None:
    """Write the mean of the run's last checkpoints as a folder in the Hugging Face format, unless it exists."""
    if not (hf / "config.json").exists():
        run_line(f"python -m trainer.export {run} --output {hf} --average {averaged}")
