"""The tables that decide what is learned: model, data, masking, optimizer, schedule and batch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.masking import Kind
from trainer.config.section import Section

Beta = Annotated[float, Field(ge=0, lt=1)]


class ModelSection(Section):
    """The shape of the network. Keys have the names of a Hugging Face config.json where one exists."""

    family: Literal["bert", "roberta", "albert", "megatron-bert"] = Field(
        description='Architecture. "megatron-bert" normalizes before each sublayer (arXiv:1909.08053), "albert" shares '
        'weights between layers (arXiv:1909.11942), "roberta" has one segment and no pair head (arXiv:1907.11692).'
    )
    num_hidden_layers: int = Field(gt=0, description="Number of transformer layers.")
    hidden_size: int = Field(
        gt=0, description="Width of a token's vector in every layer. Must be a multiple of num_attention_heads."
    )
    num_attention_heads: int = Field(gt=0, description="Number of attention heads in each layer.")
    intermediate_size: int = Field(
        gt=0, description="Width inside each layer's feed-forward network, 4 * hidden_size in all published models."
    )
    max_position_embeddings: int = Field(
        default=512,
        gt=0,
        description="Maximum tokens in a row. RoBERTa's two reserved rows are added to it, so the config.json of an "
        "exported RoBERTa says 2 more.",
    )
    embedding_size: int | None = Field(
        default=None,
        gt=0,
        description="ALBERT only: width of the factorized token embeddings; 128 if unset, as in the paper.",
    )
    num_hidden_groups: int | None = Field(
        default=None,
        gt=0,
        description="ALBERT only: number of groups of layers, each with its own weights; 1 if unset, so that all "
        "layers share theirs. Must divide num_hidden_layers.",
    )
    vocab_size: int | None = Field(
        default=None,
        gt=0,
        description="Number of tokens. The vocabulary of the pairs decides; if set, this must agree with it.",
    )
    hidden_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="Dropout probability of the embeddings and of each sublayer's output."
    )
    attention_probs_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="Dropout probability of the attention weights."
    )
    initializer_range: float = Field(
        default=0.02,
        gt=0,
        le=10,
        description="Standard deviation of the initial weights of matrices; 0.02 in all published models.",
    )
    init_from: str | None = Field(
        default=None,
        description="Hugging Face folder whose safetensors the run starts from, to continue a published model.",
    )


class DataSection(Section):
    """Where the rows come from: one folder of pairs or several, local or at URLs."""

    pairs: str | list[str] = Field(description="Folder written by `pairs`, or a list of folders to mix. Paths or URLs.")
    weights: list[float] | None = Field(
        default=None,
        description="Share of each folder of data.pairs in the mixture. If unset, each folder's size, so that "
        "all end their epochs together.",
    )
    vocab: str | None = Field(
        default=None,
        description="Vocabulary folder that the pairs must have been made with. The pairs carry a copy of their "
        "own, so this is only a check.",
    )
    max_length: int | None = Field(
        default=None,
        gt=0,
        description="Tokens in the longest row, for --describe before there are pairs. The pairs decide in training.",
    )
    cache: str = Field(default="~/.cache/clozeline", description="Local folder for copies of remote shards.")
    cache_gigabytes: float = Field(
        default=50.0, gt=0, le=1e9, description="Maximum size of data.cache, in gigabytes (10^9 bytes)."
    )

    @property
    def folders(self) -> list[str]:
        """The folders of pairs, also when there is only one."""
        if isinstance(self.pairs, str):
            return [self.pairs]
        return self.pairs


class MaskingSection(Section):
    """How tokens are masked as rows are read, with new masks each epoch."""

    kind: Kind = Field(
        default="token",
        description='What is masked together: single tokens, whole words, "ngram" (1 to 3 words, arXiv:1909.11942) or '
        '"span" (1 to 10 words, SpanBERT, arXiv:1907.10529).',
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
    stored: bool = Field(
        default=False,
        description="Use the masks stored with the pairs (`pairs --static_masks K`), another of the K each epoch, "
        "instead of drawing them. All other masking keys must be left out.",
    )


class OptimizerSection(Section):
    """AdamW or LAMB with decoupled weight decay. Biases and layer norms are not decayed, as in BERT."""

    kind: Literal["adamw", "lamb"] = Field(
        default="adamw", description="AdamW (arXiv:1711.05101), or LAMB for large batches (arXiv:1904.00962)."
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
    """The learning rate rises linearly from 0 over warmup_steps and then falls to final_lr at run.max_steps."""

    kind: Literal["linear", "polynomial", "cosine", "wsd"] = Field(
        default="linear",
        description='Shape of the decay. "wsd" (warmup-stable-decay, arXiv:2404.06395) stays at the peak and decays '
        "over the last decay_steps.",
    )
    warmup_steps: int = Field(default=0, ge=0, description="Number of steps over which the learning rate rises.")
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
        description="Rows that a rank computes at once. Limited by memory; changes results by rounding only. Comes "
        'before micro_tokens = "auto".',
    )
    global_tokens: int | None = Field(default=None, gt=0, description="Tokens per step over all ranks.")
    micro_tokens: Annotated[int, Field(gt=0)] | Literal["auto"] | None = Field(
        default=None,
        description="Maximum tokens that a rank computes at once. Limited by memory; changes results by rounding only. "
        '"auto": the largest that fits into the GPU\'s memory, and 4,096 on a CPU; RUN/micro_batches.json records it.',
    )
    shape: Literal["exact", "fixed", "padded"] = Field(
        default="exact",
        description='Padding of a micro-batch. "exact": none, so that each has its own shape. "fixed": up to one shape '
        'for all, of a multiple of 64 tokens, at most micro_tokens, as engine.compile needs it. "padded": each row up '
        "to the longest, in addition to micro_tokens, for comparison with other trainers.",
    )

    @property
    def chooses_micro_batch(self) -> bool:
        """Whether the micro-batch is still to be chosen (trainer/micro_batches.py)."""
        return self.micro_tokens == "auto" and self.micro_batch is None

    @property
    def size(self) -> int:
        """Rows or tokens of a step, whichever the batch is counted in."""
        return self.global_tokens or self.global_batch or 0
