"""A logged line is the mean of its interval, and the same after any resume."""

import json
from pathlib import Path

import pytest

from trainer.metrics.interval import Interval
from trainer.step_result import BatchCounts, StepResult


def step(mlm_sum: float, masked: float, pairs: float = 0.0, norm: float = 1.0, loss: float = 1.0) -> StepResult:
    counts = BatchCounts(masked=masked, pairs=pairs, tokens=10 * masked, computed=20 * masked)
    return StepResult(1, counts, mlm_sum, masked / 2, pairs, pairs / 4, loss, norm, None)


def interval_of(*steps: StepResult) -> Interval:
    interval = Interval()
    for one in steps:
        interval.add(one)
    return interval


def test_sums_are_divided_by_the_sums_of_their_counts() -> None:
    means = interval_of(step(30.0, 10, pairs=4, norm=1.0), step(10.0, 30, pairs=12, norm=2.0)).means()
    assert means["mlm_loss"] == 1.0  # the mean of the steps' own losses would be 1.67
    assert means["pair_loss"] == 1.0 and means["pair_accuracy"] == 0.25
    assert means["loss"] == 2.0 and means["mlm_accuracy"] == 0.5
    assert means["grad_norm"] == 1.5 and means["padding_fraction"] == 0.5


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_steps_that_are_not_finite_are_left_out(bad: float) -> None:
    means = interval_of(step(30.0, 10), step(bad, 10, loss=bad, norm=-1.0)).means()
    assert means["mlm_loss"] == 3.0 and means["grad_norm"] == 1.0
    alone = interval_of(step(bad, 10, loss=bad, norm=bad)).means()
    assert alone["loss"] is None and alone["grad_norm"] is None and alone["pair_loss"] is None


def test_the_share_of_masked_tokens_leaves_out_steps_that_are_not_finite() -> None:
    nan = float("nan")
    interval = interval_of(step(30.0, 10), step(nan, 10, loss=nan), step(nan, 10, loss=nan))
    assert interval.masked / interval.tokens_of_losses == 0.1
    assert interval.tokens == 300


def test_an_interval_survives_a_checkpoint_to_the_last_bit() -> None:
    interval = interval_of(step(1 / 3, 7, pairs=3, norm=0.1), step(2 / 7, 11, norm=1e-300))
    assert Interval.model_validate_json(interval.model_dump_json()) == interval


def lines_of(out: Path) -> dict[int, dict]:
    lines = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines}


def test_a_run_logs_means_and_resumes_inside_an_interval(training, tmp_path: Path) -> None:
    """Stopped after 3 and 7 of 12 steps with a line every 5."""
    every, whole, resumed = (tmp_path / name for name in ("every", "whole", "resumed"))
    assert training.warm(2, every, checkpoint__every=100).returncode == 0
    assert training.warm(2, whole, run__log_every=5, checkpoint__every=100).returncode == 0
    for stop in (3, 7, 12):
        done = training.warm(2, resumed, run__log_every=5, checkpoint__every=100, run__stop_at=stop)
        assert done.returncode == 0, done.stderr
    assert list(training.losses(whole)) == [1, 5, 10, 12]
    assert training.losses(resumed) == training.losses(whole)

    each, means = lines_of(every), lines_of(whole)
    for first, last in ((2, 5), (6, 10), (11, 12)):
        inside = [each[number] for number in range(first, last + 1)]
        assert means[last]["grad_norm"] == pytest.approx(sum(line["grad_norm"] for line in inside) / len(inside))
        assert means[last]["lr"] == each[last]["lr"] and means[last]["tokens"] == each[last]["tokens"]
        # all steps have 16 labeled rows, and nearly as many masked tokens
        assert means[last]["pair_loss"] == pytest.approx(sum(line["pair_loss"] for line in inside) / len(inside))
        mean = sum(line["mlm_loss"] for line in inside) / len(inside)
        assert means[last]["mlm_loss"] == pytest.approx(mean, rel=0.01)
