"""The tables that determine what a run learns, and how: data, masking, objective, optimizer, schedule and batch."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from schemas.masking import Kind
from trainer.config.section import Place, Section

Beta = Annotated[float, Field(ge=0, lt=1)]

BERT_REPLACEMENT = "80/10/10"


def check_replacement(value: str) -> str:
    """Return "MASK/KEPT/RANDOM" without leading zeros. Raises ValueError unless three whole percentages sum to 100."""
    parts = value.split("/")
    if len(parts) != 3 or not all(part.isdigit() for part in parts) or sum(map(int, parts)) != 100:
        raise ValueError(f'expected three whole percentages that add up to 100, as in "{BERT_REPLACEMENT}"')
    return "/".join(str(int(part)) for part in parts)


Replacement = Annotated[str, AfterValidator(check_replacement)]


class DataSection(Section):
    """Where the rows come from: one folder of pairs or several, local or at URLs."""

    pairs: Place | list[Place] = Field(
        description="Folder written by `pairs`, or a list of folders to mix. Paths or URLs."
    )
    weights: list[float] | None = Field(
        default=None,
        description="Share of each folder of data.pairs in the mixture. If unset, each folder's size, so that "
        "all end their epochs together.",
    )
    vocab: Place | None = Field(
        default=None,
        description="Vocabulary folder that the pairs must have been made with. The pairs carry a copy of their "
        "own, so this is only a check.",
    )
    max_length: int | None = Field(
        default=None,
        gt=0,
        description="Tokens in the longest row, for --describe before there are pairs. The pairs decide in training.",
    )
    statistics: Place | None = Field(
        default=None,
        description="Folder written by `statistics`: how often the tokens of these pairs occur, and near which others. "
        "For model.initial_*, which otherwise count some of the pairs when the run begins.",
    )
    cache: str = Field(default="~/.cache/clozeline", description="Local folder for copies of remote shards.")
    cache_gigabytes: float = Field(
        default=50.0, gt=0, le=1e9, description="Maximum size of data.cache, in gigabytes (10^9 bytes)."
    )

    @property
    def folders(self) -> list[str]:
        """The folders of pairs as a list, even if there is only one."""
        if isinstance(self.pairs, str):
            return [self.pairs]
        return self.pairs


class MaskingSection(Section):
    """How tokens are masked as rows are read, with new masks each epoch."""

    kind: Kind = Field(
        default="token",
        description='What is masked together: single tokens, whole words, "ngram" (1 to 3 words, arXiv:1909.11942) or '
        '"span" (1 to 10 words, SpanBERT, arXiv:1907.10529). XLNet predicts these without masking them, and '
        'its "ngram" is 1 to 5 words.',
    )
    prob: float = Field(
        default=0.15, gt=0, lt=1, description="Fraction of a row's tokens that are predicted; 0.15 in BERT."
    )
    final_prob: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Fraction at the end of the run, to which masking.prob changes linearly. If unset, it is constant.",
    )
    max_predictions: int | None = Field(
        default=None,
        gt=0,
        description="Maximum masked tokens per row, as max_predictions_per_seq in google-research/bert. If unset, "
        "there is no maximum.",
    )
    replacement: Replacement = Field(
        default=BERT_REPLACEMENT,
        description="What the model sees in place of predicted tokens, in percent: [MASK], the token itself, a random "
        'one. "80/10/10" as in BERT; "100/0/0" shows [MASK] everywhere, as EuroBERT and NeoBERT do.',
    )
    stored: bool = Field(
        default=False,
        description="Use the masks stored with the pairs (`pairs --static_masks K`), another of the K each epoch, "
        "instead of drawing them. All other masking keys must be left out.",
    )


class ObjectiveSection(Section):
    """What the model learns to predict."""

    kind: Literal["mlm", "clm"] = Field(
        default="mlm",
        description='"mlm": masked tokens, from all others (arXiv:1810.04805). "clm": each next token, from those '
        "before it; a first phase of it can make the masked LM after it better (arXiv:2507.00994). Pair labels are "
        "not predicted in it, and [masking] has no effect.",
    )


class OptimizerSection(Section):
    """How gradients become updates, with decoupled weight decay. Biases and layer norms are not decayed, as in BERT."""

    kind: Literal["adamw", "stable_adamw", "lamb"] = Field(
        default="adamw",
        description='AdamW (arXiv:1711.05101); "stable_adamw", which clips each tensor\'s update (arXiv:2304.13013, '
        'ModernBERT\'s); or "lamb" for large batches (arXiv:1904.00962). Stage 3 is for "adamw" alone.',
    )
    lr: float = Field(gt=0, description="Peak learning rate, reached at the end of warm-up.")
    betas: tuple[Beta, Beta] = Field(
        default=(0.9, 0.999), description="Decay rates of the gradient's first and second moments."
    )
    eps: float = Field(default=1e-6, gt=0, description="Added to the root of the second moment; 1e-6 in BERT.")
    weight_decay: float = Field(
        default=0.01, ge=0, description="Decoupled weight decay per update, multiplied by the learning rate."
    )
    clip: float = Field(
        default=1.0,
        ge=0,
        description="Maximum global norm of the gradient; larger ones are scaled down. 0: no limit.",
    )


class ScheduleSection(Section):
    """The learning rate rises linearly from 0 over the warm-up and then falls to final_lr at run.max_steps."""

    kind: Literal["linear", "polynomial", "cosine", "wsd"] = Field(
        default="linear",
        description='Shape of the decay. "wsd" (warmup-stable-decay, arXiv:2404.06395) stays at the peak and decays '
        "over the last decay_steps.",
    )
    warmup_steps: int = Field(default=0, ge=0, description="Number of steps over which the learning rate rises.")
    warmup_ratio: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="The same as a share of the schedule's steps, rounded up. For runs whose length is not known "
        "beforehand (run.max_hours). Only with warmup_steps = 0.",
    )
    final_lr: float = Field(default=0.0, ge=0, description="Learning rate at the end of the schedule.")
    power: float = Field(
        default=1.0, gt=0, description="Polynomial only: exponent of the decay; 0.5 in NVIDIA's BERT with LAMB."
    )
    decay_steps: int | None = Field(
        default=None, gt=0, description="wsd only, and required there: number of steps in which the rate falls."
    )
    decay_from: Literal["warmup", "start"] = Field(
        default="warmup",
        description='Where the decay is counted from: the end of warm-up, as in fairseq, or the first step ("start"), '
        "as in Google's and NVIDIA's BERT, where the rate drops when warm-up ends.",
    )

    def warmup_of(self, max_steps: int) -> int:
        """Return the number of warm-up steps in a schedule of `max_steps` steps."""
        if not self.warmup_ratio:
            return self.warmup_steps

        # Rounded up, as in transformers' TrainingArguments. But first 0.07 * 100 = 7.000000000000001 must become 7.
        return ceil(round(self.warmup_ratio * max_steps, 6))


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
