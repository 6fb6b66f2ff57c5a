"""The tables that decide what is learned: model, data, masking, objective, optimizer, schedule and batch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from schemas.masking import Kind
from trainer.config.section import Section

Beta = Annotated[float, Field(ge=0, lt=1)]

BERT_REPLACEMENT = "80/10/10"


def check_replacement(value: str) -> str:
    """Return "MASK/KEPT/RANDOM", three whole percentages. Raises ValueError unless they add up to 100."""
    parts = value.split("/")
    if len(parts) != 3 or not all(part.isdigit() for part in parts) or sum(map(int, parts)) != 100:
        raise ValueError(f'expected three whole percentages that add up to 100, as in "{BERT_REPLACEMENT}"')
    return "/".join(str(int(part)) for part in parts)


Replacement = Annotated[str, AfterValidator(check_replacement)]


class ModelSection(Section):
    """The shape of the network. Keys have the names of a Hugging Face config.json where one exists."""

    family: Literal[
        "bert",
        "roberta",
        "albert",
        "megatron-bert",
        "modernbert",
        "eurobert",
        "esm",
        "nomic_bert",
        "gte",
        "electra",
        "xlnet",
    ] = Field(
        description='Architecture. "megatron-bert" normalizes before each sublayer (arXiv:1909.08053), "albert" shares '
        'weights between layers (arXiv:1909.11942), "roberta" has one segment and no pair head (arXiv:1907.11692). '
        '"modernbert" (arXiv:2412.13663), "eurobert" (arXiv:2503.05500), "esm" (ESM-2), "nomic_bert" '
        '(arXiv:2402.01613) and "gte" (arXiv:2407.19669) rotate queries and keys instead of adding position vectors. '
        '"electra" (arXiv:2003.10555) detects tokens that a small masked LM beside it replaced. "xlnet" '
        "(arXiv:1906.08237) predicts tokens in a random order, each from those before it, and masks nothing."
    )
    num_hidden_layers: int = Field(gt=0, description="Number of transformer layers.")
    hidden_size: int = Field(
        gt=0, description="Width of a token's vector in every layer. Must be a multiple of num_attention_heads."
    )
    num_attention_heads: int = Field(gt=0, description="Number of attention heads in each layer.")
    intermediate_size: int = Field(
        gt=0, description="Width inside each layer's feed-forward network; 4 * hidden_size in BERT."
    )
    max_position_embeddings: int = Field(
        default=512,
        gt=0,
        description="Maximum tokens in a row. RoBERTa's two reserved rows are added to it, so the config.json of an "
        "exported RoBERTa says 2 more.",
    )
    num_key_value_heads: int | None = Field(
        default=None,
        gt=0,
        description="EuroBERT only: heads of keys and values, each shared by equally many heads of queries. If unset, "
        "num_attention_heads: none is shared.",
    )
    rope_base: float | None = Field(
        default=None,
        gt=1,
        description="Families with rotations (RoPE): the base of their frequencies. Longer rows need a larger one. If "
        "unset, the family's: 160,000 in modernbert and gte, 250,000 in eurobert, 10,000 in esm, 1,000 in nomic_bert.",
    )
    window_rope_base: float | None = Field(
        default=None, gt=1, description="ModernBERT only: the same in layers with a window; 10,000 if unset."
    )
    window: int | None = Field(
        default=None,
        ge=0,
        description="ModernBERT only: how many tokens a token attends to in layers with a window, half of them on each "
        "side; 128 if unset. 0: all.",
    )
    global_every: int | None = Field(
        default=None,
        gt=0,
        description="ModernBERT only: of so many layers the first attends to all tokens, the others have a window; 3 "
        "if unset.",
    )
    norm_eps: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Added to the variance by norms. If unset, the family's: 1e-5 in roberta, modernbert, eurobert and "
        "esm, otherwise 1e-12.",
    )
    tied: bool | None = Field(
        default=None,
        description="Whether the masked-LM head projects onto the vocabulary with the table of embeddings. If unset, "
        "only eurobert has a matrix of its own.",
    )
    sharing: Literal["all", "attention", "feed_forward", "none"] | None = Field(
        default=None,
        description='ALBERT only: what the layers of a group share. "all" if unset, as in the published models; the '
        "others are those of the paper's table 4.",
    )
    embedding_size: int | None = Field(
        default=None,
        gt=0,
        description="ALBERT and ELECTRA only: width of the embeddings, which a matrix projects to hidden_size. If "
        "unset, 128 in albert, as in the paper, and hidden_size in electra.",
    )
    num_hidden_groups: int | None = Field(
        default=None,
        gt=0,
        description="ALBERT only: number of groups of layers, each with its own weights; 1 if unset, so that all "
        "layers share theirs. Must divide num_hidden_layers.",
    )
    generator_size: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="ELECTRA only: width, heads and feed-forward width of the generator, as a fraction of the "
        "discriminator's; 0.25 if unset. It has as many layers.",
    )
    discriminator_weight: float | None = Field(
        default=None,
        gt=0,
        description="ELECTRA only: what the discriminator's loss is multiplied by before the generator's is added; 50 "
        "if unset.",
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
    tile_from: str | None = Field(
        default=None,
        description="Hugging Face folder of a smaller model of the same family and vocabulary. The run starts from "
        "tiles of its weights, divided so that a wider model computes what the smaller one does "
        "(trainer/models/tiling.py). Heads keep their size.",
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

    kind: Literal["adamw", "stable_adamw", "lamb", "muon"] = Field(
        default="adamw",
        description='AdamW (arXiv:1711.05101); "stable_adamw", which clips each tensor\'s update (arXiv:2304.13013, '
        'ModernBERT\'s); "lamb" for large batches (arXiv:1904.00962); or "muon", which orthogonalizes the updates of '
        "the layers' matrices and leaves embeddings, heads, norms and biases to AdamW, at AdamW's learning rates "
        "(arXiv:2502.16982). The last three need engine.zero_stage 0, 1 or 2.",
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
    muon_momentum: Beta | None = Field(
        default=None, description="Muon only: decay rate of the momentum, which is Nesterov's; 0.95 if unset."
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
        """Whether the micro-batch is still to be chosen (trainer/micro_batches.py)."""
        return self.micro_tokens == "auto" and self.micro_batch is None

    @property
    def size(self) -> int:
        """Rows or tokens of a step, whichever the batch is counted in."""
        return self.global_tokens or self.global_batch or 0
