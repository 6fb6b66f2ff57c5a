"""Ranks without a launcher: the environment that a launcher would give them, and commands that start them all."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from tests.forked import ROOT, Command
from tests.ports import free_port

SECONDS = 240


def environments(ranks: int) -> list[dict[str, str]]:
    """Return what a launcher would give to each rank, the processes of one machine."""
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "PYTHONPATH": str(ROOT),
    }
    return [os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def run_ranks(
    ranks: int, flags: list[str], faults: str = "", program: str = "trainer", disks: list[Path] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program of the trainer as so many ranks, and return what they printed, rank by rank.

    The exit code is the worst of the ranks'; a killed rank's is negative.

    faults: see faults.py.
    disks: the working folder of each rank, which is then a separate node.
    """
    words = ["python", "-m", "tests.trainer.faulty_rank", faults, program, *flags]
    with ExitStack() as stack:
        files = [[stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks)] for _ in range(2)]
        commands = []
        for rank, environment in enumerate(environments(ranks)):
            node = {"CLOZELINE_NODE": f"node-{rank}"} if disks else {}
            folder = disks[rank] if disks else None
            commands.append(Command(words, environment | node, folder, None, files[0][rank], files[1][rank]))
            stack.callback(commands[-1].kill)

        codes = [command.wait(SECONDS) for command in commands]
        out, err = ("".join(_text(file) for file in of_ranks) for of_ranks in files)
    return subprocess.CompletedProcess(words, max(codes, key=abs), out, err)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
