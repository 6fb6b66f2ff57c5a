"""The rate of a progress bar, from which the time left follows."""

from tqdm import tqdm

from schemas.progress import MeanRate


def test_slow_first_steps_leave_the_rate_soon() -> None:
    """The first of 2,000 steps compiles for 20 s, the others take 0.05 s; after 800 an evaluation takes 3 s."""
    rate, now = MeanRate(0), 20.0
    assert rate.at(now, 1) == 0
    ratios = []
    for step in range(2, 2000):
        now += 0.05 + 3 * (step == 801)
        seconds_left = 0.05 * (2000 - step) + 3 * (step < 800)
        ratios.append((2000 - step) / rate.at(now, step) / seconds_left)
    assert min(ratios) > 0.75 and max(ratios) < 1.25


def test_nothing_is_forecast_before_the_first_step() -> None:
    rate = MeanRate(100)
    rates = [rate.at(now, 100) for now in range(60)]
    assert "<?, ?step/s" in tqdm.format_meter(100, 1000, 60, rate=rates[-1], unit="step")
