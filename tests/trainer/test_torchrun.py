"""torchrun's ranks, and the exit code and the time to save that only our launcher gives them."""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

from tests.forked import Command
from tests.ports import free_port
from tests.trainer.distributed.test_stop import listens, wait_for
from trainer import torchrun


@pytest.mark.parametrize(
    ("number", "ranks"), [(signal.SIGUSR1, 1), pytest.param(signal.SIGTERM, 2, marks=pytest.mark.thorough)]
)
def test_a_signal_to_the_launcher_lets_its_ranks_save(training, tmp_path, number: int, ranks: int) -> None:
    """tests/deploy/test_slurm.py resumes such a run."""
    out = tmp_path / "run"
    launched = ["python", "-m", "trainer.torchrun", "--nproc_per_node", str(ranks), "--master_port", str(free_port())]
    process = training.start_words([*launched, "-m", "trainer", *training.flags(out, run__max_steps=5000)])
    wait_for(out / "metrics.jsonl", process)
    process.send_signal(number)
    told, _ = process.communicate()
    assert process.returncode == 75, told
    assert "Traceback" not in told and told.count("asked to stop") == 1


def test_a_signal_before_there_are_ranks_ends_the_launcher(training, tmp_path) -> None:
    """It waits for another node, which never comes."""
    meeting = ["--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{free_port()}"]
    command = ["python", "-m", "trainer.torchrun", *meeting, "-m", "trainer", *training.flags(tmp_path / "run")]
    process = training.start_words(command)
    while not listens(process.pid):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    told, _ = process.communicate(timeout=200)
    assert process.returncode == 75 and "Traceback" not in told, told


@pytest.mark.thorough
def test_a_rank_that_is_killed_is_named(training, tmp_path) -> None:
    process = training.start("launcher", tmp_path / "run", run__max_steps=5000)
    wait_for(tmp_path / "run/metrics.jsonl", process)
    training.ranks(process)[1].kill()
    told, _ = process.communicate()
    assert process.returncode not in (0, 75) and "Traceback" not in told, told
    assert "The same command resumes from the last checkpoint." in told


@pytest.mark.parametrize(
    ("of_rank", "asked", "code"),
    [
        (75, signal.SIGUSR1, 75),
        (75, None, 75),  # another node was signaled
        (2, signal.SIGTERM, 2),
        (-signal.SIGKILL, signal.SIGTERM, 137),
        (-signal.SIGUSR1, signal.SIGUSR1, 75),  # before it listened
        (-signal.SIGUSR1, None, 128 + signal.SIGUSR1),
        (-signal.SIGINT, signal.SIGINT, 130),
    ],
)
def test_the_exit_code_is_that_of_the_first_rank_that_failed(of_rank: int, asked: int | None, code: int) -> None:
    assert torchrun.exit_code(of_rank, asked) == code


STORE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("filtered", [False, True])
def test_a_store_that_ends_first_is_no_error(caplog: pytest.LogCaptureFixture, filtered: bool) -> None:
    """torch's own wait at the end of a launcher, on a real store whose process is killed."""
    port = free_port()
    words = ["python", "-m", "tests.run_code", STORE, port]
    with Command(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None and host.stdout.readline() == "open\n"
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=20))
        host.kill()
        host.wait()

    group = SimpleNamespace(state="SUCCEEDED", group_world_size=2)
    agent: Any = SimpleNamespace(_worker_group=group, _store=store, _exit_barrier_timeout=5)
    logger = logging.getLogger(torchrun.LOGGER_OF_AGENTS)
    if filtered:
        logger.addFilter(torchrun.is_no_lost_barrier)
    try:
        with caplog.at_level(logging.INFO, torchrun.LOGGER_OF_AGENTS):
            SimpleElasticAgent._exit_barrier(agent)
    finally:
        logger.removeFilter(torchrun.is_no_lost_barrier)
    assert ("Error waiting on exit barrier" in caplog.text) is not filtered
