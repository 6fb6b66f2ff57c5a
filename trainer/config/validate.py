"""What no single key of a recipe can get wrong: keys that must fit each other. Every check here raises UsageError."""

from __future__ import annotations

from schemas.errors import UsageError
from trainer.config.schema import (
    BatchSection,
    DataSection,
    EngineSection,
    MaskingSection,
    ModelSection,
    OptimizerSection,
    Recipe,
    ScheduleSection,
)

OWNED_BY_RECIPE = {
    "train_batch_size": "batch.global_batch",
    "train_micro_batch_size_per_gpu": "batch.micro_batch",
    "gradient_accumulation_steps": "batch.global_batch and batch.micro_batch",
    "gradient_clipping": "optimizer.clip",
    "optimizer": "optimizer",
    "scheduler": "schedule",
    "bf16": "engine.precision",
    "bfloat16": "engine.precision",
    "fp16": "engine.precision",
    "amp": "engine.precision",
    "torch_autocast": "engine.precision",
    "elasticity": "batch.global_batch",
    "data_types": "engine.precision and engine.zero_stage",
    "zero_optimization.stage": "engine.zero_stage",
    "zero_optimization.offload_optimizer": "engine.offload",
    "zero_optimization.offload_param": "engine.offload",
    "zero_optimization.cpu_offload": "engine.offload",
    "zero_optimization.cpu_offload_param": "engine.offload",
    "zero_optimization.cpu_offload_params": "engine.offload",
    "zero_optimization.cpu_offload_use_pin_memory": "engine.offload",
}
"""DeepSpeed's keys that a recipe's [deepspeed] table may not hold, its old names among them, and the recipe's own."""

DEEPSPEED_TABLES = (
    "activation_checkpointing",
    "aio",
    "autotuning",
    "checkpoint",
    "comet",
    "comms_logger",
    "compile",
    "compression_training",
    "csv_monitor",
    "curriculum_learning",
    "data_efficiency",
    "data_types",
    "eigenvalue",
    "flops_profiler",
    "graph_harvesting",
    "hybrid_engine",
    "nebula",
    "pipeline",
    "progressive_layer_drop",
    "quantize_training",
    "sparse_attention",
    "tensor_parallel",
    "tensorboard",
    "timers",
    "wandb",
    "weight_quantization",
    "zero_optimization",
)
"""DeepSpeed's keys that hold a table. DeepSpeed looks into them without a check of its own."""


def check_recipe(recipe: Recipe, path: str) -> None:
    """One phase of a recipe, or a recipe without phases; `path` names it in messages."""
    check_deepspeed(recipe, path)
    check_engine(recipe.engine, recipe.optimizer, path)
    check_compile(recipe, path)
    check_model(recipe.model, path)
    check_data(recipe.data, path)
    check_batch(recipe.batch, path)
    check_checkpointing(recipe, path)
    check_schedule(recipe.optimizer, recipe.schedule, recipe.run.max_steps, path)
    if recipe.masking.stored and recipe.masking != MaskingSection(stored=True):
        raise UsageError(f"{path}: masking.stored takes the masks that the pairs hold; leave the other keys out.")


def check_phases(recipe: Recipe, path: str) -> None:
    steps = sum(phase.steps for phase in recipe.phases)
    if recipe.phases and steps != recipe.run.max_steps:
        raise UsageError(
            f"{path}: the phases have {steps:,} steps together, but run.max_steps is {recipe.run.max_steps:,}. "
            "Make them equal; run.stop_at ends a run early."
        )


def check_deepspeed(recipe: Recipe, path: str) -> None:
    """A [deepspeed] table that sets what the recipe sets, or what checkpoints could not be read with."""
    for name in DEEPSPEED_TABLES:
        value = recipe.deepspeed.get(name, {})
        if not isinstance(value, dict):
            raise UsageError(f"{path}: [deepspeed] {name} must be a table, found {value!r}.")

    zero = recipe.deepspeed.get("zero_optimization", {})
    for name, owner in OWNED_BY_RECIPE.items():
        table, _, inner = name.partition(".")
        is_set = inner in zero if inner else table in recipe.deepspeed
        if is_set:
            raise UsageError(f"{path}: [deepspeed] {name} is set by {owner}; set that instead.")

    if zero.get("round_robin_gradients"):
        raise UsageError(
            f"{path}: [deepspeed] zero_optimization.round_robin_gradients cannot be used: with it DeepSpeed's own map "
            "of which rank holds which parameter is wrong, and checkpoints go by that map. Leave it out."
        )


def check_engine(engine: EngineSection, optimizer: OptimizerSection, path: str) -> None:
    if engine.zero_stage < {"none": 0, "optimizer": 1, "parameters": 3}[engine.offload]:
        raise UsageError(
            f"{path}: engine.offload {engine.offload} is not for engine.zero_stage {engine.zero_stage}: "
            "the optimizer can be offloaded from stage 1 on, parameters in stage 3."
        )
    if optimizer.kind == "lamb" and engine.zero_stage > 2:
        raise UsageError(
            f"{path}: optimizer.kind lamb knows where matrices lie under engine.zero_stage 0, 1 and 2, not "
            f"{engine.zero_stage}. Set one of these, or adamw."
        )


def check_compile(recipe: Recipe, path: str) -> None:
    if recipe.engine.compile and recipe.batch.shape == "exact":
        raise UsageError(f'{path}: engine.compile needs batches of one shape. Set batch.shape to "fixed".')
    if recipe.engine.compile and recipe.engine.zero_stage == 3:
        raise UsageError(f"{path}: engine.compile is not for engine.zero_stage 3, which fetches weights inside layers.")


def check_model(model: ModelSection, path: str) -> None:
    """A network that cannot be built as asked."""
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
    for name in ("embedding_size", "num_hidden_groups"):
        if getattr(model, name) is not None and model.family != "albert":
            raise UsageError(
                f'{path}: model.{name} belongs to "albert"; model.family is "{model.family}". Leave it out.'
            )


def check_data(data: DataSection, path: str) -> None:
    if data.weights is not None and (len(data.weights) != len(data.folders) or min(data.weights) <= 0):
        raise UsageError(
            f"{path}: data.weights {data.weights} must be {len(data.folders)} numbers above 0, one for each of "
            "data.pairs."
        )


def check_batch(batch: BatchSection, path: str) -> None:
    rows, tokens = (batch.global_batch, batch.micro_batch), (batch.global_tokens, batch.micro_tokens)
    if (None in rows) == (None in tokens) or (any(rows) and any(tokens)):
        raise UsageError(
            f"{path}: [batch] needs global_batch and micro_batch (rows), or global_tokens and micro_tokens, not both."
        )
    if batch.global_batch and batch.micro_batch and batch.global_batch % batch.micro_batch:
        raise UsageError(
            f"{path}: batch.micro_batch {batch.micro_batch} does not divide batch.global_batch {batch.global_batch}."
        )


def check_checkpointing(recipe: Recipe, path: str) -> None:
    evaluation, saving = recipe.evaluation, recipe.checkpoint
    if evaluation.pairs and evaluation.every % saving.every and saving.every % evaluation.every:
        raise UsageError(
            f"{path}: evaluation.every {evaluation.every} and checkpoint.every {saving.every} seldom meet, so the best "
            "checkpoint would be unknown. Make one a multiple of the other."
        )


def check_schedule(optimizer: OptimizerSection, schedule: ScheduleSection, steps: int, path: str) -> None:
    """A schedule over `steps` steps whose parts do not fit together."""
    if schedule.warmup_steps > steps:
        raise UsageError(f"{path}: schedule.warmup_steps is above run.max_steps {steps}.")
    if schedule.final_lr > optimizer.lr:
        raise UsageError(f"{path}: schedule.final_lr {schedule.final_lr} is above optimizer.lr {optimizer.lr}.")
    if schedule.power != 1.0 and schedule.kind != "polynomial":
        raise UsageError(f"{path}: schedule.power belongs to kind polynomial, not {schedule.kind}. Leave it out.")
    if (schedule.decay_steps is None) == (schedule.kind == "wsd"):
        raise UsageError(f"{path}: schedule.decay_steps belongs to kind wsd, and wsd needs it.")
    if schedule.kind == "wsd" and schedule.decay_from != "warmup":
        raise UsageError(
            f"{path}: schedule.decay_from start is not for kind wsd, whose decay has decay_steps. Leave it out."
        )
    if schedule.warmup_steps + (schedule.decay_steps or 0) > steps:
        raise UsageError(f"{path}: schedule.warmup_steps and decay_steps together are above run.max_steps {steps}.")
