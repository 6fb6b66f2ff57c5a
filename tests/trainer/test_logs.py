"""Which ranks log what, and where to."""

import logging

import pytest

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


def test_the_root_logger_is_left_alone(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """A program that configures logging itself does not get every line twice."""
    with caplog.at_level(logging.DEBUG):
        logger.info("Once.")
    assert caplog.records == []
    assert capsys.readouterr().out.count("Once.") == 1


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
