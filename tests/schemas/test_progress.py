"""The rate of a progress bar, from which the time left follows."""

from schemas.progress import RecentRate


def test_slow_first_steps_leave_the_rate_soon() -> None:
    """The first of 2,000 steps compiles for 20 s, the others take 0.05 s; after 800 an evaluation takes 3 s."""
    rate, now = RecentRate(0), 20.0
    ratios = []
    for step in range(1, 2000):
        seconds_left = 0.05 * (2000 - step) + 3 * (step < 800)
        ratios.append((2000 - step) / (rate.at(now, step) or step / now) / seconds_left)
        now += 0.05 + 3 * (step == 800)
    assert ratios[0] > 100
    assert min(ratios[1:]) > 0.75 and max(ratios[1:]) < 1.25
