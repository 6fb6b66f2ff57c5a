"""The state that a loop gives to a save, which is written while training goes on."""

from typing import Any, cast

from tests.trainer.one_rank import small_recipe
from trainer.checkpoint.state import AnomalyHistory, TrainingState
from trainer.config.phases import phases_of
from trainer.loop import Progress
from trainer.metrics.sums import Interval


def test_a_state_to_save_does_not_change_with_later_steps() -> None:
    history = AnomalyHistory(losses=[1.0], norms=[1.0])
    recipe = small_recipe()
    begun = TrainingState(step=4, tokens=0, seconds=0.0, identity={})
    progress = Progress(recipe, phases_of(recipe)[0], begun, cast(Any, None), cast(Any, None), None)
    state = progress.state_at(5, history)
    saved = state.model_dump_json()

    history.add(9.0, 9.0, 100)
    history.skip()
    progress.interval.norms += 1
    progress.interval = Interval()
    assert state.model_dump_json() == saved
