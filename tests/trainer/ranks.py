"""Ranks without a launcher: the environment a launcher would give them, and ranks that stay for many runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.ports import free_port
from tests.trainer.warm_rank import ANSWER


def environments(ranks: int) -> list[dict[str, str]]:
    """Return what a launcher would give to each rank, the processes of one machine."""
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "PYTHONPATH": ".",
    }
    return [os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


class WarmRanks:
    """Ranks that stay, each a process of warm_rank.py; `alive` is False once a run has ended them or went wrong."""

    def __init__(self, ranks: int, logs: Path, disks: list[Path] | None = None):
        """disks: the working folder of each rank, which is a node of its own then."""
        self.alive = True
        self._processes = []
        for rank, environment in enumerate(environments(ranks)):
            node = {"CLOZELINE_NODE": f"node-{rank}", "PYTHONPATH": os.getcwd()} if disks else {}
            self._processes.append(start(environment | node, disks[rank] if disks else None))
        self._out = [logs / f"{ranks}-{rank}.out" for rank in range(ranks)]
        self._err = [logs / f"{ranks}-{rank}.err" for rank in range(ranks)]

    def run(self, flags: list[str], faults: str = "", program: str = "trainer.cli") -> subprocess.CompletedProcess[str]:
        """Run all ranks once, and return what they printed, rank by rank."""
        try:
            for process, out, err in zip(self._processes, self._out, self._err, strict=True):
                job = {"program": program, "flags": flags, "faults": faults, "out": str(out), "err": str(err)}
                print(json.dumps(job), file=process.stdin, flush=True)
            codes = [exit_code(process) for process in self._processes]
        except BaseException:
            self.close()
            raise

        out = "".join(file.read_text() for file in self._out)
        err = "".join(file.read_text() for file in self._err)
        return subprocess.CompletedProcess(flags, max(codes), out, err)

    def close(self) -> None:
        self.alive = False
        for process in self._processes:
            process.kill()
            process.communicate()


def start(environment: dict[str, str], folder: Path | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.trainer.warm_rank"],
        env=environment,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def exit_code(process: subprocess.Popen[str]) -> int:
    """Return the exit code that a rank answers with, past what libraries print before its first run."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(ANSWER):
            return int(line.removeprefix(ANSWER))
    raise AssertionError("a rank has ended")
