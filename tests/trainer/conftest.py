"""Training as a user starts it, shrunk until a run takes seconds."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

BIN = Path(sys.executable).parent
LAUNCHERS = {
    "deepspeed": "deepspeed --quiet --num_gpus 2 --master_port {port} --module trainer",
    "one node": "deepspeed --quiet --hostfile {hostfile} --no_ssh --master_addr 127.0.0.1 --master_port {port} "
    "--node_rank {node} --module trainer",
    "torchrun": "torchrun --nproc_per_node 2 --master_port {port} -m trainer",
    "python": "python -m trainer",
}
SHRUNK = {
    "model.width": 32,
    "model.feedforward": 64,
    "model.dropout": 0.1,
    "model.attention_dropout": 0.1,
    "batch.global_batch": 16,
    "batch.micro_batch": 4,
    "optimizer.lr": 3e-3,
    "schedule.warmup_steps": 4,
    "run.max_steps": 12,
    "run.log_every": 1,
    "checkpoint.every": 4,
}
Done = subprocess.CompletedProcess[str]


class Training:
    """Commands on the shrunk tiny recipe; `run__seed=1` means --set run.seed=1, `config` is another recipe."""

    def __init__(self, run: Callable[..., Done], pairs: Path):
        self._run, self._pairs = run, pairs
        with socket.socket() as free:  # several sets of ranks may be at work on one machine
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def flags(self, out: Path, **changes: object) -> list[str]:
        config = changes.pop("config", "trainer/recipes/tiny.toml")
        values = SHRUNK | {"data.pairs": self._pairs, "run.output": out}
        values |= {name.replace("__", "."): value for name, value in changes.items()}
        changed = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        return ["--config", str(config), *changed]

    def command(self, launcher: str, out: Path, **changes: object) -> list[str]:
        own = {name: changes.pop(name, None) for name in ("hostfile", "node")}
        return [*LAUNCHERS[launcher].format(port=self._port, **own).split(), *self.flags(out, **changes)]

    def run(
        self, launcher: str, out: Path, environment: dict[str, str] | None = None, **changes: object
    ) -> subprocess.CompletedProcess[str]:
        """Started and waited for."""
        return self._run(*self.command(launcher, out, **changes), **(environment or {}))

    def run_many(self, ranks: int, runs: list[tuple[Path, Path | None, dict[str, object]]], listed: Path) -> Done:
        """Runs (output, folder to begin with a copy of, changes) one after the other in one set of ranks."""
        jobs = [
            {"output": str(out), "copy_of": copy_of and str(copy_of), "flags": self.flags(out, **changes)}
            for out, copy_of, changes in runs
        ]
        listed.write_text(json.dumps(jobs))
        start = f"torchrun --nproc_per_node {ranks} --master_port {self._port} tests/trainer/many_runs.py"
        return self._run(*start.split(), listed, PYTHONPATH=".", OMP_NUM_THREADS="1", timeout=3600)

    def start(self, launcher: str, out: Path, **changes: object) -> subprocess.Popen[str]:
        """Started, in a process group of its own."""
        program, *rest = self.command(launcher, out, **changes)
        return subprocess.Popen(
            [str(BIN / program), *rest],
            env=os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @staticmethod
    def ranks(process: subprocess.Popen[str]) -> list[psutil.Process]:
        """The processes that train, by rank."""
        started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        return [found for found in started if _is_rank(found)]

    @staticmethod
    def losses(out: Path) -> dict[int, tuple]:
        """What must be equal in two runs that are the same: everything in the metrics but times."""
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == sorted({line["step"] for line in lines})
        timed = ("tokens_per_second", "loader_stall_fraction", "seconds")
        return {line["step"]: tuple(v for name, v in line.items() if name not in timed) for line in lines}

    @staticmethod
    def tensors(out: Path, step: int) -> dict[str, list]:
        """All weights and optimizer moments of a checkpoint."""
        files = sorted((out / f"checkpoints/step-{step:08d}").glob("*.safetensors"))
        return {f"{file.stem}/{name}": t.tolist() for file in files for name, t in load_file(file).items()}


def _is_rank(process: psutil.Process) -> bool:
    """Not a launcher, which has the same words further on."""
    try:
        words = process.cmdline()
    except psutil.Error:  # it has just ended
        return False
    return words[1:3] == ["-m", "trainer"] or words[1:4] == ["-u", "-m", "trainer"]


@pytest.fixture(scope="session")
def training(run: Callable[..., Done], pairs: Path) -> Training:
    return Training(run, pairs)


@pytest.fixture(scope="session")
def straight(training: Training, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run of 12 steps on two ranks."""
    out = tmp_path_factory.mktemp("straight") / "run"
    done = training.run("deepspeed", out)
    assert done.returncode == 0, done.stderr
    return out
