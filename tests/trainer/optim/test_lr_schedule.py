"""The learning rate against what others compute, and what holds for every kind."""

from math import cos, pi, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from trainer.config.load import load_recipe
from trainer.config.phases import Phase, phases_of
from trainer.config.sections import OptimizerSection, ScheduleSection
from trainer.optim.lr_schedule import learning_rate

PEAK = OptimizerSection(lr=1.0)


def rates(schedule: ScheduleSection, steps: int = 10, lr: float = 1.0) -> list[float]:
    return [learning_rate(step, OptimizerSection(lr=lr), schedule, steps) for step in range(1, steps + 2)]


@pytest.mark.parametrize(
    ("kind", "theirs"), [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)]
)
def test_after_warm_up_the_rates_are_those_of_transformers(kind, theirs) -> None:
    """Theirs of update n, counted from 0, is ours of n + 1; in warm-up theirs begin with a rate of 0, ours with one."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    scheduler = theirs(optimizer, 5, 40)
    expected = []
    for _ in range(41):
        expected.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates(ScheduleSection(kind=kind, warmup_steps=5), 40, 2.0)[5:] == pytest.approx(expected[5:], abs=1e-12)


def test_each_shape_is_its_formula() -> None:
    """Of 10 steps, 2 of warm-up, towards 0.1: x is what is left of the 8 steps of the way, or of 4 in wsd."""
    left = [k / 8 for k in range(8, -1, -1)]
    shapes = {
        "polynomial": [x**0.5 for x in left],
        "cosine": [0.5 - 0.5 * cos(pi * x) for x in left],
        "wsd": [1, 1, 1, 1, *(1 - sqrt(k / 4) for k in range(5))],
    }
    own = {"polynomial": {"power": 0.5}, "cosine": {}, "wsd": {"decay_steps": 4}}
    for kind, heights in shapes.items():
        schedule = ScheduleSection.model_validate({"kind": kind, "warmup_steps": 2, "final_lr": 0.1, **own[kind]})
        assert rates(schedule)[:2] == [0.5, 1.0]
        assert rates(schedule)[2:] == pytest.approx([0.1 + 0.9 * height for height in heights]), kind


def shipped_phases(name: str) -> list[Phase]:
    return phases_of(load_recipe(f"trainer/recipes/{name}.toml", []))


def rate_of(phase: Phase, step: int) -> float:
    """Of update `step` of a phase, counted from 1."""
    recipe = phase.recipe
    return learning_rate(step, recipe.optimizer, recipe.schedule, phase.schedule_steps)


def nvidia_rate(step: int, base: float, total: int, warmup: float) -> float:
    """Of update `step`, counted from 1: PolyWarmUpScheduler of DeepLearningExamples, PyTorch BERT, of degree 0.5."""
    progress = step / total
    return base * progress / warmup if progress < warmup else base * (1 - progress) ** 0.5


@pytest.mark.parametrize(("phase", "base", "total", "warmup"), [(0, 6e-3, 7038, 0.2843), (1, 4e-3, 1563, 0.128)])
def test_bert_large_lamb_has_nvidia_s_rates(phase: int, base: float, total: int, warmup: float) -> None:
    """Warm-up within 0.05 %; after it theirs of a step is ours of the next one."""
    ours = shipped_phases("bert_large_lamb")[phase]
    last = ours.recipe.schedule.warmup_steps
    assert nvidia_rate(last + 1, base, total, warmup) < 0.94 * nvidia_rate(last, base, total, warmup)
    for step in (1, 2, last // 2, last - 1, last):
        assert rate_of(ours, step) == pytest.approx(nvidia_rate(step, base, total, warmup), rel=5e-4), step
    for step in (last + 1, last + 2, total // 2, total - 100, total - 1):
        assert rate_of(ours, step + 1) == pytest.approx(nvidia_rate(step, base, total, warmup), rel=1e-9), step
        assert rate_of(ours, step) == pytest.approx(nvidia_rate(step, base, total, warmup), rel=1.5 / (total - step))


def google_rate(global_step: int, base: float, total: int, warmup: int) -> float:
    """Of the update made at `global_step`, counted from 0: google-research/bert and albert, optimization.py."""
    if global_step < warmup:
        return base * global_step / warmup
    return base * (1 - global_step / total)


GOOGLES = {name: (1e-4, 1_000_000, 10_000) for name in ("bert_base", "bert_large")}
GOOGLES |= {f"albert_{size}": (1.76e-3, 125_000, 3_125) for size in ("base", "large", "xlarge", "xxlarge")}


@pytest.mark.parametrize("name", GOOGLES)
def test_bert_and_albert_have_google_s_rates(name: str) -> None:
    """After warm-up exactly; in it ours is one step ahead, so that the first update is not made at rate 0."""
    base, total, warmup = GOOGLES[name]
    ours = shipped_phases(name)[0]
    for step in (warmup + 1, warmup + 2, total // 3, total - 1, total):
        assert rate_of(ours, step) == pytest.approx(google_rate(step - 1, base, total, warmup), rel=1e-9), step
    for step in (1, 2, warmup // 2, warmup - 1):
        assert rate_of(ours, step) == pytest.approx(google_rate(step, base, total, warmup), rel=1e-9), step


@st.composite
def schedules(draw) -> tuple[ScheduleSection, int]:
    kind = draw(st.sampled_from(["linear", "polynomial", "cosine", "wsd"]))
    warmup, decay, stable = (draw(st.integers(0, 30)) for _ in range(3))
    values: dict[str, object] = {"kind": kind, "warmup_steps": warmup, "final_lr": draw(st.floats(0, 1))}
    values |= {"power": draw(st.floats(0.1, 4))} if kind == "polynomial" else {}
    values |= {"decay_steps": decay + 1} if kind == "wsd" else {}
    values |= {"decay_from": draw(st.sampled_from(["warmup", "start"]))} if kind != "wsd" else {}
    return ScheduleSection.model_validate(values), warmup + decay + 1 + stable


@given(schedules())
def test_every_kind_rises_to_the_peak_and_never_again(drawn) -> None:
    schedule, steps = drawn
    found = rates(schedule, steps)
    warmup = schedule.warmup_steps
    assert found[:warmup] == sorted(found[:warmup])
    if schedule.decay_from == "warmup":
        assert found[warmup] == pytest.approx(1.0)
    assert found[warmup:] == sorted(found[warmup:], reverse=True)
    assert found[-1] == pytest.approx(schedule.final_lr) == learning_rate(steps + 9, PEAK, schedule, steps)
    assert all(0 < rate <= 1 + 1e-12 for rate in found[:-1])


@given(st.integers(1, 400), st.integers(1, 10**6))
def test_a_share_of_the_steps_is_the_same_warm_up_as_their_number(permille: int, steps: int) -> None:
    """Rounded up, as in transformers; but by the decimal number that was written, not by its binary neighbor."""
    by_share = ScheduleSection(warmup_ratio=permille / 1000)
    warmup = -(-permille * steps // 1000)
    assert by_share.warmup_of(steps) == warmup

    by_number = ScheduleSection(warmup_steps=warmup)
    for step in {1, warmup, warmup + 1, steps}:
        assert learning_rate(step, PEAK, by_share, steps) == learning_rate(step, PEAK, by_number, steps)


def test_no_share_is_no_warm_up() -> None:
    assert ScheduleSection(warmup_ratio=0.0, warmup_steps=5).warmup_of(10) == 5
    assert ScheduleSection().warmup_of(10) == 0
