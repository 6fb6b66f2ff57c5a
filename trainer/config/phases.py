"""Which phase of a run a step lies in, and what holds there.

    [run]
    max_steps = 1000000

    [[phases]]
    steps = 900000
    data = { pairs = "pairs-128" }

    [[phases]]
    steps = 100000
    data = { pairs = "pairs-512" }
    batch = { global_batch = 256, micro_batch = 8 }
    optimizer = { lr = 4e-5 }
    schedule = { warmup_steps = 2000 }

Data, batches and masks of a phase count from its first step. So does the learning rate when the phase has a schedule;
without one the run's own schedule goes on through it, as in BERT (Devlin et al., arXiv:1810.04805, appendix A.2). Every
phase ends with a checkpoint and the next begins from it, as any resumed run does.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.load import phase_recipe
from trainer.config.schema import Recipe


@dataclass(frozen=True)
class Phase:
    """Steps `before` + 1 to `last`, and their recipe.

    schedule_steps: how long the schedule of its learning rate is, which began after step `schedule_before`.
    """

    recipe: Recipe
    steps_before: int
    last_step: int
    schedule_before: int
    schedule_steps: int


def phases_of(recipe: Recipe) -> list[Phase]:
    """A recipe without [[phases]] is one of them."""
    whole = recipe.run.max_steps
    if not recipe.phases:
        return [Phase(recipe, 0, whole, 0, whole)]
    found, before = [], 0
    for number, section in enumerate(recipe.phases):
        own = phase_recipe(recipe, number)
        last = before + section.steps
        if section.schedule:
            found.append(Phase(own, before, last, before, section.steps))
        else:
            found.append(Phase(own.model_copy(update={"schedule": recipe.schedule}), before, last, 0, whole))
        before = last
    return found


def phase_after(phases: list[Phase], step: int) -> Phase:
    """The phase of the step after `step`; the last one when there is no further step."""
    return next((phase for phase in phases if step < phase.last_step), phases[-1])
