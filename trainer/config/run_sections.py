"""The tables that decide how a run proceeds: run, evaluation, checkpoint, engine and anomaly."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from schemas import storage
from schemas.urls import normal
from trainer.config.section import Place, Section


class RunSection(Section):
    """Where a run lies, how long it is, and the seed of everything random in it."""

    output: Place = Field(
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
    max_hours: float | None = Field(
        default=None,
        gt=0,
        description="Length of the run in hours from the start of the command; after a resume, what earlier commands "
        "trained counts as well. max_steps is then only an upper bound. When the run begins, a rehearsal measures the "
        "speed of training, for up to about 40 seconds or for three steps if they take longer, and how long one whole "
        "evaluation and one checkpoint take. The number of steps that fits is then fixed as max_steps, and again if "
        "the first steps of a start are much faster or slower. Cannot be combined with phases or a batch ramp.",
    )
    stop_at: int | None = Field(
        default=None,
        gt=0,
        description="Step after which the run ends early. The schedule does not change, so the run can be continued.",
    )
    log_every: int = Field(
        default=10,
        gt=0,
        description="Steps between two lines of metrics.jsonl. Each holds means since the line before.",
    )

    @property
    def folder(self) -> str:
        """The local folder in which the run works: `output` if that is local, otherwise a folder inside `local`."""
        if "://" not in self.output:
            return self.output
        # The hash of the whole URL distinguishes runs of the same name in different buckets.
        url = self.output.rstrip("/")
        url_hash = storage.sha256(url.encode())[:12]
        return str(Path(normal(self.local)) / f"{Path(url).name}-{url_hash}")


class EvaluationSection(Section):
    """Measuring the model on held-out pairs during the run. The checkpoint with the lowest loss is never pruned."""

    pairs: Place | None = Field(
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
        description="What ranks partition instead of replicating (ZeRO, arXiv:1910.02054). 0: nothing. 1: optimizer "
        "state. 2: gradients too. 3: weights too.",
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
