"""The whole recipe: every setting of a run with its type, bounds, default and description.

The tables that decide what is learned are in sections.py. Here are those that decide how a run proceeds, the phases,
and the recipe itself. validate.py has the cross-field validation, and load.py reads a recipe from its file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from schemas import storage
from schemas.urls import normal
from trainer.config.sections import (
    DataSection,
    MaskingSection,
    ModelSection,
    ObjectiveSection,
    OptimizerSection,
    RecipePlace,
    ScheduleSection,
    Section,
)


class BatchSection(Section):
    """What one step computes over all ranks, and how much of it each rank computes at once.

    A batch is counted either in rows (global_batch) or, whatever the rows' lengths, in tokens (global_tokens). What a
    rank computes at once is limited in rows (micro_batch, only with global_batch) or in tokens (micro_tokens). The
    micro-batches of a step are accumulated.
    """

    global_batch: int | None = Field(
        default=None, gt=0, description="Rows per step over all ranks. Must be a multiple of micro_batch."
    )
    micro_batch: int | None = Field(
        default=None,
        gt=0,
        description="Rows that a rank computes at once. Limited by memory; changes results by rounding and, with "
        'dropout, by its random masks. Comes before micro_tokens = "auto".',
    )
    global_tokens: int | None = Field(default=None, gt=0, description="Tokens per step over all ranks.")
    micro_tokens: Annotated[int, Field(gt=0)] | Literal["auto"] | None = Field(
        default=None,
        description="Maximum tokens that a rank computes at once. Limited by memory; changes results as micro_batch "
        'does. "auto": the largest that fits into the GPU\'s memory, and 4,096 on a CPU; RUN/micro_batches.json '
        "records it.",
    )
    shape: Literal["exact", "fixed", "padded"] = Field(
        default="exact",
        description='Padding of a micro-batch. "exact": none, so that each has its own shape. "fixed": up to one shape '
        'for all, of a multiple of 64 tokens, at most micro_tokens, as engine.compile needs it. "padded": each row up '
        "to the longest, in addition to micro_tokens, for comparison with other trainers.",
    )
    ramp_from: int | None = Field(
        default=None,
        gt=0,
        description="Rows or tokens of the first step's batch, counted as the full one is, if batches grow at the "
        "beginning. Sizes are multiples of its greatest common divisor with the full size, so a multiple of what all "
        "ranks compute at once is best.",
    )
    ramp_steps: int | None = Field(
        default=None,
        gt=0,
        description="Number of steps over which batches grow linearly from ramp_from, counted from the phase's first. "
        "Later steps have the full size.",
    )

    @property
    def chooses_micro_batch(self) -> bool:
        """Whether the trainer has to choose the micro-batch (trainer/micro_batches.py)."""
        return self.micro_tokens == "auto" and self.micro_batch is None

    @property
    def size(self) -> int:
        """The size of a step's batch over all ranks, in tokens if global_tokens is set, otherwise in rows."""
        return self.global_tokens or self.global_batch or 0


class RunSection(Section):
    """Where a run lies, how long it is, and the seed of everything random in it."""

    output: RecipePlace = Field(
        description="The run's folder, a path or a URL. A run resumes automatically if it holds a complete checkpoint."
    )
    local: str = Field(
        default="~/.cache/clozeline/runs",
        description="Folder in which a run whose output is a URL works. Nodes may share it, or have one each.",
    )
    seed: int = Field(
        default=0, description="Seed of the initial weights, the order of rows, the masks, pair orders and dropout."
    )
    max_steps: int = Field(gt=0, description="Length of the run and of its learning rate schedule, in steps.")
    max_epochs: float | None = Field(
        default=None,
        gt=0,
        description="At most this many passes over data.pairs, as whole steps. The number of steps is fixed at the "
        "start as max_steps, so the schedule ends with it; a lower max_steps holds instead. A pass is as many rows as "
        "the folders hold together (tokens, if batches are counted in tokens), whatever data.weights takes from each. "
        "Cannot be combined with phases.",
    )
    max_hours: float | None = Field(
        default=None,
        gt=0,
        description="Length of the run in hours from the start of the command; after a resume, what earlier commands "
        "trained counts as well. max_steps is then only an upper bound. The speed is measured on the first steps, "
        "while the learning rate warms up (schedule.warmup_steps), and the number of steps that fits is fixed as "
        "max_steps. It is fixed again, later in the warm-up or after a resume, if the steps that remain need a quarter "
        "more or less than the time that is left. "
        "Cannot be combined with phases, a batch ramp or masking.final_prob.",
    )
    stop_at: int | None = Field(
        default=None,
        gt=0,
        description="Step after which the run ends early. The schedule does not change, so the run can be continued.",
    )
    log_every: int = Field(
        default=10,
        gt=0,
        description="Steps between two lines of metrics.jsonl, which hold means since the line before. The first and "
        "the last step have one, too.",
    )

    @property
    def folder(self) -> str:
        """The local folder in which the run works: `output` if that is local, otherwise a folder inside `local`."""
        if "://" not in self.output:
            return self.output
        # The hash of the whole URL distinguishes runs of the same name in different buckets.
        url_hash = storage.sha256(self.output.rstrip("/").encode())[:12]
        return str(Path(normal(self.local)) / f"{Path(self.output).name}-{url_hash}")


class EvaluationSection(Section):
    """Measuring the model on held-out pairs during the run. The checkpoint with the lowest loss is never pruned."""

    pairs: RecipePlace | None = Field(
        default=None,
        description="Folder of held-out pairs, with the vocabulary of data.pairs. Unset: no evaluation.",
    )
    every: int = Field(default=1000, gt=0, description="Steps between two evaluations; the last step is evaluated too.")
    batches: int | None = Field(
        default=None, gt=0, description="Number of batches to evaluate on. If unset, all rows of evaluation.pairs."
    )
    all_kinds: bool = Field(
        default=False,
        description="Evaluate with masks of every kind, to compare runs of different kinds; takes four times as long. "
        "Unset: with masks of masking.kind.",
    )


class CheckpointSection(Section):
    """Saving the state of a run, from which it resumes at the exact row."""

    every: int = Field(
        default=1000, gt=0, description="Steps between two checkpoints; the last step is saved too, and on preemption."
    )
    keep: int = Field(
        default=3, gt=0, description="Number of newest checkpoints to keep, in addition to the best by evaluation."
    )
    background: bool = Field(
        default=True,
        description="Copy weights and moments to host memory and continue training while a thread writes the "
        "checkpoint: 12 bytes a parameter, shared by the ranks. The last checkpoint of a phase and the one before a "
        "stop are waited for.",
    )


class EngineSection(Section):
    """How DeepSpeed computes. All of these keys may change when a run is resumed."""

    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="Number format of the computation; the optimizer keeps float32 weights in each."
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        default=1,
        description="What ranks partition instead of replicating (ZeRO, arXiv:1910.02054). 0: nothing, in fp32 alone; "
        "in 16 bits as 1. 1: optimizer state. 2: gradients too. 3: weights too.",
    )
    offload: Literal["none", "optimizer", "parameters"] = Field(
        default="none",
        description='What lies in host memory while the accelerator computes. "optimizer" (stages 1 to 3) also makes '
        'the update on the host; "parameters" (stage 3) offloads the weights too.',
    )
    recompute: bool = Field(
        default=False,
        description="Recompute each layer in the backward pass instead of keeping its activations: a third more "
        "computation, for models that do not fit otherwise.",
    )
    compile: bool | Literal["auto"] = Field(
        default=False,
        description="Fuse the operations of embeddings, layers and heads with torch.compile, which takes about a "
        'minute at the start. Needs batch.shape "fixed" or "padded", and a zero_stage below 3. "auto": on GPUs, if '
        "these are set.",
    )
    deterministic: bool = Field(
        default=False,
        description="Compute the same bits each time on a GPU, which is slower. Without it a resumed run on GPUs "
        "equals an unbroken one only up to rounding.",
    )
    timeout_seconds: float = Field(
        default=600.0,
        gt=0,
        le=1e9,
        description="Seconds without progress after which a run ends and names the rank that it waited for.",
    )


class AnomalySection(Section):
    """What happens when the loss or the gradient norm of a step is NaN, infinite or far above those of recent steps.

    Such a step is skipped: it makes no update. After max_skips skipped steps in a row the run rolls back to its last
    good checkpoint and leaves out the data in between. After max_rollbacks it stops with exit code 1.
    """

    window: int = Field(
        default=100,
        gt=0,
        description="Number of recent steps that are the reference. Until there are that many, only NaN and "
        "infinite values count.",
    )
    loss_factor: float = Field(
        default=2.0,
        gt=1,
        description="A step is skipped if its loss is above this multiple of the median and, on a logarithmic scale, "
        "four times as far above it as recent values above the median are.",
    )
    norm_factor: float = Field(
        default=10.0, gt=1, description="The same for its gradient norm: the multiple of the median."
    )
    max_skips: int = Field(default=10, gt=0, description="Steps skipped in a row after which the run rolls back.")
    max_rollbacks: int = Field(default=3, ge=0, description="Rollbacks after which the run stops with exit code 1.")
    replica_check_every: int = Field(
        default=500,
        gt=0,
        description="Steps between two checks that all ranks hold the same weights; also checked before every save.",
    )


Elements = Annotated[int, Field(ge=0)]
"""A number of tensor elements, in keys of DeepSpeed."""


class ZeroTable(Section):
    """How DeepSpeed exchanges gradients and weights (ZeRO)."""

    reduce_bucket_size: int | None = Field(
        default=None, gt=0, description="Gradient elements that are reduced at a time."
    )
    allgather_bucket_size: Elements | None = Field(
        default=None, description="Weight elements that are gathered at a time after an update."
    )
    overlap_comm: bool | None = Field(default=None, description="Reduce gradients during the backward pass.")
    reduce_scatter: bool | None = Field(default=None, description="Reduce to the owner alone, not to all ranks.")
    allgather_partitions: bool | None = Field(default=None, description="Gather weights at once, not rank by rank.")
    contiguous_gradients: bool | None = Field(default=None, description="Copy gradients into one buffer.")
    sub_group_size: Elements | None = Field(default=None, description="Stage 3: elements updated at a time.")
    stage3_max_live_parameters: Elements | None = Field(
        default=None, description="Stage 3: most gathered elements at a time."
    )
    stage3_max_reuse_distance: Elements | None = Field(
        default=None, description="Stage 3: weights that are used again within as many elements stay gathered."
    )
    stage3_prefetch_bucket_size: Elements | None = Field(
        default=None, description="Stage 3: elements that are gathered before they are used."
    )
    stage3_param_persistence_threshold: Elements | None = Field(
        default=None, description="Stage 3: tensors with fewer elements stay whole on each rank."
    )
    stage3_model_persistence_threshold: Elements | None = Field(
        default=None, description="Stage 3: most elements that stay whole on each rank for this reason."
    )


class FilesTable(Section):
    """A monitor that writes files."""

    enabled: bool | None = Field(default=None, description="Whether the metrics are sent to it.")
    output_path: str | None = Field(default=None, description="Folder of the files.")
    job_name: str | None = Field(default=None, description="Name of the folder inside output_path.")


class WandbTable(Section):
    """Weights & Biases. The recipe is the config of its run. The key of the account is read from WANDB_API_KEY."""

    enabled: bool | None = Field(default=None, description="Whether the metrics are sent to it.")
    project: str | None = Field(default=None, description="Name of the project.")
    group: str | None = Field(default=None, description="Name of the group of runs.")
    team: str | None = Field(default=None, description="Name of the team.")


class CometTable(Section):
    """Comet. The key of the account is read from COMET_API_KEY."""

    enabled: bool | None = Field(default=None, description="Whether the metrics are sent to it.")
    project: str | None = Field(default=None, description="Name of the project.")
    workspace: str | None = Field(default=None, description="Name of the workspace.")
    experiment_name: str | None = Field(default=None, description="Name of the experiment.")
    experiment_key: str | None = Field(default=None, description="Key of an experiment to continue.")
    mode: str | None = Field(default=None, description='"get", "create" or "get_or_create" the experiment.')
    online: bool | None = Field(default=None, description="Whether to send the metrics at once.")
    samples_log_interval: int | None = Field(default=None, gt=0, description="Samples between two records.")


class DeepSpeedSection(Section):
    """What is passed on to DeepSpeed's configuration. The recipe's other sections decide the rest of it.

    These keys change neither what is trained nor what a checkpoint holds. Passwords and tokens have no key, so that a
    recipe can be shown to others: the monitors read them from the environment.
    """

    wall_clock_breakdown: bool | None = Field(default=None, description="Print the time of each part of a step.")
    memory_breakdown: bool | None = Field(default=None, description="Print the memory in use.")
    zero_optimization: ZeroTable | None = Field(default=None, description="How gradients and weights are exchanged.")
    tensorboard: FilesTable | None = Field(default=None, description="DeepSpeed's own TensorBoard monitor.")
    csv_monitor: FilesTable | None = Field(default=None, description="DeepSpeed's monitor that writes CSV files.")
    wandb: WandbTable | None = Field(default=None, description="Weights & Biases.")
    comet: CometTable | None = Field(default=None, description="Comet.")

    @property
    def settings(self) -> dict[str, Any]:
        """The keys that are set, in nested tables, as DeepSpeed takes them."""
        return self.model_dump(exclude_none=True)


class PhaseSection(Section):
    """One phase of a run, and what is different in it.

    Data, batches and masks of a phase are counted from its first step. Each phase ends with a checkpoint, from which
    the next one starts. Causal LM before masked LM, whose rate of masks falls:

    ```toml
    [run]
    max_steps = 100000

    [[phases]]
    steps = 25000
    objective = { kind = "clm" }

    [[phases]]
    steps = 75000
    masking = { prob = 0.3, final_prob = 0.15 }
    ```
    """

    steps: int = Field(gt=0, description="Number of steps. The steps of all phases must add up to run.max_steps.")
    model: dict[str, Any] = Field(
        default={},
        description="Keys of [model] that replace the run's in this phase. Only those that leave the weights as they "
        "are: rope_base, window_rope_base, window, global_every, and the two dropout probabilities.",
    )
    data: dict[str, Any] = Field(default={}, description="Keys of [data] that replace the run's in this phase.")
    masking: dict[str, Any] = Field(default={}, description="Keys of [masking] that replace the run's in this phase.")
    objective: dict[str, Any] = Field(
        default={}, description="Keys of [objective] that replace the run's in this phase."
    )
    optimizer: dict[str, Any] = Field(
        default={}, description="Keys of [optimizer] that replace the run's in this phase."
    )
    schedule: dict[str, Any] = Field(
        default={},
        description="Keys of [schedule] that replace the run's, for a schedule that is counted from the phase's first "
        "step. If empty, the run's schedule continues.",
    )
    batch: dict[str, Any] = Field(default={}, description="A complete [batch] for this phase. If empty, the run's.")


class Recipe(Section):
    """A whole run."""

    model: ModelSection = Field(description="The shape of the network; that of model.init_from if it is left out.")
    data: DataSection = Field(description="Where the rows come from.")
    masking: MaskingSection = Field(default=MaskingSection(), description="How tokens are masked as rows are read.")
    objective: ObjectiveSection = Field(default=ObjectiveSection(), description="What is predicted.")
    optimizer: OptimizerSection = Field(description="How the weights are updated.")
    schedule: ScheduleSection = Field(default=ScheduleSection(), description="The learning rate over the run.")
    batch: BatchSection = Field(description="How much one step computes, and in which pieces.")
    run: RunSection = Field(description="Where the run lies and how long it is.")
    evaluation: EvaluationSection = Field(
        default=EvaluationSection(), description="Measuring the model on held-out pairs."
    )
    checkpoint: CheckpointSection = Field(default=CheckpointSection(), description="Saving the state of the run.")
    engine: EngineSection = Field(default=EngineSection(), description="How DeepSpeed computes.")
    anomaly: AnomalySection = Field(
        default=AnomalySection(), description="What happens when the loss or the gradient is NaN or spikes."
    )
    phases: list[PhaseSection] = Field(default=[], description="Phases of the run, each with its own data and rates.")
    deepspeed: DeepSpeedSection = Field(
        default=DeepSpeedSection(), description="Passed on to DeepSpeed's configuration."
    )

    @property
    def predicted_share(self) -> float:
        """The share of tokens that are predicted, at the step at which it is largest."""
        if self.objective.kind == "clm":
            return 1.0
        return max(self.masking.prob, self.masking.final_prob or 0.0)
