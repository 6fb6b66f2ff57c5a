"""Cross-field validation: keys of a recipe that must fit each other. Every check raises UsageError.

Bounds of single keys are in the schema, and checks within [model] in validate_model.py.
"""

from __future__ import annotations

from typing import Any

from schemas.errors import UsageError, nearest_name
from trainer.config.deepspeed_keys import ALLOWED, OWNED_BY_RECIPE, TABLES, is_valid
from trainer.config.schema import (
    BatchSection,
    DataSection,
    EngineSection,
    MaskingSection,
    OptimizerSection,
    Recipe,
    ScheduleSection,
)
from trainer.config.validate_model import check_first_weights, check_generator, check_model, check_starting_weights

LOWEST_STAGE_FOR_OFFLOAD = {"none": 0, "optimizer": 1, "parameters": 3}
"""The lowest engine.zero_stage that supports each engine.offload."""


def check_recipe(recipe: Recipe, path: str) -> None:
    """Check the recipe of a run, or of one phase. path: names the recipe in messages."""
    check_deepspeed(recipe, path)
    check_engine(recipe.engine, recipe.optimizer, path)
    check_compile(recipe, path)
    check_model(recipe.model, path)
    check_generator(recipe.model, path)
    check_first_weights(recipe.model, path)
    check_starting_weights(recipe.model, path)
    check_objective(recipe, path)
    check_data(recipe.data, path)
    check_batch(recipe.batch, path)
    check_ramp(recipe.batch, recipe.run.max_steps, path)
    check_hours(recipe, path)
    check_checkpointing(recipe, path)
    check_schedule(recipe.optimizer, recipe.schedule, recipe.run.max_steps, path)
    check_masking(recipe.masking, path)
    check_two_streams(recipe, path)


def check_phases(recipe: Recipe, path: str) -> None:
    """Check that the steps of a recipe's phases, if it has any, add up to run.max_steps."""
    if not recipe.phases:
        return

    steps = sum(phase.steps for phase in recipe.phases)
    if steps != recipe.run.max_steps:
        raise UsageError(
            f"{path}: the phases have {steps:,} steps together, but run.max_steps is {recipe.run.max_steps:,}. "
            "Make them equal, leave the phases out with `--set phases=none`, or end the run early with run.stop_at."
        )


def check_deepspeed(recipe: Recipe, path: str) -> None:
    """Check that [deepspeed] holds only keys that are passed on, with values of the right type."""
    for name, value in recipe.deepspeed.items():
        if name in TABLES and not isinstance(value, dict):
            raise UsageError(f"{path}: [deepspeed] {name} must be a table, found {value!r}.")

        settings = {f"{name}.{key}": inner for key, inner in value.items()} if name in TABLES else {name: value}
        for key, setting in settings.items():
            check_deepspeed_key(key, setting, path)


def check_deepspeed_key(key: str, value: Any, path: str) -> None:
    """Check a key of [deepspeed], such as "zero_optimization.overlap_comm", and its value."""
    owner = OWNED_BY_RECIPE.get(key)
    if owner is not None:
        raise UsageError(f"{path}: [deepspeed] {key} is set by {owner}; set that instead.")

    if key == "zero_optimization.round_robin_gradients":
        raise UsageError(
            f"{path}: [deepspeed] {key} cannot be used: with it DeepSpeed's own map "
            "of which rank holds which parameter is wrong, and checkpoints go by that map. Leave it out."
        )

    expected = ALLOWED.get(key)
    if expected is None:
        table, dot, inner = key.rpartition(".")
        of_table = [name.rpartition(".")[2] for name in ALLOWED if name.rpartition(".")[0] == table]
        hint = nearest_name(inner, of_table).replace("mean ", f"mean {table}{dot}")
        raise UsageError(
            f"{path}: [deepspeed] {key} is not passed on to DeepSpeed: training is tested with the keys that "
            f"docs/recipes.md lists, and with no others.{hint} Leave it out."
        )
    if not is_valid(value, expected):
        raise UsageError(f"{path}: [deepspeed] {key} must be {expected}, found {value!r}.")


def check_engine(engine: EngineSection, optimizer: OptimizerSection, path: str) -> None:
    """Check that the ZeRO stage supports the offload and the optimizer."""
    if engine.zero_stage < LOWEST_STAGE_FOR_OFFLOAD[engine.offload]:
        raise UsageError(
            f"{path}: engine.offload {engine.offload} is not for engine.zero_stage {engine.zero_stage}: "
            "the optimizer can be offloaded from stage 1 on, parameters in stage 3."
        )

    # All optimizers but AdamW need whole tensors. trainer/optim does not support how stage 3 splits them between ranks.
    if optimizer.kind != "adamw" and engine.zero_stage > 2:
        raise UsageError(
            f"{path}: optimizer.kind {optimizer.kind} works under engine.zero_stage 0, 1 and 2, not "
            f"{engine.zero_stage}. Set one of these, or optimizer.kind adamw."
        )


def check_compile(recipe: Recipe, path: str) -> None:
    """Check that compiled layers get batches of one shape and hold their own weights."""
    # "auto" compiles only if the other settings allow it.
    if recipe.engine.compile is not True:
        return

    if recipe.batch.shape == "exact":
        raise UsageError(f'{path}: engine.compile needs batches of one shape. Set batch.shape to "fixed".')
    if recipe.engine.zero_stage == 3:
        raise UsageError(f"{path}: engine.compile is not for engine.zero_stage 3, which fetches weights inside layers.")


def check_objective(recipe: Recipe, path: str) -> None:
    """Check that the model's family supports the objective."""
    if recipe.objective.kind != "clm":
        return

    if recipe.model.family == "electra":
        raise UsageError(
            f'{path}: objective.kind "clm" is not for model.family "electra", whose generator fills in masked tokens. '
            'Set objective.kind "mlm".'
        )

    # Without an order of prediction, every token of XLNet sees all others, so it would see the token to predict.
    if recipe.model.family == "xlnet":
        raise UsageError(
            f'{path}: objective.kind "clm" is not for model.family "xlnet", whose attention has an order of its own. '
            'Set objective.kind "mlm".'
        )


def check_data(data: DataSection, path: str) -> None:
    """Check that data.weights, if set, has one positive number for each folder of pairs."""
    if data.weights is None:
        return

    if len(data.weights) != len(data.folders) or min(data.weights) <= 0:
        raise UsageError(
            f"{path}: data.weights {data.weights} must be {len(data.folders)} numbers above 0, one for each folder of "
            "data.pairs."
        )


def check_masking(masking: MaskingSection, path: str) -> None:
    """Check that masking.stored is not combined with keys for drawing masks."""
    if masking.stored and masking != MaskingSection(stored=True):
        raise UsageError(
            f"{path}: masking.stored uses the masks that the pairs hold; leave the other keys of [masking] out."
        )


def check_batch(batch: BatchSection, path: str) -> None:
    """Check that a batch is counted in either rows or tokens, and that micro_batch divides global_batch."""
    is_in_rows = batch.global_batch is not None and batch.global_tokens is None
    is_in_tokens = batch.global_tokens is not None and batch.global_batch is None

    # micro_batch may be set together with micro_tokens = "auto", so that it can override a shipped recipe's "auto".
    has_row_limit = batch.micro_batch is not None
    has_token_limit = batch.micro_tokens is not None
    has_both_limits = has_row_limit and isinstance(batch.micro_tokens, int)

    is_complete_in_rows = is_in_rows and (has_row_limit or has_token_limit) and not has_both_limits
    is_complete_in_tokens = is_in_tokens and has_token_limit and not has_row_limit
    if not (is_complete_in_rows or is_complete_in_tokens):
        raise UsageError(
            f"{path}: [batch] needs global_batch and micro_batch (rows), or global_tokens and micro_tokens, not both. "
            "global_batch also goes with micro_tokens in place of micro_batch."
        )

    if batch.global_batch and batch.micro_batch and batch.global_batch % batch.micro_batch:
        raise UsageError(
            f"{path}: batch.micro_batch {batch.micro_batch} does not divide batch.global_batch {batch.global_batch}."
        )


def check_ramp(batch: BatchSection, max_steps: int, path: str) -> None:
    """Check that a batch ramp starts below the full size, and ends within the `max_steps` steps that it applies to."""
    if (batch.ramp_from is None) != (batch.ramp_steps is None):
        raise UsageError(f"{path}: batch.ramp_from and batch.ramp_steps go together. Set both or neither.")
    if batch.ramp_from is None or batch.ramp_steps is None:
        return

    if batch.ramp_from >= batch.size:
        raise UsageError(
            f"{path}: batch.ramp_from {batch.ramp_from} is not below the full batch of {batch.size}. "
            "Lower it, or leave the ramp out."
        )
    if batch.ramp_steps > max_steps:
        raise UsageError(
            f"{path}: batch.ramp_steps {batch.ramp_steps} is above the {max_steps} steps in which it applies. Lower it."
        )


def check_hours(recipe: Recipe, path: str) -> None:
    """Check that a run with max_hours has no phases and no ramp, because its steps must take about equally long."""
    if recipe.run.max_hours is None:
        return

    if recipe.phases:
        what = "phases"
        way_out = "phases=none"
    elif recipe.batch.ramp_from is not None:
        what = "batch.ramp_from"
        way_out = "batch.ramp_from=none and batch.ramp_steps=none"
    else:
        return

    raise UsageError(
        f"{path}: run.max_hours is not for a run with {what}, because its steps do not all take the same time. Set "
        f"{way_out}, or leave run.max_hours out and set run.max_steps."
    )


def check_checkpointing(recipe: Recipe, path: str) -> None:
    """Check that evaluated steps are also saved, because only an evaluated checkpoint can be the best."""
    evaluate_every = recipe.evaluation.every
    save_every = recipe.checkpoint.every
    if recipe.evaluation.pairs and evaluate_every % save_every and save_every % evaluate_every:
        raise UsageError(
            f"{path}: evaluation.every {evaluate_every} and checkpoint.every {save_every} seldom meet, so the best "
            "checkpoint would be unknown. Make one a multiple of the other."
        )


def check_schedule(optimizer: OptimizerSection, schedule: ScheduleSection, max_steps: int, path: str) -> None:
    """Check that the parts of a schedule over `max_steps` steps fit together."""
    if schedule.warmup_steps and schedule.warmup_ratio:
        raise UsageError(
            f"{path}: schedule.warmup_steps {schedule.warmup_steps} and schedule.warmup_ratio {schedule.warmup_ratio} "
            "say the same thing. Set one of them to 0."
        )
    if schedule.warmup_steps > max_steps:
        raise UsageError(
            f"{path}: schedule.warmup_steps is above run.max_steps {max_steps}. Lower it, or set it to 0 and give "
            "schedule.warmup_ratio, a share of the steps."
        )
    if schedule.final_lr > optimizer.lr:
        raise UsageError(f"{path}: schedule.final_lr {schedule.final_lr} is above optimizer.lr {optimizer.lr}.")

    if schedule.power != 1.0 and schedule.kind != "polynomial":
        raise UsageError(f"{path}: schedule.power belongs to kind polynomial, not {schedule.kind}. Leave it out.")

    has_decay_steps = schedule.decay_steps is not None
    if has_decay_steps != (schedule.kind == "wsd"):
        raise UsageError(f"{path}: schedule.decay_steps belongs to kind wsd, and wsd needs it.")
    if schedule.kind == "wsd" and schedule.decay_from != "warmup":
        raise UsageError(
            f"{path}: schedule.decay_from start is not for kind wsd, whose decay has decay_steps. Leave it out."
        )

    if schedule.warmup_of(max_steps) + (schedule.decay_steps or 0) > max_steps:
        raise UsageError(f"{path}: schedule.warmup_steps and decay_steps together are above run.max_steps {max_steps}.")


def check_two_streams(recipe: Recipe, path: str) -> None:
    """Check that XLNet does not use stored masks, and has an even hidden_size, for as many sines as cosines."""
    if recipe.model.family != "xlnet":
        return

    if recipe.masking.stored:
        raise UsageError(
            f'{path}: masking.stored is not for model.family "xlnet", which masks nothing and draws an order each time '
            "a row is read. Leave it out."
        )
    if recipe.model.hidden_size % 2:
        raise UsageError(
            f'{path}: model.hidden_size {recipe.model.hidden_size} is odd; positions in "xlnet" are as many sines as '
            "cosines. Make it even."
        )
