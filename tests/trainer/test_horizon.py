"""run.max_hours: the number of steps that fits is fixed once, and the run is then one of that many steps."""

import json
import shutil
import tomllib
from pathlib import Path
from time import sleep
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UsageError
from trainer import rehearsal
from trainer.config.load import load_recipe
from trainer.config.schema import Recipe
from trainer.describe import describe_recipe
from trainer.horizon import Speed, seconds_of, steps_that_fit, with_steps
from trainer.pace import Pace

TINY = "tests/recipes/small_bert.toml"
UNKNOWN_LENGTH = {
    "run__max_hours": 0.05,
    "run__max_steps": 1_000_000,
    "schedule__warmup_steps": 0,
    "schedule__warmup_ratio": 0.01,
}


def recipe_of(*changes: str) -> Recipe:
    return load_recipe(TINY, ["model.vocab_size=500", "data.pairs=/none", *changes])


# How many steps fit

seconds = st.floats(0.001, 100)
speeds = st.builds(Speed, start=seconds, step=seconds, evaluation=seconds, save=seconds, tokens=st.just(1.0))


def plain_seconds(steps: int, speed: Speed, recipe: Recipe) -> float:
    """What `seconds_of` returns, step by step."""
    total = 0.0
    for step in range(1, steps + 1):
        total += speed.step
        if step % recipe.evaluation.every == 0 or step == steps:
            total += speed.evaluation
        if step == steps:
            total += speed.save
        elif step % recipe.checkpoint.every == 0:
            beside = recipe.checkpoint.every * speed.step if recipe.checkpoint.background else 0.0
            total += max(0.0, speed.save - beside)
    return total


@given(speeds, st.integers(0, 50), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_a_run_s_time_is_the_sum_of_what_it_does(
    speed: Speed, steps: int, evaluate_every: int, save_every: int, background: bool
) -> None:
    recipe = recipe_of(
        f"evaluation.every={evaluate_every}",
        f"checkpoint.every={save_every}",
        f"checkpoint.background={str(background).lower()}",
    )
    assert seconds_of(steps, speed, recipe) == pytest.approx(plain_seconds(steps, speed, recipe))


@given(speeds, st.floats(0, 1e6), st.integers(1, 10**6))
def test_no_larger_number_of_steps_fits(speed: Speed, available: float, max_steps: int) -> None:
    recipe = recipe_of(f"run.max_steps={max_steps}", "schedule.warmup_steps=0")
    steps = steps_that_fit(available, speed, recipe)
    assert 0 <= steps <= max_steps
    assert seconds_of(steps, speed, recipe) <= available
    assert steps == max_steps or seconds_of(steps + 1, speed, recipe) > available


# How long measuring takes


class TimedLoop:
    """Takes the place of the clock and of a loop whose steps take `seconds` each, the first one `first`."""

    def __init__(self, seconds: float, first: float):
        self.now = 0.0
        self.steps = 0
        self._seconds = seconds
        self._first = first

    def take(self, loop: object, done: int, steps: int) -> float:
        assert done == self.steps
        self.now += sum(self._seconds if step else self._first for step in range(done, done + steps))
        self.steps += steps
        return 100.0 * steps


@pytest.mark.parametrize(
    ("seconds", "first", "steps", "longest"),
    [
        (0.1, 0.1, 306, 31),
        (0.1, 8.0, 306, 39),
        (0.2, 60, 152, 91),
        (1.9, 1.9, 21, 40),
        (11, 11, 4, 44),
        (80, 80, 3, 240),
    ],
)
def test_measuring_ends_half_a_minute_after_the_warm_up_if_steps_are_slow(
    monkeypatch: pytest.MonkeyPatch, seconds: float, first: float, steps: int, longest: float
) -> None:
    timed = TimedLoop(seconds, first)
    monkeypatch.setattr(rehearsal, "perf_counter", lambda: timed.now)
    monkeypatch.setattr(rehearsal, "take_steps", timed.take)
    monkeypatch.setattr(rehearsal, "run_on_rank_0", lambda act: act())
    measured = rehearsal.time_steps(cast("Any", None), max_hours=10.0)
    assert measured == (pytest.approx(seconds), 100.0)
    assert timed.now <= longest
    assert timed.steps == pytest.approx(steps, abs=5 if seconds < 1 else 0)


def test_measuring_that_takes_long_says_so(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(rehearsal, "ANNOUNCED", 0.01)
    with rehearsal.long_measuring_announced():
        sleep(0.2)
    told = capsys.readouterr().out
    assert told == "Measuring takes longer than 40 s, because a step takes long: at least 3 are measured.\n"

    monkeypatch.setattr(rehearsal, "ANNOUNCED", 60)
    with rehearsal.long_measuring_announced():
        pass
    assert capsys.readouterr().out == ""


# What a recipe may say


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["run.max_hours=0"], r"run\.max_hours: .*greater than 0"),
        (["batch.ramp_from=16", "batch.ramp_steps=5"], r"Set batch\.ramp_from=none and batch\.ramp_steps=none"),
        (["schedule.warmup_ratio=0.1"], r"warmup_steps 100 and schedule\.warmup_ratio 0\.1 say the same thing"),
        (["schedule.warmup_ratio=1.5"], r"schedule\.warmup_ratio: .*less than or equal to 1"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe_of("run.max_hours=1", "schedule.warmup_steps=100", *changes)


def test_phases_have_steps_of_their_own() -> None:
    with pytest.raises(UsageError, match=r"run\.max_hours is not for a run with phases.*Set phases=none"):
        load_recipe("bert_large_lamb", ["run.max_hours=2"])
    assert load_recipe("bert_large_lamb", ["phases=none", "run.max_hours=2"]).run.max_hours == 2


def test_a_warm_up_that_is_longer_than_what_fits_is_refused_with_the_way_out() -> None:
    recipe = recipe_of("run.max_hours=2", "schedule.warmup_steps=50")
    assert with_steps(recipe, 50).run.max_steps == 50
    with pytest.raises(UsageError) as told:
        with_steps(recipe, 49)
    assert str(told.value) == (
        "49 steps fit into run.max_hours 2: schedule.warmup_steps is above run.max_steps 49. Lower it, or set it to 0 "
        "and give schedule.warmup_ratio, a share of the steps."
    )


def test_describe_says_that_the_length_is_measured() -> None:
    described = describe_recipe(recipe_of("run.max_hours=2.5", "run.max_steps=70000"))
    assert described["steps"] == "as many as fit into 2.5 hours, at most 70,000; measured at the start"
    assert "steps" not in describe_recipe(recipe_of())


# Runs


def run_of(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "recipe.toml").read_text())["run"]


@pytest.fixture(scope="module")
def measured(training, held_out, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two ranks whose number of steps was measured, up to step 4."""
    out = tmp_path_factory.mktemp("horizon") / "hours"
    evaluated = {"evaluation__pairs": held_out, "evaluation__every": 4}
    done = training.warm(2, out, run__stop_at=4, **UNKNOWN_LENGTH, **evaluated)
    assert done.returncode == 0, done.stderr
    assert "steps into 0.05 hours (measured " in done.stdout + done.stderr
    return out


def test_the_number_of_steps_decides_the_weights(training, measured, held_out, tmp_path) -> None:
    steps = run_of(measured)["max_steps"]
    assert isinstance(steps, int) and 4 < steps < 1_000_000
    assert not [path.name for path in measured.iterdir() if path.name.startswith(".")]

    known = UNKNOWN_LENGTH | {"run__max_hours": "none", "run__max_steps": steps, "run__stop_at": 4}
    evaluated = {"evaluation__pairs": held_out, "evaluation__every": 4}
    done = training.warm(2, tmp_path / "steps", **known, **evaluated)
    assert done.returncode == 0, done.stderr
    assert training.losses(measured) == training.losses(tmp_path / "steps")
    assert training.tensors(measured, 4) == training.tensors(tmp_path / "steps", 4)

    done = training.warm(1, tmp_path / "steps", **UNKNOWN_LENGTH)
    assert done.returncode == 2 and "was saved without run.max_hours" in done.stderr, done.stderr


def test_a_resume_keeps_the_number(training, measured, tmp_path) -> None:
    """On another number of ranks, at another speed, and with another upper limit."""
    out = shutil.copytree(measured, tmp_path / "run")
    steps = run_of(out)["max_steps"]
    done = training.warm(1, out, **UNKNOWN_LENGTH | {"run__max_steps": 2_000_000, "run__stop_at": 5})
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    assert "measured" not in told and "run.max_steps was" not in told
    assert f"keeps the {steps:,} steps that run.max_hours 0.05 fixed, unless" in told
    assert run_of(out)["max_steps"] == steps

    done = training.warm(1, out, **UNKNOWN_LENGTH | {"run__max_hours": 0.1})
    assert done.returncode == 2, done.stderr
    assert f"began with run.max_hours 0.05, which fixed {steps:,} steps, and now it is 0.1" in done.stderr

    done = training.warm(1, out, **UNKNOWN_LENGTH | {"run__max_steps": 5})
    assert done.returncode == 2, done.stderr
    assert f"run.max_steps 5 is lower than the {steps:,} steps that run.max_hours 0.05 fixed" in done.stderr


def test_max_steps_is_the_upper_limit(training, tmp_path) -> None:
    done = training.warm(1, tmp_path / "run", run__max_hours=0.05)
    assert done.returncode == 0, done.stderr
    assert "fits 12 steps into 0.05 hours, the most that run.max_steps allows" in done.stdout + done.stderr
    assert max(training.losses(tmp_path / "run")) == 12


def test_hours_that_hold_no_step_are_refused(training, tmp_path) -> None:
    done = training.warm(1, tmp_path / "run", run__max_hours=1e-6)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "measuring how many steps fit into run.max_hours 1e-06." in done.stdout, "the rehearsal is not silent"
    assert line.startswith("clozeline: run.max_hours 1e-06 is too short: starting and measuring take ")
    assert line.endswith("steps in its place: run.max_hours=none with run.max_steps=N.")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fault", "where"), [("ask:1:3:3", "a step"), ("ask:0:17:17", "a step"), ("ask:0:36:36", "an evaluation")]
)
def test_a_signal_while_the_speed_is_measured_ends_the_run_and_loses_nothing(
    training, held_out, tmp_path, fault: str, where: str
) -> None:
    """To one rank of two. There is no step yet, so nothing stays behind, and the same command starts again."""
    changes = UNKNOWN_LENGTH | {"evaluation__pairs": held_out, "run__max_hours": 0.001, "run__stop_at": 2}
    done = training.warm(2, tmp_path / "run", fault, **changes)
    assert done.returncode == 75, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("asked to stop while the speed of training was measured") == 1
    assert not (tmp_path / "run").exists()

    done = training.warm(2, tmp_path / "run", **changes | {"run__max_hours": 0.05})
    assert done.returncode == 0, done.stderr
    assert max(training.losses(tmp_path / "run")) == 2


# Another speed


def test_a_resume_at_another_speed_fixes_the_steps_again(training, tmp_path) -> None:
    """It began beside other programs, which took its cores: four steps a second. Now it is many times faster.

    Steps that are skipped when the speed is looked at only delay the change.
    """
    out = tmp_path / "run"
    changes = UNKNOWN_LENGTH | {"batch__micro_batch": 16, "checkpoint__every": 1000, "run__log_every": 5}
    done = training.warm(1, out, "sluggish:0:1:1000", **changes, run__stop_at=4)
    assert done.returncode == 0, done.stderr
    first = run_of(out)["max_steps"]
    assert isinstance(first, int) and 100 < first < 720

    done = training.warm(1, out, "nan:0:16:16,nan:0:32:32,nan:0:64:64", **changes, run__stop_at=400)
    assert done.returncode == 0, done.stderr
    assert "Step 68 made no update" in done.stdout
    assert f"from which run.max_hours 0.05 fixed {first:,} steps. " in done.stdout
    steps = run_of(out)["max_steps"]
    assert isinstance(steps, int) and steps > 2 * first
    assert f"run.max_steps was {first}, is {steps} from step " in done.stdout
    assert training.losses(out).keys() >= {5, 10, 15, 20, 25, 400}, "the metrics have no gap"

    (change,) = [json.loads(line) for line in (out / "recipe_history.jsonl").read_text().splitlines()]
    assert (change["key"], change["before"], change["now"]) == ("run.max_steps", first, steps)


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [(0.1, None), (0.12, None), (0.01, 14_156), (0.4, 356), (30.0, None)],
    ids=["equal", "nearly", "faster", "slower", "too slow for the schedule"],
)
def test_the_first_real_steps_decide_if_they_differ_much(
    seconds: float, steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of("run.max_hours=0.05", "run.max_steps=1000000", "schedule.warmup_steps=40")
    monkeypatch.setattr("trainer.pace.run_on_rank_0", lambda act: act())
    monkeypatch.setattr("trainer.pace.perf_counter", lambda: 0.0)
    speed = Speed(start=1.0, step=0.1, evaluation=0.0, save=0.0, tokens=100.0)
    pace = Pace(recipe, speed, seconds_before=35.0, started=0.0)

    planned = with_steps(recipe, 1500)
    looks = [pace.look(step, planned) for step in range(1, 257) if pace.add(seconds, step, planned)]
    found = [number for number in looks if number is not None]
    assert found == ([] if steps is None else [pytest.approx(steps, abs=250)])
