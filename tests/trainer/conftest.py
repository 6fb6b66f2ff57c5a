"""Training as a user starts it, shrunk until a run takes seconds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch import Tensor

from tests.conftest import made
from tests.forked import Command
from tests.ports import free_port
from tests.trainer.ranks import run_ranks
from trainer.checkpoint.rank_files import WEIGHTS, RankFiles
from trainer.distributed.zero import MOMENTS
from trainer.metrics.log import is_evaluation

LAUNCHERS = {
    "deepspeed": "deepspeed --quiet --num_gpus 2 --master_port {port} --module trainer",
    "one node": "deepspeed --quiet --hostfile {hostfile} --no_ssh --master_addr 127.0.0.1 --master_port {port} "
    "--node_rank {node} --module trainer",
    "torchrun": "torchrun --nproc_per_node 2 --master_port {port} -m trainer",
    "launcher": "python -m trainer.torchrun --nproc_per_node 2 --master_port {port} -m trainer",
    "python": "python -m trainer",
}
TIMED = (
    "tokens_per_second",
    "loader_stall_fraction",
    "mfu",
    "seconds",
    "step_seconds",
    "slowest_rank",
    "slowest_ratio",
    "peak_memory_bytes",
    "eval_seconds",
)
"""The metrics that measure time or memory, and therefore differ between two runs with equal results."""

SHRUNK = {
    "model.num_hidden_layers": 1,
    "model.hidden_size": 32,
    "model.intermediate_size": 64,
    "model.hidden_dropout_prob": 0.1,
    "model.attention_probs_dropout_prob": 0.1,
    "batch.global_batch": 16,
    "batch.micro_batch": 4,
    "optimizer.lr": 3e-3,
    "schedule.warmup_steps": 4,
    "run.max_steps": 12,
    "run.log_every": 1,
    "checkpoint.every": 4,
    "evaluation.batches": 4,
}
Done = subprocess.CompletedProcess[str]


class Training:
    """Commands on the shrunk tiny recipe; `run__seed=1` means --set run.seed=1, `config` is another recipe.

    `profile=3` means --profile 3.
    """

    def __init__(self, run: Callable[..., Done], pairs: Path):
        self._run = run
        self._pairs = pairs
        self._port = free_port()

    def flags(self, out: Path | str, **changes: object) -> list[str]:
        config = changes.pop("config", "tests/recipes/small_bert.toml")
        profile = ["--profile", str(changes.pop("profile"))] if "profile" in changes else []
        values = SHRUNK | {"data.pairs": self._pairs, "run.output": out}
        values |= {name.replace("__", "."): value for name, value in changes.items()}
        changed = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        return ["--config", str(config), *profile, *changed]

    def command(self, launcher: str, out: Path, **changes: object) -> list[str]:
        own = {name: changes.pop(name, None) for name in ("hostfile", "node")}
        return [*LAUNCHERS[launcher].format(port=self._port, **own).split(), *self.flags(out, **changes)]

    def run(
        self, launcher: str, out: Path, environment: dict[str, str] | None = None, **changes: object
    ) -> subprocess.CompletedProcess[str]:
        """Started and waited for."""
        return self._run(*self.command(launcher, out, **changes), **(environment or {}))

    def warm(self, ranks: int, out: Path, faults: str = "", **changes: object) -> Done:
        """As `run`, without a launcher and with faults: for runs whose start is not what is tried."""
        return run_ranks(ranks, self.flags(out, **changes), faults)

    def trained(self, ranks: int, out: Path, faults: str = "", **changes: object) -> Done:
        """As `warm`, for runs that must succeed."""
        done = self.warm(ranks, out, faults, **changes)
        assert done.returncode == 0, done.stderr
        return done

    def start(self, launcher: str, out: Path, **changes: object) -> Command:
        """Started in a new process group."""
        return self.start_words(self.command(launcher, out, **changes))

    @staticmethod
    def start_words(words: list[str]) -> Command:
        """A program of this environment, started in a new process group."""
        return Command(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    @staticmethod
    def ranks(process: Command) -> list[psutil.Process]:
        """The processes that train, by rank: all of a command that have started no others."""
        try:
            command = psutil.Process(process.pid)
            return [found for found in (command, *command.children(recursive=True)) if not found.children()]
        except psutil.NoSuchProcess:  # one of them ended in between
            return Training.ranks(process) if process.poll() is None else []

    @staticmethod
    def losses(out: Path) -> dict[int, tuple]:
        """What must be equal in two runs that are the same: everything in the metrics but times."""
        lines = logged(out)
        places = [(line["step"], is_evaluation(line)) for line in lines]
        assert places == sorted(set(places)), "the line of an evaluation follows that of its step"
        found: dict[int, tuple] = {}
        for line in lines:
            values = tuple(v for name, v in line.items() if name not in TIMED)
            found[line["step"]] = found.get(line["step"], ()) + values
        return found

    @staticmethod
    def tensors(out: Path, step: int) -> dict[str, list]:
        """All weights and optimizer moments of a checkpoint, whatever ranks have written it."""
        path = out / f"checkpoints/step-{step:08d}"
        kinds = (WEIGHTS, *MOMENTS)
        return {f"{kind}/{name}": tensor.tolist() for kind in kinds for name, tensor in saved(path, kind).items()}


def logged(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def saved(checkpoint: Path, kind: str = WEIGHTS) -> dict[str, Tensor]:
    """The weights of a checkpoint, or one of their moments, by name."""
    files = RankFiles(checkpoint)
    return {name: files.read(name, 0, prod(shape), kind).view(shape) for name, shape in files.shapes.items()}


@pytest.fixture(scope="session")
def training(run: Callable[..., Done], pairs: Path) -> Training:
    return Training(run, pairs)


@pytest.fixture(scope="session")
def straight(training: Training, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run of 12 steps on two ranks."""
    out = tmp_path_factory.mktemp("straight") / "run"
    training.trained(2, out)
    return out


@pytest.fixture(scope="session")
def counted(command: Callable[..., Done], pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The statistics of the pairs."""
    return made(command, tmp_path_factory.mktemp("counted") / "statistics", "statistics", "--pairs", pairs)
