"""Finds the phase of a run that a step belongs to, and the recipe of that phase.

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

Data, batches and masks of a phase are counted from its first step. So is the learning rate if the phase has a schedule.
Otherwise the run's schedule continues through the phase, as in BERT (Devlin et al., arXiv:1810.04805, appendix A.2).
Every phase ends with a checkpoint, from which the next phase starts just as a resumed run does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from schemas import randomness
from schemas.errors import UsageError
from trainer.config.parse import parse_recipe
from trainer.config.schema import Recipe

MODEL_KEYS = (
    "rope_base",
    "window_rope_base",
    "window",
    "global_every",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)
"""Keys of [model] that a phase may change. They need no other weights."""


@dataclass(frozen=True)
class Phase:
    """Steps `steps_before` + 1 to `last_step` of a run, and the recipe that applies to them.

    schedule_before: the step after which the phase's learning rate schedule begins. schedule_steps: its length.
    """

    recipe: Recipe
    steps_before: int
    last_step: int
    schedule_before: int
    schedule_steps: int


def phases_of(recipe: Recipe) -> list[Phase]:
    """Return the phases of a run in order. A recipe without [[phases]] has a single phase."""
    max_steps = recipe.run.max_steps
    if not recipe.phases:
        return [Phase(recipe, steps_before=0, last_step=max_steps, schedule_before=0, schedule_steps=max_steps)]

    phases: list[Phase] = []
    steps_before = 0
    for index, section in enumerate(recipe.phases):
        own_recipe = phase_recipe(recipe, index)
        last_step = steps_before + section.steps

        if section.schedule:
            phase = Phase(own_recipe, steps_before, last_step, steps_before, section.steps)
        else:
            # The run's schedule, counted from the start of the run.
            own_recipe = own_recipe.model_copy(update={"schedule": recipe.schedule})
            phase = Phase(own_recipe, steps_before, last_step, schedule_before=0, schedule_steps=max_steps)

        phases.append(phase)
        steps_before = last_step

    return phases


def phase_after(phases: list[Phase], step: int) -> Phase:
    """Return the phase of step `step` + 1, or the last phase if there is no such step."""
    for phase in phases:
        if step < phase.last_step:
            return phase
    return phases[-1]


def recipe_of_step(recipe: Recipe, step: int) -> Recipe:
    """Return the recipe of the phase that `step`, counted from 1, belongs to."""
    return phase_after(phases_of(recipe), step - 1).recipe


def phase_recipe(recipe: Recipe, index: int, path: str = "") -> Recipe:
    """Return the recipe of phase `index`, counted from 0. Raises UsageError that names the phase and each wrong key.

    The phase's keys replace those of the run's sections. Its batch, if any, replaces the whole section. run.max_steps
    becomes the length of the phase. path: names the recipe in messages.
    """
    phase = recipe.phases[index]
    content = recipe.model_dump()

    fixed = sorted(set(phase.model) - set(MODEL_KEYS))
    if fixed:
        raise UsageError(
            f"{path}: phase {index + 1}: model.{fixed[0]} cannot change between phases, because the weights stay. Keys "
            f"that can: {', '.join(MODEL_KEYS)}."
        )

    if phase.optimizer.get("kind", recipe.optimizer.kind) != recipe.optimizer.kind:
        raise UsageError(
            f"{path}: phase {index + 1}: optimizer.kind cannot change between phases, because its state stays. Other "
            "keys of the optimizer can."
        )

    for name in ("model", "data", "masking", "objective", "optimizer", "schedule"):
        content[name] |= getattr(phase, name)
    if phase.batch:
        content["batch"] = phase.batch

    # If the run's schedule continues, it is left out here, because it must be checked against the length of the run and
    # not of the phase. `phases_of` puts it back.
    if not phase.schedule:
        content["schedule"] = {}

    content["run"]["max_steps"] = phase.steps

    # A different seed, so that rows that two phases share come in another order and with other masks in the second one.
    # It has 63 bits, because TOML integers are signed.
    if index > 0:
        content["run"]["seed"] = randomness.key(recipe.run.seed, "phase", index) >> 1

    return parse_recipe(content | {"phases": []}, f"{path}: phase {index + 1}")


def phase_of_length(phase: Phase, run_recipe: Recipe) -> Phase:
    """Return the only phase of a run with run.max_hours, with the number of steps of `run_recipe`."""
    (fixed,) = phases_of(run_recipe)
    # The micro-batches of this machine may have been chosen since the recipe was loaded.
    return replace(fixed, recipe=fixed.recipe.model_copy(update={"batch": phase.recipe.batch}))


def evaluation_is_due(run_recipe: Recipe, phase: Phase, step: int) -> bool:
    """Return whether held-out pairs are evaluated after `step`: every evaluation.every steps, and between phases."""
    section = run_recipe.evaluation
    if section.pairs is None or step == 0:
        return False
    return step % section.every == 0 or step in (phase.steps_before, phase.last_step)


def line_is_due(run_recipe: Recipe, step: int) -> bool:
    """Return whether metrics.jsonl has a line with the training losses up to a step."""
    run = run_recipe.run
    return step == 1 or step % run.log_every == 0 or step == run.max_steps
