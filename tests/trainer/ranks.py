"""Ranks without a launcher: what they find in their environment, and ranks that stay for many runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path


def free_port() -> int:
    with socket.socket() as free:  # several sets of ranks may be at work on one machine
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def environments(ranks: int) -> list[dict[str, str]]:
    """What a launcher would give to each rank, the processes of one machine."""
    together = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "PYTHONPATH": "."}
    together |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [os.environ | together | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


class WarmRanks:
    """Ranks that stay, each a process of warm_rank.py; `alive` is False once a run has ended them or went wrong."""

    def __init__(self, ranks: int, logs: Path):
        self.alive = True
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.trainer.warm_rank"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for environment in environments(ranks)
        ]
        self._logs = [(logs / f"{ranks}-{rank}.out", logs / f"{ranks}-{rank}.err") for rank in range(ranks)]

    def run(self, flags: list[str], faults: str) -> subprocess.CompletedProcess[str]:
        """One run of all ranks, with what they printed, rank by rank."""
        try:
            for process, (out, err) in zip(self._processes, self._logs, strict=True):
                job = {"flags": flags, "faults": faults, "out": str(out), "err": str(err)}
                print(json.dumps(job), file=process.stdin, flush=True)
            codes = [process.stdout.readline() for process in self._processes]  # type: ignore[union-attr]
            assert all(codes), "a rank has ended"
        except BaseException:
            self.close()
            raise
        out, err = ("".join(file.read_text() for file in files) for files in zip(*self._logs, strict=True))
        return subprocess.CompletedProcess(flags, max(map(int, codes)), out, err)

    def close(self) -> None:
        self.alive = False
        for process in self._processes:
            process.kill()
            process.communicate()
