"""What a step is judged by; what a run does about bad steps is tried with real faults in test_faults."""

import random
from math import inf, nan
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.anomaly import AnomalyHistory, fault_of
from trainer.config.schema import AnomalySection
from trainer.train import Rollback

SECTION = AnomalySection(window=5, loss_factor=2.0, norm_factor=10.0)
FULL = AnomalyHistory(losses=[4.0, 5.0, 4.5, 4.0, 5.0], norms=[1.0, 0.5, 2.0, 1.0, 1.0])


@pytest.mark.parametrize(("loss", "norm"), [(nan, 1.0), (inf, 1.0), (4.0, nan), (4.0, inf), (4.0, -1.0)])
def test_what_is_no_number_is_a_fault_from_the_first_step_on(loss: float, norm: float) -> None:
    assert "is not finite" in str(fault_of(loss, norm, AnomalyHistory(), SECTION))


def test_jumps_are_measured_by_the_median_of_a_full_window() -> None:
    """If the recent values hardly differ, the multiples of the median decide."""
    assert fault_of(9.0, 10.0, FULL, SECTION) is None
    told = fault_of(9.1, 1.0, FULL, SECTION)
    assert told == "the loss 9.1 is above 9, the limit after 5 steps with a median of 4.5"
    told = fault_of(4.0, 10.1, FULL, SECTION)
    assert told == "the gradient norm 10.1 is above 10, the limit after 5 steps with a median of 1"
    assert fault_of(99.0, 99.0, AnomalyHistory(losses=[4.0] * 4, norms=[1.0] * 4), SECTION) is None


def test_batches_with_news_are_kept_where_most_have_a_loss_near_zero() -> None:
    """As in text made from templates, where one word of a sentence is free: a quarter is above twice the median."""
    section = AnomalySection()
    drawn = random.Random(0)
    history = AnomalyHistory()
    skipped = 0
    for _ in range(5000):
        loss, norm = drawn.lognormvariate(-3.7, 1.0), drawn.lognormvariate(-1.5, 1.2)
        if fault_of(loss, norm, history, section) is None:
            history.add(loss, norm, section.window)
        else:
            skipped += 1

    assert skipped <= 2
    assert sum(loss > 2 * median(history.losses) for loss in history.losses) > 20
    assert "the loss 7.5 is above " in str(fault_of(7.5, 0.2, history, section)), "what a model without weights has"
    assert "the gradient norm 300 is above " in str(fault_of(0.02, 300.0, history, section))
    assert "not finite" in str(fault_of(nan, 0.2, history, section))


def test_a_loss_of_zero_among_others_changes_no_limit() -> None:
    """The model knew every token of one batch. What is far below the median says nothing about what is above it.

    Losses that are all zero have a limit, too.
    """
    losses = [0.018, 0.02, 0.022, 0.02, 0.0]
    history = AnomalyHistory(losses=losses, norms=[1.0] * 5)
    assert fault_of(0.04, 1.0, history, SECTION) is None
    assert "the loss 0.041 is above 0.04, the limit after" in str(fault_of(0.041, 1.0, history, SECTION))

    of_zeros = AnomalyHistory(losses=[0.0] * 5, norms=[0.0] * 5)
    assert fault_of(0.0, 0.0, of_zeros, SECTION) is None
    assert "the loss 1 is above" in str(fault_of(1.0, 0.0, of_zeros, SECTION))


@given(st.lists(st.tuples(st.floats(0, 9), st.booleans()), max_size=30))
def test_history_holds_the_last_good_steps(steps: list[tuple[float, bool]]) -> None:
    history = AnomalyHistory()
    for loss, good in steps:
        if good:
            history.add(loss, loss / 2, SECTION.window)
        else:
            history.skip()
    kept = [loss for loss, good in steps if good]
    assert history.losses == kept[-SECTION.window :] and history.norms == [loss / 2 for loss in history.losses]
    assert history.skipped == len(steps) - len(kept)
    assert history.consecutive_skips == next((i for i, (_, good) in enumerate(reversed(steps)) if good), len(steps))
    assert AnomalyHistory.model_validate_json(history.model_dump_json()) == history


def test_rollbacks_to_one_checkpoint_add_up() -> None:
    """Gone back to step 20 because of steps up to 30; with data 10 steps further on, steps up to 25 went wrong."""
    first = Rollback().again(20, 30)
    assert (first.times, first.skipped_batches) == (1, 10)
    assert first.again(20, 25) == Rollback(20, 2, 15)
    assert first.again(40, 41) == Rollback(40, 1, 1)
