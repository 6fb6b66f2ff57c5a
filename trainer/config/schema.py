"""The tables of a recipe: every setting of a run, its type, its bounds and its default.

What no single key can get wrong is in recipe_checks.py; reading a recipe from its file in recipe.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas import storage
from schemas.masking import Kind


class _Section(BaseModel):
    """A table without unknown keys whose numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Beta = Annotated[float, Field(ge=0, lt=1)]


class ModelSection(_Section):
    """The network's shape, in the terms of the papers.

    `vocab_size` is checked against the pairs when given; their vocabulary decides. `init_from` is a Hugging Face folder
    whose weights the run begins with.
    """

    family: Literal["bert", "roberta", "albert", "megatron-bert"]
    num_hidden_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)  # hidden size
    num_attention_heads: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)  # width inside a layer's feed-forward part
    max_position_embeddings: int = Field(default=512, gt=0)  # tokens of the longest row
    embedding_size: int | None = Field(default=None, gt=0)  # albert's factorised embeddings; 128 by default
    num_hidden_groups: int | None = Field(default=None, gt=0)  # albert's layers with weights of their own; 1 by default
    vocab_size: int | None = Field(default=None, gt=0)
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    initializer_range: float = Field(default=0.02, gt=0, le=10)  # of the matrices
    init_from: str | None = None


class DataSection(_Section):
    """Where the rows come from: one folder of pairs or several, local or URLs.

    `weights` are the folders' shares, by default as large as they are. `vocab` is checked against the pairs when given;
    the pairs carry their own copy. `max_length` is the tokens of the longest row, for --describe before there are
    pairs. `cache` holds copies of remote shards, `cache_gigabytes` of them at most.
    """

    pairs: str | list[str]
    weights: list[float] | None = None
    vocab: str | None = None
    max_length: int | None = Field(default=None, gt=0)
    cache: str = "~/.cache/clozeline"
    cache_gigabytes: float = Field(default=50.0, gt=0, le=1e9)

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
    """AdamW or LAMB (trainer/optim/lamb.py) with decoupled decay; biases and layer norms are not decayed."""

    kind: Literal["adamw", "lamb"] = "adamw"
    lr: float = Field(gt=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(default=1e-6, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    clip: float = Field(default=1.0, ge=0)  # largest global gradient norm; 0 does not clip


class ScheduleSection(_Section):
    """The learning rate rises over `warmup_steps` and falls to `final_lr` at run.max_steps (optim/lr_schedule.py).

    `power` belongs to polynomial, `decay_steps`, the steps at the end in which the rate falls, to wsd. `decay_from`
    says where the other kinds begin to fall: at the end of warm-up, or at the first step as in Google's and NVIDIA's
    BERT.
    """

    kind: Literal["linear", "polynomial", "cosine", "wsd"] = "linear"
    warmup_steps: int = Field(default=0, ge=0)
    final_lr: float = Field(default=0.0, ge=0)
    power: float = Field(default=1.0, gt=0)
    decay_steps: int | None = Field(default=None, gt=0)
    decay_from: Literal["warmup", "start"] = "warmup"


class BatchSection(_Section):
    """What a step computes over all ranks, and how much of it each computes at once; the rest is accumulated.

    Either rows (`global_batch`, `micro_batch`) or tokens, whatever the rows' lengths (`global_tokens`, and
    `micro_tokens`, which no micro-batch exceeds). `shape` exact: no padding, every batch has its own shape. fixed:
    filled up to one shape, at most `micro_tokens` in multiples of 64, for compiled models. padded: every row filled up
    to the longest, as others do it, for comparison; this padding comes on top of `micro_tokens`.
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
    """`max_steps` is the schedule's length; `stop_at` ends a run early and leaves the schedule as it is.

    A run whose `output` is a URL works in a folder inside `local`, which all its ranks must share (remote_run.py).
    """

    output: str
    local: str = "~/.cache/clozeline/runs"
    seed: int = 0
    max_steps: int = Field(gt=0)
    stop_at: int | None = Field(default=None, gt=0)
    log_every: int = Field(default=10, gt=0)

    @property
    def folder(self) -> str:
        """Where the run works: `output` itself when it is local."""
        if "://" not in self.output:
            return self.output
        if storage.is_local(self.output):
            return storage.filesystem(self.output)[1]
        url = self.output.rstrip("/")
        return str(Path(self.local).expanduser() / f"{Path(url).name}-{storage.sha256(url.encode())[:12]}")


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

    `zero_stage`: what ranks share out instead of each keeping all of it: 1 optimizer state, 2 gradients too, 3
    weights too. `offload`: what lies in the host's memory while the accelerator computes: the optimizer (stages 1
    to 3, and the update is made on the host), or parameters too (stage 3). `recompute` computes each layer again in
    the backward pass instead of keeping what it needs there: a third more to compute, for models that do not fit
    otherwise. `compile` fuses the steps of each layer by torch.compile, which takes a minute at the start and one
    batch.shape. `deterministic` makes a GPU compute the same bits each time, more slowly: without it a resumed run on
    GPUs equals the unbroken one up to rounding only. A run in which nothing has happened for `timeout_seconds` ends and
    names the rank that it waited for. All of these may change when a run is resumed.
    """

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    zero_stage: Literal[0, 1, 2, 3] = 1
    offload: Literal["none", "optimizer", "parameters"] = "none"
    recompute: bool = False
    compile: bool = False
    deterministic: bool = False
    timeout_seconds: float = Field(default=600.0, gt=0, le=1e9)


class AnomalySection(_Section):
    """What is done about a step whose loss or gradient norm is not a number or jumps.

    A jump is a loss above `loss_factor` or a norm above `norm_factor` times the median of the last `window` steps, once
    there are so many. Such a step makes no update. After `max_skips` of them in a row the run goes back to its last
    good checkpoint and leaves out the data in between; when `max_rollbacks` times did not help, it stops with exit
    code 1. Every `replica_check_every` steps, and before every save, all ranks compare the weights they should hold
    alike.
    """

    window: int = Field(default=100, gt=0)
    loss_factor: float = Field(default=2.0, gt=1)
    norm_factor: float = Field(default=10.0, gt=1)
    max_skips: int = Field(default=10, gt=0)
    max_rollbacks: int = Field(default=3, ge=0)
    replica_check_every: int = Field(default=500, gt=0)


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
    anomaly: AnomalySection = AnomalySection()
    phases: list[PhaseSection] = []
    deepspeed: dict[str, Any] = {}
