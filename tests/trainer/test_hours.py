"""run.max_hours: the number of steps that fits is fixed on the first steps, and the run is one of that many steps."""

import json
import shutil
import tomllib
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UsageError
from trainer.cli import main
from trainer.config.load import load_recipe
from trainer.config.schema import Recipe
from trainer.length import Hours, Speed, steps_that_fit, with_steps

TINY = "tests/recipes/small_bert.toml"
UNKNOWN_LENGTH = {"run__max_hours": 0.05, "run__max_steps": 1_000_000, "schedule__warmup_steps": 32}


def recipe_of(*changes: str) -> Recipe:
    return load_recipe(TINY, ["model.vocab_size=500", "data.pairs=/none", *changes])


# How many steps fit

seconds = st.floats(0.001, 100)


def plain_seconds(steps: int, speed: Speed, every: int) -> float:
    """What a run takes, step by step. The last step is evaluated, too."""
    return sum(
        speed.step + (speed.evaluation if step % every == 0 or step == steps else 0.0) for step in range(1, steps + 1)
    )


@given(st.builds(Speed, seconds, seconds), st.floats(0, 100), st.integers(1, 60), st.integers(1, 9))
def test_no_larger_number_of_steps_fits(speed: Speed, available: float, max_steps: int, every: int) -> None:
    steps = min(steps_that_fit(available, speed, every), max_steps)
    assert 0 <= steps <= max_steps
    assert plain_seconds(steps, speed, every) <= available + 1e-6
    assert steps == max_steps or plain_seconds(steps + 1, speed, every) > available - 1e-6


# When it is fixed


class Clock:
    """A run of `hours` whose steps take `seconds` each, the first one `first`, in one process without a group."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *changes: str, evaluation: float = 0.0):
        self.now = 0.0
        self.recipe = recipe_of("run.max_steps=1000000", *changes)
        self.hours = Hours(self.recipe, started=0.0)
        self.planned = self.recipe
        self.evaluation = evaluation
        self.fixed: list[tuple[int, int]] = []
        monkeypatch.setattr("trainer.length.run_on_rank_0", lambda act: act())
        monkeypatch.setattr("trainer.length.perf_counter", lambda: self.now)

    def train(self, steps: range, seconds: float, first: float | None = None) -> None:
        """Take steps. `fixed` has each new number with the step after which it was fixed."""
        for step in steps:
            taken = first if first is not None and step == steps[0] else seconds
            self.now += taken
            number = self.hours.after_step(step, taken, self.planned, self.evaluate)
            if number is not None and number != self.planned.run.max_steps:
                self.planned = with_steps(self.recipe, number)
                self.fixed.append((step, number))

    def evaluate(self) -> float:
        self.now += self.evaluation
        return self.evaluation


@pytest.mark.parametrize(
    ("seconds", "first", "warmup", "step"),
    [
        (0.1, 0.1, 1000, 512),
        (0.1, 60.0, 1000, 512),
        (1.9, 1.9, 1000, 32),
        (11, 11, 1000, 8),
        (80, 80, 100, 4),
        (0.1, 0.1, 200, 200),
        (0.1, 0.1, 8, 8),
    ],
)
def test_the_number_is_fixed_after_half_a_minute_or_with_the_warm_up(
    monkeypatch: pytest.MonkeyPatch, seconds: float, first: float, warmup: int, step: int
) -> None:
    clock = Clock(monkeypatch, "run.max_hours=10", f"schedule.warmup_steps={warmup}", evaluation=20.0)
    clock.train(range(1, warmup + 100), seconds, first)
    (fixed,) = clock.fixed
    assert fixed[0] == step
    evaluated = fixed[1] / clock.recipe.evaluation.every * 20.0
    assert clock.hours.speed == (pytest.approx(seconds), 20.0)
    assert first + fixed[1] * seconds + evaluated == pytest.approx(0.98 * 36_000, rel=0.02)


@pytest.mark.parametrize(("warmup", "busy"), [(2000, 64), (8, 8)], ids=["in the warm-up", "too few steps before"])
def test_the_number_is_fixed_again_at_another_speed(monkeypatch: pytest.MonkeyPatch, warmup: int, busy: int) -> None:
    """The machine was busy when the run began."""
    clock = Clock(monkeypatch, "run.max_hours=0.5", f"schedule.warmup_steps={warmup}")
    clock.train(range(1, busy + 1), 0.5)
    clock.train(range(busy + 1, 3000), 0.05)
    assert len(clock.fixed) >= 2 and clock.fixed[-1][0] <= 2000
    assert clock.fixed[-1][1] > 4 * clock.fixed[0][1]


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [(0.1, None), (0.12, None), (0.01, 14_156), (0.4, 356), (30.0, None)],
    ids=["equal", "nearly", "faster", "slower", "too slow for the schedule"],
)
def test_the_first_steps_of_a_resume_decide_if_they_differ_much(
    seconds: float, steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, "run.max_hours=0.05", "schedule.warmup_steps=40")
    clock.hours.speed = Speed(0.1, 0.0)
    clock.hours.seconds_before = 35.0
    clock.planned = with_steps(clock.recipe, 1500)
    clock.train(range(100, 356), seconds)
    found = [number for _, number in clock.fixed]
    assert found == ([] if steps is None else [pytest.approx(steps, abs=350)])


def test_a_resume_near_the_end_keeps_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start takes much of the time that is left, but no more than what is held back for that."""
    clock = Clock(monkeypatch, "run.max_hours=1", "schedule.warmup_steps=40")
    clock.hours.speed = Speed(1.0, 0.0)
    clock.hours.seconds_before = 3440 + 40
    clock.planned = with_steps(clock.recipe, 3520)
    clock.train(range(3441, 3520), 1.0)
    assert clock.fixed == []


# What a recipe may say


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["run.max_hours=0"], r"run\.max_hours: .*greater than 0"),
        (["batch.ramp_from=16", "batch.ramp_steps=5"], r"Set batch\.ramp_from=none and batch\.ramp_steps=none"),
        (["masking.final_prob=0.1"], r"Set masking\.final_prob=none"),
        (["schedule.warmup_steps=0"], r"Set schedule\.warmup_steps to 8 or more"),
        (["schedule.warmup_steps=0", "schedule.warmup_ratio=0.1"], r"leave schedule\.warmup_ratio out"),
        (["schedule.warmup_ratio=1.5"], r"schedule\.warmup_ratio: .*less than or equal to 1"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe_of("run.max_hours=1", "schedule.warmup_steps=100", *changes)


@pytest.mark.parametrize("key", ["max_hours", "max_epochs"])
def test_phases_have_steps_of_their_own(key: str) -> None:
    with pytest.raises(UsageError, match=rf"run\.{key} is not for a run with phases.*Set phases=none"):
        load_recipe("bert_large_lamb", [f"run.{key}=2"])
    assert getattr(load_recipe("bert_large_lamb", ["phases=none", f"run.{key}=2"]).run, key) == 2


def test_a_warm_up_that_is_longer_than_what_fits_is_refused_with_the_way_out() -> None:
    recipe = recipe_of("run.max_hours=2", "schedule.warmup_steps=50")
    assert with_steps(recipe, 50).run.max_steps == 50
    with pytest.raises(UsageError) as told:
        with_steps(recipe, 49)
    assert str(told.value) == (
        "49 steps fit into run.max_hours 2, but the learning rate warms up for schedule.warmup_steps 50. Lower that, "
        "or raise run.max_hours."
    )


# Runs


def test_the_hours_begin_before_torch_is_imported(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes many seconds on a slow disk."""
    times: list[float] = []
    monkeypatch.setattr("trainer.cli.check_launcher", lambda: times.append(perf_counter()))
    monkeypatch.setattr("trainer.train.pretrain", lambda *arguments: times.append(arguments[3]))
    assert main(["--config", TINY, "--set", f"data.pairs={pairs}"]) == 0
    checked, started = times
    assert started < checked


def run_of(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "recipe.toml").read_text())["run"]


@pytest.fixture(scope="module")
def measured(training, held_out, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two ranks whose number of steps is fixed in its warm-up, up to step 40."""
    out = tmp_path_factory.mktemp("hours") / "hours"
    done = training.trained(2, out, run__stop_at=40, **UNKNOWN_LENGTH, **evaluated(held_out))
    assert done.stdout.count("steps fit into 0.05 hours (a step takes ") == 1
    return out


def evaluated(held_out: Path) -> dict[str, object]:
    return {"evaluation__pairs": held_out, "evaluation__every": 20, "checkpoint__every": 20}


def test_the_number_of_steps_decides_the_weights(training, measured, held_out, tmp_path) -> None:
    steps = run_of(measured)["max_steps"]
    assert isinstance(steps, int) and 40 < steps < 1_000_000
    assert not (measured / "recipe_history.jsonl").exists(), "a number that is fixed for the first time is no change"

    known = UNKNOWN_LENGTH | {"run__max_hours": "none", "run__max_steps": steps, "run__stop_at": 40}
    training.trained(2, tmp_path / "steps", **known, **evaluated(held_out))
    assert training.losses(measured) == training.losses(tmp_path / "steps")
    assert training.tensors(measured, 40) == training.tensors(tmp_path / "steps", 40)

    done = training.warm(1, tmp_path / "steps", **UNKNOWN_LENGTH)
    assert done.returncode == 2 and "began with run.max_hours none, and now it is 0.05" in done.stderr, done.stderr


def test_a_resume_keeps_the_number(training, measured, tmp_path) -> None:
    """On another number of ranks, at another speed, and with another upper limit."""
    out = shutil.copytree(measured, tmp_path / "run")
    steps = run_of(out)["max_steps"]
    done = training.trained(1, out, **UNKNOWN_LENGTH | {"run__max_steps": 2_000_000, "run__stop_at": 41})
    told = done.stdout + done.stderr
    assert "steps fit into" not in told and "run.max_steps was" not in told
    assert f"keeps the {steps:,} steps that run.max_hours 0.05 fixed, unless" in told
    assert run_of(out)["max_steps"] == steps

    done = training.warm(1, out, **UNKNOWN_LENGTH | {"run__max_hours": 0.1})
    assert done.returncode == 2, done.stderr
    assert "began with run.max_hours 0.05, and now it is 0.1" in done.stderr

    done = training.warm(1, out, **UNKNOWN_LENGTH | {"run__max_hours": 0.1, "model__hidden_size": 64})
    assert "belongs to a run with other settings: model.hidden_size was" in done.stderr, done.stderr

    done = training.warm(1, out, **UNKNOWN_LENGTH | {"run__max_steps": 41})
    assert done.returncode == 2, done.stderr
    assert f"run.max_steps allows 41 steps, fewer than the {steps:,} that run.max_hours 0.05 fixed" in done.stderr


def test_a_run_that_stops_before_the_number_is_fixed_measures_again(training, tmp_path) -> None:
    """Also at the end of its warm-up, after which the rate depends on the number."""
    out = tmp_path / "run"
    for stop in (3, 32, 40):
        training.trained(1, out, **UNKNOWN_LENGTH, run__stop_at=stop)
    steps = run_of(out)["max_steps"]
    assert isinstance(steps, int) and 40 < steps < 1_000_000
    assert list(training.losses(out)) == list(range(1, 41))


def test_max_steps_is_the_upper_limit(training, tmp_path) -> None:
    done = training.trained(1, tmp_path / "run", run__max_hours=0.05, run__max_steps=12, schedule__warmup_steps=10)
    assert "12 steps, all that run.max_steps allows, fit into 0.05 hours" in done.stdout + done.stderr
    assert max(training.losses(tmp_path / "run")) == 12


def test_hours_that_hold_no_step_are_refused(training, tmp_path) -> None:
    done = training.warm(1, tmp_path / "run", **UNKNOWN_LENGTH | {"run__max_hours": 1e-6})
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("clozeline: run.max_hours 1e-06 is too short: ")
    assert line.endswith("in its place: run.max_hours=none with run.max_steps=N.")
    assert list(training.losses(tmp_path / "run")) == list(range(1, 17)), "every step that was computed"

    training.trained(1, tmp_path / "run", **UNKNOWN_LENGTH, run__stop_at=20)
    assert list(training.losses(tmp_path / "run")) == list(range(1, 21)), "the hours may be raised"


# Another speed


def test_a_resume_at_another_speed_fixes_the_steps_again(training, tmp_path) -> None:
    """When it began, other programs had taken its cores: four steps a second. Now it is many times faster."""
    out = tmp_path / "run"
    changes = UNKNOWN_LENGTH | {"batch__micro_batch": 16, "checkpoint__every": 1000, "run__log_every": 5}
    changes |= {"run__max_hours": 0.02, "schedule__warmup_steps": 8}
    training.trained(1, out, "sluggish:0:1:1000", **changes, run__stop_at=10)
    first = run_of(out)["max_steps"]
    assert isinstance(first, int) and 40 < first < 288

    done = training.trained(1, out, "nan:0:16:16", **changes, run__stop_at=300)
    steps = run_of(out)["max_steps"]
    assert isinstance(steps, int) and steps > 2 * first
    assert f"{steps:,} steps fit into 0.02 hours, not {first:,} (a step takes " in done.stdout
    assert training.losses(out).keys() >= {5, 10, 15, 20, 25, 300}, "the metrics have no gap"

    (change,) = [json.loads(line) for line in (out / "recipe_history.jsonl").read_text().splitlines()]
    assert (change["key"], change["before"], change["now"]) == ("run.max_steps", first, steps)
