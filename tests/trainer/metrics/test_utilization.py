"""MFU and HFU in metrics.jsonl: what they are fractions of, and null where no peak is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_models import section
from trainer.metrics.log import NAMES, MetricsLog, read_metrics
from trainer.metrics.step_clock import MeasuredInterval
from trainer.metrics.utilization import Utilization
from trainer.models.families import encoder_shape
from trainer.models.flops import ExecutedWork, executed_flops, flops_per_token

SHAPE = encoder_shape(section("bert"), 160)
WORK = ExecutedWork(tokens=1000, computed=1200, padding_pairs=200 * 32, sequences=40, predicted=160)


def logged(run: Path, utilization: Utilization | None, work: ExecutedWork) -> dict:
    line = dict.fromkeys(NAMES, 1.0) | {"step": 1, "tokens_per_second": 250.0}
    metrics = MetricsLog(str(run), 0, 1, utilization)
    metrics.log(line, MeasuredInterval(0.5, work, []))
    metrics.close()
    return read_metrics(str(run))[0]


def test_both_are_operations_over_the_peak(tmp_path: Path) -> None:
    peak = 1e12
    line = logged(tmp_path, Utilization(SHAPE, 30.0, 0.15, peak), WORK)
    assert line["mfu"] == pytest.approx(250 * flops_per_token(SHAPE, 30.0, 0.15) / peak)
    assert line["hfu"] == pytest.approx(250 * executed_flops(SHAPE, WORK, 30.0, False) / 1000 / peak)
    assert line["step_seconds"] == 0.5


def test_recomputed_layers_count_in_one_of_them() -> None:
    once, twice = (Utilization(SHAPE, 30.0, 0.15, 1e12, recompute) for recompute in (False, True))
    assert twice.mfu(250.0) == once.mfu(250.0)
    assert 1.2 < (twice.hfu(250.0, WORK) or 0) / (once.hfu(250.0, WORK) or 1) < 4 / 3


def test_without_a_peak_or_work_they_are_null(tmp_path: Path) -> None:
    unknown = logged(tmp_path / "cpu", None, WORK)
    assert unknown["mfu"] is None and unknown["hfu"] is None
    nothing = logged(tmp_path / "gpu", Utilization(SHAPE, 30.0, 0.15, 1e12), ExecutedWork())
    assert nothing["mfu"] is not None and nothing["hfu"] is None
