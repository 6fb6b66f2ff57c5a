"""Cross-field validation: keys of a recipe that must fit each other. Bounds of single keys are in the schema.

Each `faults_of_...` yields a sentence for every fault that it finds, and the first one is raised as a UsageError.
"""

from __future__ import annotations

from collections.abc import Iterator

from schemas.errors import UsageError
from schemas.storage import is_local
from schemas.urls import READ_ONLY
from trainer.config.schema import BatchSection, Recipe
from trainer.config.sections import DRAWN_STARTS, ModelSection, OptimizerSection, ScheduleSection
from trainer.models.families import FAMILIES_WITH, GENERATOR_SIZE, ROTATED_FAMILIES, generator_sizes

LOWEST_STAGE_FOR_OFFLOAD = {"none": 0, "optimizer": 1, "parameters": 3}
"""The lowest engine.zero_stage that supports each engine.offload."""

FEWEST_WARMUP_STEPS = 8
"""The shortest warm-up in which the speed of a run with run.max_hours can be measured."""

Faults = Iterator[str]


def refuse(faults: Faults, where: str) -> None:
    """Raise UsageError for the first fault, if there is one. where: what the message begins with."""
    for fault in faults:
        raise UsageError(f"{where}: {fault}")


def check_recipe(recipe: Recipe, path: str) -> None:
    """Check the recipe of a run, or of one phase. path: names the recipe in messages. Raises UsageError."""
    refuse(faults_of_places(recipe), path)
    refuse(faults_of_engine(recipe), path)
    refuse(faults_of_model(recipe.model), path)
    refuse(faults_of_first_weights(recipe.model), path)
    refuse(faults_of_objective(recipe), path)
    refuse(faults_of_data(recipe), path)
    refuse(faults_of_batch(recipe.batch), path)
    refuse(faults_of_ramp(recipe.batch, recipe.run.max_steps), path)
    refuse(faults_of_length(recipe), path)
    refuse(faults_of_hours(recipe), path)
    refuse(faults_of_schedule(recipe.optimizer, recipe.schedule, recipe.run.max_steps), path)
    refuse(faults_of_masking(recipe), path)


def check_phases(recipe: Recipe, path: str) -> None:
    """Check that the steps of a recipe's phases, if it has any, add up to run.max_steps. Raises UsageError."""
    steps = sum(phase.steps for phase in recipe.phases)
    if recipe.phases and steps != recipe.run.max_steps:
        raise UsageError(
            f"{path}: the phases have {steps:,} steps together, but run.max_steps is {recipe.run.max_steps:,}. "
            "Make them equal, leave the phases out with `--set phases=none`, or end the run early with run.stop_at."
        )


def faults_of_places(recipe: Recipe) -> Faults:
    """The folders in which a run works on this machine must be no URLs, and its own none that is only read."""
    if recipe.run.output.startswith(READ_ONLY):
        yield f"run.output is {recipe.run.output}, and such URLs are only read. Give a folder, or s3:// or gs://."
    for key, place in (("run.local", recipe.run.local), ("data.cache", recipe.data.cache)):
        if not place or not is_local(place):
            yield f"{key} is {place!r}. Give a folder on a disk of this machine."


def faults_of_engine(recipe: Recipe) -> Faults:
    """The ZeRO stage must support offload and optimizer. Compiled layers need one shape and must hold their weights."""
    engine = recipe.engine
    kind = recipe.optimizer.kind
    if engine.zero_stage < LOWEST_STAGE_FOR_OFFLOAD[engine.offload]:
        yield (
            f"engine.offload {engine.offload} is not for engine.zero_stage {engine.zero_stage}: "
            "the optimizer can be offloaded from stage 1 on, parameters in stage 3."
        )
    # All optimizers but AdamW need whole tensors. trainer/optim does not support how stage 3 splits them between ranks.
    if kind != "adamw" and engine.zero_stage > 2:
        yield (
            f"optimizer.kind {kind} works under engine.zero_stage 0, 1 and 2, not {engine.zero_stage}. Set one of "
            "these, or optimizer.kind adamw."
        )
    # "auto" compiles only if the other settings allow it.
    if engine.compile is True and recipe.batch.shape == "exact":
        yield 'engine.compile needs batches of one shape. Set batch.shape to "fixed".'
    if engine.compile is True and engine.zero_stage == 3:
        yield "engine.compile is not for engine.zero_stage 3, which fetches weights inside layers."


def faults_of_objective(recipe: Recipe) -> Faults:
    """The family must support causal language modeling, if that is the objective."""
    reasons = {
        "electra": "whose generator fills in masked tokens",
        # Without an order of prediction, every token sees all others, so it would see the token to predict.
        "xlnet": "whose attention follows a random order",
    }
    family = recipe.model.family
    if recipe.objective.kind == "clm" and family in reasons:
        yield f'objective.kind "clm" is not for model.family "{family}", {reasons[family]}. Set objective.kind "mlm".'


def faults_of_data(recipe: Recipe) -> Faults:
    """data.weights, if set, must be an exponent, or have one positive number for each folder of pairs."""
    folders, weights = recipe.data.folders, recipe.data.weights
    if not folders:
        yield "data.pairs names no folder. Give one that `clozeline pairs` wrote."
    if isinstance(weights, list):
        if len(weights) != len(folders) or min(weights) <= 0:
            yield f"data.weights {weights} must be {len(folders)} numbers above 0, one for each folder of data.pairs."
    elif weights is not None and not 0 <= weights <= 1:
        yield (
            f"data.weights {weights:g} must be from 0 (equal shares) to 1 (the folders' sizes), or a list with one "
            "number for each folder of data.pairs."
        )


def faults_of_masking(recipe: Recipe) -> Faults:
    """Stored masks go neither with keys for drawing masks nor with XLNet, whose width must be even."""
    model, masking = recipe.model, recipe.masking
    unused = masking.model_dump(exclude_defaults=True, exclude={"stored"})
    if masking.stored and unused:
        yield (
            "masking.stored uses the masks that the pairs hold; leave the other keys of [masking] out: "
            f"`{removing('masking', list(unused))}`."
        )
    if model.family == "xlnet" and masking.stored:
        yield (
            'masking.stored is not for model.family "xlnet", which masks nothing and draws an order each time a row is '
            "read. Leave it out."
        )
    if model.family == "xlnet" and model.hidden_size % 2:
        yield (
            f'model.hidden_size {model.hidden_size} is odd; positions in "xlnet" are as many sines as cosines. Make it '
            "even."
        )


def removing(section: str, names: list[str]) -> str:
    """Return the flags that remove keys of a section."""
    return " ".join(f"--set {section}.{name}=none" for name in names)


# Batches and lengths


def faults_of_batch(batch: BatchSection) -> Faults:
    """A batch must be counted in either rows or tokens, and micro_batch divide global_batch."""
    is_in_rows = batch.global_batch is not None and batch.global_tokens is None
    is_in_tokens = batch.global_tokens is not None and batch.global_batch is None

    # micro_batch may be set together with micro_tokens = "auto", so that it can override a shipped recipe's "auto".
    has_row_limit = batch.micro_batch is not None
    has_token_limit = batch.micro_tokens is not None
    has_both_limits = has_row_limit and isinstance(batch.micro_tokens, int)

    is_complete_in_rows = is_in_rows and (has_row_limit or has_token_limit) and not has_both_limits
    is_complete_in_tokens = is_in_tokens and has_token_limit and not has_row_limit
    if not (is_complete_in_rows or is_complete_in_tokens):
        yield (
            "[batch] needs global_batch and micro_batch (rows), or global_tokens and micro_tokens, not both. "
            f"global_batch also goes with micro_tokens in place of micro_batch.{surplus_of(batch)}"
        )
    if batch.global_batch and batch.micro_batch and batch.global_batch % batch.micro_batch:
        yield f"batch.micro_batch {batch.micro_batch} does not divide batch.global_batch {batch.global_batch}."


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


def faults_of_ramp(batch: BatchSection, max_steps: int) -> Faults:
    """A batch ramp must start below the full size, and end within the `max_steps` steps that it applies to."""
    if (batch.ramp_from is None) != (batch.ramp_steps is None):
        yield "batch.ramp_from and batch.ramp_steps go together. Set both or neither."
    if batch.ramp_from is not None and batch.ramp_from >= batch.size:
        yield (
            f"batch.ramp_from {batch.ramp_from} is not below the full batch of {batch.size}. Lower it, or leave the "
            "ramp out."
        )
    if batch.ramp_steps is not None and batch.ramp_steps > max_steps:
        yield f"batch.ramp_steps {batch.ramp_steps} is above the {max_steps} steps in which it applies. Lower it."


def faults_of_length(recipe: Recipe) -> Faults:
    """run.max_epochs does not go with phases, and evaluated steps must be saved, as only these can be the best."""
    if recipe.run.max_epochs is not None and recipe.phases:
        yield (
            "run.max_epochs is not for a run with phases, which have a number of steps each. Set phases=none, or leave "
            "run.max_epochs out."
        )
    evaluate, save = recipe.evaluation.every, recipe.checkpoint.every
    if recipe.evaluation.pairs and evaluate % save and save % evaluate:
        yield (
            f"evaluation.every {evaluate} and checkpoint.every {save} seldom meet, so the best checkpoint would be "
            "unknown. Make one a multiple of the other."
        )


def faults_of_hours(recipe: Recipe) -> Faults:
    """The first steps of a run with max_hours must not depend on its number of steps, and be like all others."""
    if recipe.run.max_hours is None:
        return

    ways_out = {
        "phases": ("phases=none", bool(recipe.phases)),
        "batch.ramp_from": ("batch.ramp_from=none and batch.ramp_steps=none", recipe.batch.ramp_from is not None),
        "masking.final_prob": ("masking.final_prob=none", recipe.masking.final_prob is not None),
    }
    for what, (way_out, is_set) in ways_out.items():
        if is_set:
            yield (
                f"run.max_hours is not for a run with {what}, because its number of steps is measured on its first "
                f"steps. Set {way_out}, or leave run.max_hours out and set run.max_steps."
            )
    if recipe.schedule.warmup_ratio or recipe.schedule.warmup_steps < FEWEST_WARMUP_STEPS:
        yield (
            "with run.max_hours, the number of steps is measured while the learning rate warms up. Set "
            f"schedule.warmup_steps to {FEWEST_WARMUP_STEPS} or more, and leave schedule.warmup_ratio out."
        )


def faults_of_schedule(optimizer: OptimizerSection, schedule: ScheduleSection, max_steps: int) -> Faults:
    """The parts of a schedule over `max_steps` steps must fit together."""
    if schedule.warmup_steps and schedule.warmup_ratio:
        yield (
            f"schedule.warmup_steps {schedule.warmup_steps} and schedule.warmup_ratio {schedule.warmup_ratio} say the "
            "same thing. Set one of them to 0."
        )
    if schedule.warmup_steps > max_steps:
        yield (
            f"schedule.warmup_steps {schedule.warmup_steps} is above run.max_steps {max_steps}. Lower it, for instance "
            f"to schedule.warmup_steps={max_steps // 10}."
        )
    if schedule.final_lr > optimizer.lr:
        yield f"schedule.final_lr {schedule.final_lr} is above optimizer.lr {optimizer.lr}."
    if schedule.power != 1.0 and schedule.kind != "polynomial":
        yield f"schedule.power belongs to kind polynomial, not {schedule.kind}. Leave it out."
    if (schedule.decay_steps is not None) != (schedule.kind == "wsd"):
        yield "schedule.decay_steps belongs to kind wsd, and wsd needs it."
    if schedule.kind == "wsd" and schedule.decay_from != "warmup":
        yield "schedule.decay_from start is not for kind wsd, whose decay has decay_steps. Leave it out."
    if schedule.warmup_of(max_steps) + (schedule.decay_steps or 0) > max_steps:
        yield f"schedule.warmup_steps and decay_steps together are above run.max_steps {max_steps}."


# The table [model]


def faults_of_model(model: ModelSection) -> Faults:
    """Sizes must divide each other, heads that are rotated have an even size, and keys belong to the family."""
    for part, whole in (
        ("num_attention_heads", "hidden_size"),
        ("num_hidden_groups", "num_hidden_layers"),
        ("num_key_value_heads", "num_attention_heads"),
    ):
        divisor, number = getattr(model, part), getattr(model, whole)
        if number % (divisor or 1):
            yield f"model.{part} {divisor} does not divide model.{whole} {number}."

    head_size = model.hidden_size // model.num_attention_heads
    if model.family in ROTATED_FAMILIES and head_size % 2:
        yield (
            f"heads of {head_size} cannot be rotated, which pairs their values. Choose model.hidden_size and "
            "model.num_attention_heads so that a head's size is even."
        )
    for name, families in FAMILIES_WITH.items():
        if getattr(model, name) is not None and model.family not in families:
            *others, last = [f'"{family}"' for family in families]
            names = f"{', '.join(others)} and {last}" if others else last
            yield f'model.{name} belongs to {names}; model.family is "{model.family}". Leave it out.'
    if model.family != "electra":
        return

    # The generator's width must be positive and a multiple of its number of heads.
    fraction = model.generator_size or GENERATOR_SIZE
    sizes = generator_sizes(model.hidden_size, model.num_attention_heads, model.intermediate_size, fraction)
    if sizes.hidden_size == 0 or sizes.hidden_size % sizes.num_attention_heads:
        yield (
            f"model.generator_size {fraction:g} makes a generator of width {sizes.hidden_size} with "
            f"{sizes.num_attention_heads} heads, which do not divide it. Choose a fraction such as 1/4 or 1/2 of "
            f"model.hidden_size {model.hidden_size} that heads divide."
        )


def faults_of_first_weights(model: ModelSection) -> Faults:
    """The first weights must have one source, and tile_from needs a family whose weights can be tiled."""
    source = "init_from" if model.init_from is not None else "tile_from"
    if model.init_from is not None and model.tile_from is not None:
        yield (
            f"model.init_from {model.init_from} and model.tile_from {model.tile_from} both give the first weights. "
            "Leave one out: init_from is for a model of the same sizes, tile_from for a smaller one."
        )
    if model.tile_from is not None and model.family == "xlnet":
        yield (
            'model.tile_from is not for model.family "xlnet", whose positions are sines and cosines with other '
            "frequencies in each width. Leave it out."
        )

    asked_for = [name for name in DRAWN_STARTS if getattr(model, name) != "random"]
    if asked_for and getattr(model, source) is not None:
        off = ", ".join(f"model.{name}=random" for name in asked_for)
        if model.initial_embedding_std is not None:
            off += ", model.initial_embedding_std=none"
        yield (
            f"model.{source} already sets all initial weights, so other starts have no use. Leave it out, or set {off}."
        )
    if model.initial_embedding_std is not None and model.initial_embeddings == "random":
        yield (
            'model.initial_embedding_std belongs to model.initial_embeddings "cooccurrence". Drawn embeddings have the '
            "standard deviation model.initializer_range."
        )
