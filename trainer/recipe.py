"""The recipe: everything that decides a run, as strict tables of a TOML file.

A key that nobody knows is an error with the nearest name, for a typo that trains is the costliest kind. Values may be
changed on the command line with `--set section.key=value`, value in TOML's spelling; a bare word is a string, and
`none` takes a key out.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas import randomness
from schemas.errors import UsageError, nearest
from schemas.masking import Kind


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSection(_Section):
    """The network's shape, in the terms of the papers.

    `vocabulary` is checked against the pairs when given; their vocabulary decides. `init_from` is a Hugging Face folder
    whose weights the run begins with.
    """

    family: Literal["bert", "roberta", "albert", "megatron-bert"]
    layers: int = Field(gt=0)
    width: int = Field(gt=0)  # hidden size
    heads: int = Field(gt=0)
    feedforward: int = Field(gt=0)  # width inside a layer's feed-forward part
    max_positions: int = Field(default=512, gt=0)  # tokens of the longest row
    embedding_width: int | None = Field(default=None, gt=0)  # albert's factorised embeddings; 128 by default
    layer_groups: int | None = Field(default=None, gt=0)  # albert's layers with weights of their own; 1 by default
    vocabulary: int | None = Field(default=None, gt=0)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    attention_dropout: float = Field(default=0.1, ge=0, lt=1)
    initial_std: float = Field(default=0.02, gt=0)  # of the matrices
    init_from: str | None = None


class DataSection(_Section):
    """Where the rows come from: one folder of pairs or several, local or URLs.

    `weights` are the folders' shares, by default as large as they are. `vocab` is checked against the pairs when given;
    the pairs carry their own copy. `cache` holds copies of remote shards, `cache_gigabytes` of them at most.
    """

    pairs: str | list[str]
    weights: list[float] | None = None
    vocab: str | None = None
    cache: str = "~/.cache/clozeline"
    cache_gigabytes: float = Field(default=50.0, gt=0)

    @property
    def folders(self) -> list[str]:
        return [self.pairs] if isinstance(self.pairs, str) else self.pairs


class MaskingSection(_Section):
    """How masks are drawn as rows are read: `prob` of a row, changing in a straight line to `final_prob` over the run.

    With `stored` they are the masks that the pairs hold (--static_masks), another variant each epoch.
    """

    kind: Kind = "token"
    prob: float = Field(default=0.15, gt=0, lt=1)
    final_prob: float | None = Field(default=None, gt=0, lt=1)
    max_predictions: int | None = Field(default=None, gt=0)
    stored: bool = False


class OptimizerSection(_Section):
    """AdamW or LAMB (trainer/lamb.py) with decoupled decay; biases and layer norms are not decayed."""

    kind: Literal["adamw", "lamb"] = "adamw"
    lr: float = Field(gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-6, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    clip: float = Field(default=1.0, ge=0)  # largest global gradient norm; 0 does not clip


class ScheduleSection(_Section):
    """The learning rate rises over `warmup_steps` and falls to `final_lr` at run.max_steps (trainer/schedules.py).

    `power` belongs to polynomial, `decay_steps`, the steps at the end in which the rate falls, to wsd.
    """

    kind: Literal["linear", "polynomial", "cosine", "wsd"] = "linear"
    warmup_steps: int = Field(default=0, ge=0)
    final_lr: float = Field(default=0.0, ge=0)
    power: float = Field(default=1.0, gt=0)
    decay_steps: int | None = Field(default=None, gt=0)


class BatchSection(_Section):
    """What a step computes over all ranks, and how much of it each computes at once; the rest is accumulated.

    Either rows (`global_batch`, `micro_batch`) or, whatever the rows' lengths, tokens (`global_tokens`, and
    `micro_tokens` at most at once). `shape` exact: no padding, every batch its own shape. fixed: filled up to one
    shape, for compiled models. padded: every row filled up to the longest, as others do it, for comparison.
    """

    global_batch: int | None = Field(default=None, gt=0)
    micro_batch: int | None = Field(default=None, gt=0)
    global_tokens: int | None = Field(default=None, gt=0)
    micro_tokens: int | None = Field(default=None, gt=0)
    shape: Literal["exact", "fixed", "padded"] = "exact"

    @property
    def size(self) -> int:
        """Rows or tokens of a step."""
        return self.global_tokens or self.global_batch or 0


class RunSection(_Section):
    """`max_steps` is the schedule's length; `stop_at` ends a run early and leaves the schedule as it is."""

    output: str
    seed: int = 0
    max_steps: int = Field(gt=0)
    stop_at: int | None = Field(default=None, gt=0)
    log_every: int = Field(default=10, gt=0)


class EvaluationSection(_Section):
    """Held-out `pairs` to measure the model on, every `every` steps and at the end: all rows, or `batches` batches."""

    pairs: str | None = None
    every: int = Field(default=1000, gt=0)
    batches: int | None = Field(default=None, gt=0)


class CheckpointSection(_Section):
    every: int = Field(default=1000, gt=0)
    keep: int = Field(default=3, gt=0)


class EngineSection(_Section):
    """What DeepSpeed is asked for.

    `zero_stage`: what ranks share out instead of each keeping all of it: 1 optimizer state, 2 gradients too, 3 weights
    too. `offload`: what lies in the host's memory while the accelerator computes: the optimizer (stages 1 to 3, and the
    update is made on the host), or parameters too (stage 3). `recompute` computes each layer again in the backward pass
    instead of keeping what it needs there: a third more to compute, for models that do not fit otherwise. A run in
    which nothing has happened for `timeout_seconds` ends and names the rank that it waited for. All of these may change
    when a run is resumed.
    """

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    zero_stage: Literal[0, 1, 2, 3] = 1
    offload: Literal["none", "optimizer", "parameters"] = "none"
    recompute: bool = False
    timeout_seconds: float = Field(default=600.0, gt=0)


class TroubleSection(_Section):
    """What is done about a step whose loss or gradient norm is not a number or jumps.

    A jump is a loss above `loss_factor` or a norm above `norm_factor` times the median of the last `window` steps, once
    there are so many. Such a step makes no update. After `skips` of them in a row the run goes back to its last good
    checkpoint and leaves out the data in between; when `rollbacks` times did not help, it stops with exit code 1.
    Every `replicas_every` steps, and before every save, all ranks compare the weights they should hold alike.
    """

    window: int = Field(default=100, gt=0)
    loss_factor: float = Field(default=2.0, gt=1)
    norm_factor: float = Field(default=10.0, gt=1)
    skips: int = Field(default=10, gt=0)
    rollbacks: int = Field(default=3, ge=0)
    replicas_every: int = Field(default=500, gt=0)


class PhaseSection(_Section):
    """Some steps of a run, and what is different in them; see phases.py."""

    steps: int = Field(gt=0)
    data: dict[str, Any] = {}
    masking: dict[str, Any] = {}
    optimizer: dict[str, Any] = {}
    schedule: dict[str, Any] = {}
    batch: dict[str, Any] = {}


class Recipe(_Section):
    """A whole run. `deepspeed` passes through to DeepSpeed, except the keys that other sections own."""

    model: ModelSection
    data: DataSection
    masking: MaskingSection = MaskingSection()
    optimizer: OptimizerSection
    schedule: ScheduleSection = ScheduleSection()
    batch: BatchSection
    run: RunSection
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    engine: EngineSection = EngineSection()
    trouble: TroubleSection = TroubleSection()
    phases: list[PhaseSection] = []
    deepspeed: dict[str, Any] = {}


OWNED_BY_RECIPE = {
    "train_batch_size": "batch.global_batch",
    "train_micro_batch_size_per_gpu": "batch.micro_batch",
    "gradient_accumulation_steps": "batch.global_batch and batch.micro_batch",
    "gradient_clipping": "optimizer.clip",
    "optimizer": "optimizer",
    "scheduler": "schedule",
    "bf16": "engine.precision",
    "fp16": "engine.precision",
    "zero_optimization.stage": "engine.zero_stage",
    "zero_optimization.offload_optimizer": "engine.offload",
    "zero_optimization.offload_param": "engine.offload",
}
"""DeepSpeed's keys that a recipe's [deepspeed] table may not hold, and the recipe's own key for each."""


def load_recipe(path: str, changes: list[str]) -> Recipe:
    """Read a recipe and apply `--set` changes. Raises UsageError naming the file and each wrong key."""
    try:
        content = tomllib.loads(Path(path).read_text())
    except FileNotFoundError:
        raise UsageError(f"--config {path} does not exist. Recipes ship in trainer/recipes/.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path} is not TOML: {error}.") from error
    for change in changes:
        apply_change(content, change)
    recipe = validated(content, path)
    for number in range(len(recipe.phases)):
        check_together(phase_recipe(recipe, number, path), f"{path}: phase {number + 1}")
    if recipe.phases and sum(phase.steps for phase in recipe.phases) != recipe.run.max_steps:
        raise UsageError(
            f"{path}: the phases have {sum(phase.steps for phase in recipe.phases):,} steps together, but "
            f"run.max_steps is {recipe.run.max_steps:,}. Make them equal; run.stop_at ends a run early."
        )
    check_together(recipe, path)
    return recipe


def validated(content: dict[str, Any], path: str) -> Recipe:
    """Raises UsageError naming each wrong key."""
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path}: " + "; ".join(_fault(fault) for fault in error.errors()) + ".") from error


def phase_recipe(recipe: Recipe, number: int, path: str = "") -> Recipe:
    """The recipe of one phase: its keys in the place of the run's, a [phases.batch] in the place of the whole [batch].

    run.max_steps is the phase's own. A later phase has a seed of its own, so that it meets rows it shares with an
    earlier one in another order and under other masks.
    """
    phase, content = recipe.phases[number], recipe.model_dump()
    for name in ("data", "masking", "optimizer", "schedule"):
        content[name] |= getattr(phase, name)
    content["batch"] = phase.batch or content["batch"]
    content["run"] |= {"max_steps": phase.steps}
    if number:
        content["run"] |= {"seed": randomness.key(recipe.run.seed, "phase", number) >> 1}
    if not phase.schedule:
        content["schedule"] = {}  # the run's schedule goes on; it is checked once
    return validated(content | {"phases": []}, f"{path}: phase {number + 1}")


def apply_change(content: dict[str, Any], change: str) -> None:
    """Example: `apply_change(recipe, "run.seed=7")`; the value `none` takes a key out of the recipe."""
    name, separator, value = change.partition("=")
    keys = name.split(".")
    if not separator or len(keys) < 2:
        raise UsageError(f"--set {change}: expected section.key=value, as in --set run.seed=7.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    table = content
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {change}: {key} is a value, not a section.")
    if value == "none":
        table.pop(keys[-1], None)
    else:
        table[keys[-1]] = parsed


def check_together(recipe: Recipe, path: str) -> None:
    """What no single key can get wrong. Raises UsageError."""
    zero = recipe.deepspeed.get("zero_optimization", {})
    if not isinstance(zero, dict):
        raise UsageError(f"{path}: [deepspeed] zero_optimization must be a table, found {zero!r}.")
    for name, owner in OWNED_BY_RECIPE.items():
        table, _, inner = name.partition(".")
        if inner in zero if inner else table in recipe.deepspeed:
            raise UsageError(f"{path}: [deepspeed] {name} is set by {owner}; set that instead.")
    if zero.get("round_robin_gradients"):
        raise UsageError(
            f"{path}: [deepspeed] zero_optimization.round_robin_gradients cannot be used: with it DeepSpeed's own map "
            "of which rank holds which parameter is wrong, and checkpoints go by that map. Leave it out."
        )
    if recipe.engine.zero_stage < {"none": 0, "optimizer": 1, "parameters": 3}[recipe.engine.offload]:
        raise UsageError(
            f"{path}: engine.offload {recipe.engine.offload} is not for engine.zero_stage {recipe.engine.zero_stage}: "
            "the optimizer can be offloaded from stage 1 on, parameters in stage 3."
        )
    if "://" in recipe.run.output:
        raise UsageError(
            f"{path}: run.output {recipe.run.output} is a URL, but a run is written to a folder, which all ranks must "
            "share. Give one, and copy its checkpoints where you want them."
        )
    batch = recipe.batch
    check_model(recipe.model, path)
    folders, weights = len(recipe.data.folders), recipe.data.weights
    if weights is not None and (len(weights) != folders or min(weights) <= 0):
        raise UsageError(
            f"{path}: data.weights {weights} must be {folders} numbers above 0, one for each of data.pairs."
        )
    rows, tokens = (batch.global_batch, batch.micro_batch), (batch.global_tokens, batch.micro_tokens)
    if (None in rows) == (None in tokens) or (any(rows) and any(tokens)):
        raise UsageError(
            f"{path}: [batch] needs global_batch and micro_batch (rows), or global_tokens and micro_tokens, not both."
        )
    if batch.global_batch and batch.micro_batch and batch.global_batch % batch.micro_batch:
        raise UsageError(
            f"{path}: batch.micro_batch {batch.micro_batch} does not divide batch.global_batch {batch.global_batch}."
        )
    if recipe.optimizer.kind == "lamb" and recipe.engine.zero_stage > 2:
        raise UsageError(
            f"{path}: optimizer.kind lamb knows where matrices lie under engine.zero_stage 0, 1 and 2, not "
            f"{recipe.engine.zero_stage}. Set one of these, or adamw."
        )
    if recipe.masking.stored and recipe.masking != MaskingSection(stored=True):
        raise UsageError(f"{path}: masking.stored takes the masks that the pairs hold; leave the other keys out.")
    evaluation, saving = recipe.evaluation, recipe.checkpoint
    if evaluation.pairs and evaluation.every % saving.every and saving.every % evaluation.every:
        raise UsageError(
            f"{path}: evaluation.every {evaluation.every} and checkpoint.every {saving.every} seldom meet, so the best "
            "checkpoint would be unknown. Make one a multiple of the other."
        )
    check_schedule(recipe.optimizer, recipe.schedule, recipe.run.max_steps, path)


def check_schedule(optimizer: OptimizerSection, schedule: ScheduleSection, steps: int, path: str) -> None:
    """A schedule over `steps` steps whose parts do not fit together. Raises UsageError."""
    if schedule.warmup_steps > steps:
        raise UsageError(f"{path}: schedule.warmup_steps is above run.max_steps {steps}.")
    if schedule.final_lr > optimizer.lr:
        raise UsageError(f"{path}: schedule.final_lr {schedule.final_lr} is above optimizer.lr {optimizer.lr}.")
    if schedule.power != 1.0 and schedule.kind != "polynomial":
        raise UsageError(f"{path}: schedule.power belongs to kind polynomial, not {schedule.kind}. Leave it out.")
    if (schedule.decay_steps is None) == (schedule.kind == "wsd"):
        raise UsageError(f"{path}: schedule.decay_steps belongs to kind wsd, and wsd needs it.")
    if schedule.warmup_steps + (schedule.decay_steps or 0) > steps:
        raise UsageError(f"{path}: schedule.warmup_steps and decay_steps together are above run.max_steps {steps}.")


def check_model(model: ModelSection, path: str) -> None:
    """Raises UsageError when the network cannot be built as asked."""
    if model.width % model.heads:
        raise UsageError(f"{path}: model.heads {model.heads} does not divide model.width {model.width}.")
    if model.layers % (model.layer_groups or 1):
        raise UsageError(
            f"{path}: model.layer_groups {model.layer_groups} does not divide model.layers {model.layers}."
        )
    for name in ("embedding_width", "layer_groups"):
        if getattr(model, name) is not None and model.family != "albert":
            raise UsageError(
                f'{path}: model.{name} belongs to "albert"; model.family is "{model.family}". Leave it out.'
            )


def _fault(fault: Any) -> str:
    """One of pydantic's findings in the words of a recipe, with the nearest name for an unknown key."""
    path = [str(part) for part in fault["loc"]]
    name = ".".join(path)
    if fault["type"] != "extra_forbidden":
        return (
            f"{name}: {fault['msg']}, found {fault['input']!r}" if fault["type"] != "missing" else f"{name} is missing"
        )
    section: Any = Recipe
    for part in path[:-1]:
        section = PhaseSection if part.isdigit() else section.model_fields[part].annotation
    known = section.model_fields
    hint = nearest(path[-1], known).replace("mean ", "mean " + "".join(part + "." for part in path[:-1]))
    return f"unknown key {name}.{hint}"
