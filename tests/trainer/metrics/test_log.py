"""Metrics over resumes: one line a step, whatever was cut, and TensorBoard's copy the same."""

import io
import json
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer.metrics import speed
from trainer.metrics.log import NAMES, MetricsLog, read_metrics
from trainer.metrics.speed import Meter


def line(step: int, **more: float | None) -> dict:
    return dict.fromkeys(NAMES, float(step)) | {"step": step, "mfu": None} | more


def evaluated(step: int, **more: float | None) -> dict:
    figures = dict.fromkeys(("eval_mlm_loss", "eval_mlm_accuracy", "eval_perplexity"), 0.5)
    return {"step": step, "tokens": 100, "seconds": 1.0} | figures | more


def test_an_evaluation_that_is_made_again_has_one_line(tmp_path: Path) -> None:
    """As after a kill between the line of the evaluation and its file in the checkpoint."""
    for is_evaluated, lines in ((True, 2), (False, 1)):
        run = tmp_path / str(is_evaluated)
        metrics = MetricsLog(str(run), 0, 10)
        metrics.log(line(1), [])
        metrics.log_evaluation(evaluated(1))
        metrics.close()
        MetricsLog(str(run), 1, 10, is_evaluated=is_evaluated).close()
        assert len(read_metrics(str(run))) == lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_shows_no_length_before_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    metrics = MetricsLog(str(tmp_path), 0, None)
    assert "0 steps [" in terminal.getvalue()
    metrics.set_length(123)
    metrics.close()
    assert "0/123 [" in terminal.getvalue()


def run_resumed(run: Path) -> None:
    """Steps 1 to 5, of which the last one is cut short by a kill, then on from 3."""
    metrics = MetricsLog(str(run), 0, 10)
    for step in range(1, 6):
        metrics.log(line(step), [])
    metrics.close()

    path = run / "metrics.jsonl"
    path.write_text(path.read_text()[:-9])

    metrics = MetricsLog(str(run), 3, 10)
    metrics.log(line(4), [])
    metrics.log_evaluation(evaluated(4, eval_pair_accuracy=None))
    metrics.close()


def test_lines_are_unbroken_and_evaluations_have_their_own(tmp_path: Path, capsys) -> None:
    run_resumed(tmp_path)
    found = read_metrics(str(tmp_path))
    assert [entry["step"] for entry in found] == [1, 2, 3, 4, 4]
    assert list(found[0]) == NAMES and list(found[3]) == NAMES
    assert list(found[4])[:3] == ["step", "tokens", "seconds"] and "loss" not in found[4]
    assert found[4]["eval_mlm_loss"] == 0.5 and found[4]["eval_pair_accuracy"] is None
    told = capsys.readouterr().out
    assert "step 4  held out: mlm 0.5000 (accuracy 0.500, perplexity 0.5)\n" in told


def test_the_terminal_shows_the_heads_that_there_are(tmp_path: Path, capsys) -> None:
    metrics = MetricsLog(str(tmp_path), 0, 10)
    metrics.log(line(1, pair_accuracy=None), [])
    metrics.log(line(2, pair_accuracy=None, rtd_loss=0.25, rtd_accuracy=0.75, replaced_fraction=0.1), [])
    metrics.log(line(3, pair_accuracy=0.5), [])
    metrics.close()

    first, second, third = [shown for shown in capsys.readouterr().out.splitlines() if shown.startswith("step ")]
    assert "pair" not in first and "rtd" not in first
    assert "  rtd 0.2500 (accuracy 0.750)  lr" in second and "pair" not in second
    assert "  pair accuracy 0.500  lr" in third and "rtd" not in third


def test_the_terminal_shows_the_held_out_loss_at_mask_beside_word_frequencies(tmp_path: Path, capsys) -> None:
    metrics = MetricsLog(str(tmp_path), 0, 10)
    metrics.log_evaluation(evaluated(1, eval_mlm_loss_masked=5.6923, eval_unigram_loss=6.0362))
    metrics.close()
    assert "perplexity 0.5)  at [MASK] 5.6923  word frequencies alone 6.0362\n" in capsys.readouterr().out


def test_the_terminal_names_the_objective_of_the_loss(tmp_path: Path, capsys) -> None:
    """The keys of metrics.jsonl stay, and held-out figures are of masked LM in every phase."""
    metrics = MetricsLog(str(tmp_path), 0, 10)
    metrics.log(line(1), [])
    metrics.objective = "clm"
    metrics.log(line(2), [])
    metrics.log_evaluation(evaluated(2))
    metrics.close()

    shown = [told for told in capsys.readouterr().out.splitlines() if told.startswith("step ")]
    assert [("  mlm " in told, "  clm " in told) for told in shown[:2]] == [(True, False), (False, True)]
    assert "held out: mlm" in shown[2]
    assert read_metrics(str(tmp_path))[1]["mlm_loss"] == 2.0


def test_the_model_s_share_of_the_peak_follows_from_the_rate_and_is_null_without_a_peak(tmp_path: Path) -> None:
    for run, mfu_of_one_token, mfu in (("gpu", 2e-4, 0.05), ("cpu", None, None)):
        metrics = MetricsLog(str(tmp_path / run), 0, 10)
        metrics.mfu_of_one_token = mfu_of_one_token
        metrics.log(line(1, tokens_per_second=250.0), [])
        metrics.close()
        assert read_metrics(str(tmp_path / run))[0]["mfu"] == mfu


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> float:
    """The time at which the clock stands."""
    monkeypatch.setattr(speed, "perf_counter", lambda: 3.0)
    return 3.0


def test_time_that_was_skipped_is_in_no_rate(started: float) -> None:
    meter = Meter(tokens=100, seconds=50.0)
    meter.add(1000)
    meter.skip(-10.0)  # as if the last reading were ten seconds ago
    found = meter.read(started, stalled=5.0)
    assert found["tokens"] == 1100
    assert found["tokens_per_second"] == pytest.approx(100)
    assert found["loader_stall_fraction"] == pytest.approx(0.5)


def test_rates_and_seconds_are_those_of_the_time_that_is_given(started: float) -> None:
    """A step is read while the next one is computed, whose time is not the step's own."""
    meter = Meter(tokens=0, seconds=50.0)
    meter.add(1000)
    found = meter.read(started + 10.0, stalled=0.0)
    assert found["tokens_per_second"] == pytest.approx(100)
    assert found["seconds"] == pytest.approx(60)
    meter.add(1000)
    assert meter.read(started + 15.0, stalled=1.0)["tokens_per_second"] == pytest.approx(200)


def test_tensorboard_is_rewritten_after_a_resume(tmp_path: Path) -> None:
    """With the time of day of every value, over a start that a later one from an earlier step replaced."""
    starts = [(1e9, 0, 0.0), (2e9, 4, 4.0), (3e9, 3, 3.0)]
    lines = [json.dumps({"time": time, "step": step, "seconds": seconds}) for time, step, seconds in starts]
    (tmp_path / "starts.jsonl").write_text("\n".join(["{", *lines]))
    (tmp_path / "recipe.toml").write_text("[run]\noutput = 'mine'\n")
    run_resumed(tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    truth = [(line["step"], line["loss"]) for line in read_metrics(str(tmp_path)) if "loss" in line]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == truth
    assert [(event.step, event.value) for event in events.Scalars("eval/mlm_loss")] == [(4, 0.5)]
    assert "mfu" not in events.scalars.Keys()
    times = {event.step: event.wall_time for event in events.Scalars("loss")}
    assert times == {step: 1e9 + step if step <= 3 else 3e9 + step - 3 for step in times} and len(times) > 3
    (recipe,) = events.Tensors("recipe/text_summary")
    assert b"    output = 'mine'" in recipe.tensor_proto.string_val[0]


def test_monitors_get_the_metrics_and_nothing_else(training, tmp_path: Path) -> None:
    """DeepSpeed's own CSV monitor over a resume; its own loss is scaled, and would be another."""
    changes = {"enabled": "true", "output_path": f'"{tmp_path}/csv"', "job_name": '"job"'}
    settings = {f"deepspeed__csv_monitor__{name}": value for name, value in changes.items()}
    for stop in (3, 5):
        done = training.run("python", tmp_path / "run", run__stop_at=stop, **settings)
        assert done.returncode == 0, done.stderr
        assert "built successfully" not in done.stdout, "DeepSpeed says so even if nothing was built"
    rows = (tmp_path / "csv/job/loss.csv").read_text().split("\n")
    sent = {int(row.split(",")[0]): float(row.split(",")[1]) for row in rows if row[:1].isdigit()}
    assert sent == {line["step"]: line["loss"] for line in read_metrics(str(tmp_path / "run"))}
    assert not list((tmp_path / "csv/job").glob("Train*"))


def test_a_monitor_that_is_not_installed_is_named(training, tmp_path: Path) -> None:
    done = training.run("python", tmp_path, deepspeed__comet__enabled="true")
    assert done.returncode == 2 and "comet is enabled, but comet_ml is not installed" in done.stderr
