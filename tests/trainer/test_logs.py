"""Which ranks log what, and where to."""

import logging
import sys
from pathlib import Path

import pytest

from schemas.errors import UsageError
from trainer.command_line import print_error
from trainer.logs import EVERY_RANK, logger, rank_of_process


def log_three_lines() -> None:
    logger.info("Step %d of %d.", 3, 12)
    logger.info("%s holds the lock.", "node-7", extra=EVERY_RANK)
    logger.error("The disk is full.")


def test_rank_0_logs_everything(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "0")
    log_three_lines()
    printed = capsys.readouterr()
    assert printed.out == "Step 3 of 12.\nnode-7 holds the lock.\n"
    assert printed.err == "clozeline: The disk is full.\n"


def test_other_ranks_log_only_what_they_alone_know(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "5")
    log_three_lines()
    printed = capsys.readouterr()
    assert printed.out == "rank 5: node-7 holds the lock.\n"
    assert printed.err == "clozeline: rank 5: The disk is full.\n"


def test_a_name_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Line breaks stay, because some errors have several lines."""
    monkeypatch.setenv("RANK", "0")
    logger.info("%s is written.", "out\x1b[2J\u202e")
    print_error(UsageError("out\x1b[2J: no such folder.\nout\t: no such folder."), rank=0)
    printed = capsys.readouterr()
    assert printed.out == "out\\x1b[2J\\u202e is written.\n"
    assert printed.err == "clozeline: out\\x1b[2J: no such folder.\nout\\t: no such folder.\n"


def test_a_line_is_logged_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Also in a program that configures the root logger itself."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(sys.stdout)])
    logger.info("Once.")
    assert capsys.readouterr().out == "Once.\n"


@pytest.mark.parametrize(
    ("environment", "rank"),
    [({}, 0), ({"SLURM_PROCID": "3"}, 3), ({"SLURM_PROCID": "3", "RANK": "1"}, 1)],
    ids=["alone", "slurm", "launcher"],
)
def test_a_rank_is_the_launcher_s_or_slurm_s(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], rank: int
) -> None:
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert rank_of_process() == rank


@pytest.mark.parametrize("has_gpu", [False, True])
def test_deepspeed_says_that_it_takes_the_cpu_only_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_gpu: bool
) -> None:
    device = tmp_path / "nvidia0"
    if has_gpu:
        device.touch()
    monkeypatch.setattr("trainer.logs.GPU_DEVICES", (device,))
    deepspeed = logging.getLogger("DeepSpeed")

    def is_shown(message: str) -> bool:
        return bool(deepspeed.filter(logging.LogRecord("DeepSpeed", logging.WARNING, "", 1, message, None, None)))

    assert is_shown("Setting accelerator to CPU. If you have GPU or other accelerator, we were unable...") == has_gpu
    assert is_shown("Setting ds_accelerator to cuda (override)")
    assert is_shown("The disk is slow.")
