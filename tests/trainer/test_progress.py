"""The state that a loop gives to a save, which is written while training goes on."""

from trainer.checkpoint.state import AnomalyHistory, TrainingState
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
