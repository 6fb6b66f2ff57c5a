"""Cross-field validation: keys of a recipe that must fit each other.

Every check raises UsageError. path: names the recipe in messages. Bounds of single keys are in the schema.
"""

from __future__ import annotations

from schemas.errors import UsageError
from schemas.storage import is_local
from trainer.config.schema import BatchSection, EngineSection, Recipe
from trainer.config.sections import (
    DataSection,
    MaskingSection,
    ModelSection,
    OptimizerSection,
    ScheduleSection,
)
from trainer.models.families import FAMILIES_WITH, GENERATOR_SIZE, ROTATED_FAMILIES, generator_sizes

LOWEST_STAGE_FOR_OFFLOAD = {"none": 0, "optimizer": 1, "parameters": 3}
"""The lowest engine.zero_stage that supports each engine.offload."""

DRAWN_STARTS = ("initial_embeddings", "initial_attention", "initial_head")
"""Keys of [model] that replace drawn weights, unless they are "random"."""


def check_recipe(recipe: Recipe, path: str) -> None:
    """Check the recipe of a run, or of one phase. path: names the recipe in messages."""
    check_places(recipe, path)
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
    check_epochs(recipe, path)
    check_hours(recipe, path)
    check_checkpointing(recipe, path)
    check_schedule(recipe.optimizer, recipe.schedule, recipe.run.max_steps, path)
    check_masking(recipe.masking, path)
    check_two_streams(recipe, path)


def check_places(recipe: Recipe, path: str) -> None:
    """Check that the folders in which a run works on this machine are no URLs."""
    for key, place in (("run.local", recipe.run.local), ("data.cache", recipe.data.cache)):
        if not place or not is_local(place):
            raise UsageError(f"{path}: {key} is {place!r}. Give a folder on a disk of this machine.")


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
    """Check that data.weights, if set, is an exponent, or has one positive number for each folder of pairs."""
    if not data.folders:
        raise UsageError(f"{path}: data.pairs names no folder. Give one that `clozeline pairs` wrote.")
    if data.weights is None:
        return

    if not isinstance(data.weights, list):
        if not 0 <= data.weights <= 1:
            raise UsageError(
                f"{path}: data.weights {data.weights:g} must be from 0 (equal shares) to 1 (the folders' sizes), or a "
                "list with one number for each folder of data.pairs."
            )
        return

    if len(data.weights) != len(data.folders) or min(data.weights) <= 0:
        raise UsageError(
            f"{path}: data.weights {data.weights} must be {len(data.folders)} numbers above 0, one for each folder of "
            "data.pairs."
        )


def check_masking(masking: MaskingSection, path: str) -> None:
    """Check that masking.stored is not combined with keys for drawing masks."""
    unused = masking.model_dump(exclude_defaults=True, exclude={"stored"})
    if masking.stored and unused:
        raise UsageError(
            f"{path}: masking.stored uses the masks that the pairs hold; leave the other keys of [masking] out: "
            f"`{removing('masking', list(unused))}`."
        )


def removing(section: str, names: list[str]) -> str:
    """Return the flags that remove keys of a section."""
    return " ".join(f"--set {section}.{name}=none" for name in names)


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
            f"global_batch also goes with micro_tokens in place of micro_batch.{surplus_of(batch)}"
        )

    if batch.global_batch and batch.micro_batch and batch.global_batch % batch.micro_batch:
        raise UsageError(
            f"{path}: batch.micro_batch {batch.micro_batch} does not divide batch.global_batch {batch.global_batch}."
        )


def surplus_of(batch: BatchSection) -> str:
    """Return a sentence with the flags that leave a batch in rows or one in tokens, empty if no key is too many."""
    of_rows = ["global_tokens", *(["micro_batch"] if isinstance(batch.micro_tokens, int) else [])]
    ways = []
    for unit, size, others in (
        ("rows", batch.global_batch, of_rows),
        ("tokens", batch.global_tokens, ["global_batch", "micro_batch"]),
    ):
        too_many = [name for name in others if getattr(batch, name) is not None]
        if size is not None and too_many:
            has_limit = batch.micro_tokens is not None or (unit == "rows" and batch.micro_batch is not None)
            limit = "" if has_limit else " --set batch.micro_tokens=auto"
            ways.append(f"to count {unit}, `{removing('batch', too_many)}{limit}`")
    return f" Add, {', or '.join(ways)}." if ways else ""


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


def check_epochs(recipe: Recipe, path: str) -> None:
    """Check that a run with max_epochs has no phases, which have data and a number of steps each."""
    if recipe.run.max_epochs is not None and recipe.phases:
        raise UsageError(
            f"{path}: run.max_epochs is not for a run with phases, which have a number of steps each. Set phases=none, "
            "or leave run.max_epochs out."
        )


FEWEST_WARMUP_STEPS = 8
"""The shortest warm-up in which the speed of a run with run.max_hours can be measured."""


def check_hours(recipe: Recipe, path: str) -> None:
    """Check that the first steps of a run with max_hours do not depend on its number of steps, and are like all others.

    Raises UsageError.
    """
    if recipe.run.max_hours is None:
        return

    ways_out = {
        "phases": ("phases=none", bool(recipe.phases)),
        "batch.ramp_from": ("batch.ramp_from=none and batch.ramp_steps=none", recipe.batch.ramp_from is not None),
        "masking.final_prob": ("masking.final_prob=none", recipe.masking.final_prob is not None),
    }
    for what, (way_out, is_set) in ways_out.items():
        if is_set:
            raise UsageError(
                f"{path}: run.max_hours is not for a run with {what}, because its number of steps is measured on its "
                f"first steps. Set {way_out}, or leave run.max_hours out and set run.max_steps."
            )

    if recipe.schedule.warmup_ratio or recipe.schedule.warmup_steps < FEWEST_WARMUP_STEPS:
        raise UsageError(
            f"{path}: with run.max_hours, the number of steps is measured while the learning rate warms up. Set "
            f"schedule.warmup_steps to {FEWEST_WARMUP_STEPS} or more, and leave schedule.warmup_ratio out."
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
            f"{path}: schedule.warmup_steps {schedule.warmup_steps} is above run.max_steps {max_steps}. Lower it, "
            f"for instance to schedule.warmup_steps={max_steps // 10}."
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


# The table [model]


def check_model(model: ModelSection, path: str) -> None:
    """Check that the network can be built."""
    if model.hidden_size % model.num_attention_heads:
        raise UsageError(
            f"{path}: model.num_attention_heads {model.num_attention_heads} does not divide "
            f"model.hidden_size {model.hidden_size}."
        )

    if model.num_hidden_layers % (model.num_hidden_groups or 1):
        raise UsageError(
            f"{path}: model.num_hidden_groups {model.num_hidden_groups} does not divide "
            f"model.num_hidden_layers {model.num_hidden_layers}."
        )

    if model.num_attention_heads % (model.num_key_value_heads or 1):
        raise UsageError(
            f"{path}: model.num_key_value_heads {model.num_key_value_heads} does not divide "
            f"model.num_attention_heads {model.num_attention_heads}."
        )

    head_size = model.hidden_size // model.num_attention_heads
    if model.family in ROTATED_FAMILIES and head_size % 2:
        raise UsageError(
            f"{path}: heads of {head_size} cannot be rotated, which pairs their values. Choose model.hidden_size and "
            "model.num_attention_heads so that a head's size is even."
        )

    for name, families in FAMILIES_WITH.items():
        is_set = getattr(model, name) is not None
        if is_set and model.family not in families:
            *others, last = [f'"{family}"' for family in families]
            names = f"{', '.join(others)} and {last}" if others else last
            raise UsageError(
                f'{path}: model.{name} belongs to {names}; model.family is "{model.family}". Leave it out.'
            )


def check_first_weights(model: ModelSection, path: str) -> None:
    """Check that init_from and tile_from are not both set, and that the family's weights can be tiled."""
    if model.tile_from is None:
        return

    if model.init_from is not None:
        raise UsageError(
            f"{path}: model.init_from {model.init_from} and model.tile_from {model.tile_from} both give the first "
            "weights. Leave one out: init_from is for a model of the same sizes, tile_from for a smaller one."
        )
    if model.family == "xlnet":
        raise UsageError(
            f'{path}: model.tile_from is not for model.family "xlnet", whose positions are sines and cosines with '
            "other frequencies in each width. Leave it out."
        )


def check_starting_weights(model: ModelSection, path: str) -> None:
    """Check that the model.initial_* keys do not conflict with other sources of weights or with each other."""
    asked_for = [name for name in DRAWN_STARTS if getattr(model, name) != "random"]
    source = "init_from" if model.init_from is not None else "tile_from"
    if asked_for and getattr(model, source) is not None:
        off = ", ".join(f"model.{name}=random" for name in asked_for)
        if model.initial_embedding_std is not None:
            off += ", model.initial_embedding_std=none"
        raise UsageError(
            f"{path}: model.{source} already sets all initial weights, so other starts have no use. Leave it out, or "
            f"set {off}."
        )

    if model.initial_embedding_std is not None and model.initial_embeddings == "random":
        raise UsageError(
            f'{path}: model.initial_embedding_std belongs to model.initial_embeddings "cooccurrence". Drawn embeddings '
            "have the standard deviation model.initializer_range."
        )


def check_generator(model: ModelSection, path: str) -> None:
    """Check that ELECTRA's generator can be built: its width is positive and a multiple of its number of heads."""
    if model.family != "electra":
        return

    fraction = model.generator_size or GENERATOR_SIZE
    sizes = generator_sizes(model.hidden_size, model.num_attention_heads, model.intermediate_size, fraction)
    if sizes.hidden_size == 0 or sizes.hidden_size % sizes.num_attention_heads:
        raise UsageError(
            f"{path}: model.generator_size {fraction:g} makes a generator of width {sizes.hidden_size} with "
            f"{sizes.num_attention_heads} heads, which do not divide it. Choose a fraction such as 1/4 or 1/2 of "
            f"model.hidden_size {model.hidden_size} that heads divide."
        )
