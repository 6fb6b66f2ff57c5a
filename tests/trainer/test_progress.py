"""The state that a loop gives to a save, which is written while training goes on."""

from trainer.checkpoint.state import AnomalyHistory, TrainingState
from trainer.metrics.interval import Interval
from trainer.progress import Progress


def test_a_state_to_save_does_not_change_with_later_steps() -> None:
    history = AnomalyHistory(losses=[1.0], norms=[1.0])
    progress = Progress(TrainingState(step=4, tokens=0, seconds=0.0, identity={}))
    state = progress.state_at(5, history)
    saved = state.model_dump_json()

    history.add(9.0, 9.0, 100)
    history.skip()
    progress.end_interval()
    assert state.model_dump_json() == saved


def test_the_sums_of_a_postponed_examination_are_saved_and_no_part_of_the_next_line() -> None:
    state = TrainingState(step=4, tokens=0, seconds=0.0, identity={}, interval=Interval(tokens=9.0))
    assert not state.examination_postponed
    progress = Progress(state)
    assert progress.interval.tokens == 9

    progress.interval.tokens = 20.0
    progress.postpone_examination(5)
    saved = TrainingState.model_validate_json(progress.state_at(5, AnomalyHistory()).model_dump_json())
    assert saved.examination_postponed and saved.examined_step == 5 and saved.interval.tokens == 20
    assert Progress(saved).interval == Interval()


def test_an_examination_that_was_made_is_not_postponed() -> None:
    progress = Progress(TrainingState(step=0, tokens=0, seconds=0.0, identity={}))
    assert not progress.state_at(0, AnomalyHistory()).examination_postponed, "a new run"

    progress.interval.tokens = 20.0
    progress.examined_step = 5
    progress.end_interval()
    assert not progress.state_at(5, AnomalyHistory()).examination_postponed
    progress.interval.tokens = 3.0
    assert not progress.state_at(6, AnomalyHistory()).examination_postponed
