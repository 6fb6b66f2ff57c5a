"""The tables of a recipe that decide what is learned: model, data, masking, objective, optimizer and schedule.

Section is the base class of all tables. The others of a recipe, and the whole recipe, are in schema.py.
"""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

from schemas.masking import Kind
from schemas.urls import normal, utf8_path


def _utf8(value: Any) -> Any:
    return utf8_path(value) if isinstance(value, str) else value


Place = Annotated[str, StringConstraints(min_length=1), AfterValidator(normal)]
"""A path or a URL."""

RecipePlace = Annotated[Place, BeforeValidator(_utf8)]
"""A Place whose absolute path is UTF-8, which is checked first, because pydantic takes no other text."""

Beta = Annotated[float, Field(ge=0, lt=1)]

BERT_REPLACEMENT = "80/10/10"
HELD_OUT_PROB = 0.15
"""Share of the tokens that evaluations hide, by BERT_REPLACEMENT, whatever [masking] says."""


def check_replacement(value: str) -> str:
    """Return "MASK/KEPT/RANDOM" without leading zeros. Raises ValueError unless three whole percentages sum to 100."""
    parts = value.split("/")
    if len(parts) != 3 or not all(part.isdigit() for part in parts) or sum(map(int, parts)) != 100:
        raise ValueError(f'expected three whole percentages that add up to 100, as in "{BERT_REPLACEMENT}"')
    return "/".join(str(int(part)) for part in parts)


Replacement = Annotated[str, AfterValidator(check_replacement)]

DRAWN_STARTS = ("initial_embeddings", "initial_attention", "initial_head")
"""Keys of [model] that replace drawn weights, unless they are "random"."""

START_KEYS = frozenset({"init_from", "tile_from", "initial_embedding_std", *DRAWN_STARTS})
"""Keys that affect only the weights of step 0. They may differ when a run resumes or is exported."""


class Section(BaseModel):
    """An immutable table that accepts no unknown keys and no infinite or NaN numbers.

    Every field of a section has a description. It is printed when the field's value is wrong, and docs/recipes.md is
    generated from it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for a number, which pydantic would take for 1 and 0."""
        kinds = _kinds_in(cls.model_fields[info.field_name or ""].annotation)
        values = value if isinstance(value, list) else [value]
        if kinds & {int, float} and bool not in kinds and any(isinstance(each, bool) for each in values):
            raise ValueError("expected a number")
        return value


def _kinds_in(annotation: Any) -> set[Any]:
    """Return the types that an annotation such as list[float] | Literal["auto"] names: float and str."""
    inner = get_args(annotation)
    if inner:
        return set().union(*map(_kinds_in, inner))
    return {annotation if isinstance(annotation, type) else type(annotation)}


class ModelSection(Section):
    """The shape of the network. Keys have the names of a Hugging Face config.json where one exists.

    A recipe without `family` and the four sizes after it takes them, and what else config.json says of the shape, from
    the folder `init_from`. Keys that it has, such as the two dropout probabilities, stay.
    """

    # An initial_* key has no effect if the family lacks those weights, such as a dense layer in the head.

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
        description="ModernBERT only: one layer in every N attends to all tokens, and the others have a window; 3 if "
        "unset.",
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
        description="EuroBERT only: whether the masked-LM head projects onto the vocabulary with the table of "
        "embeddings. If unset it does not; in all other families it does.",
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
        description="Number of tokens. The vocabulary of the pairs decides; if set, this must agree with it. With "
        "init_from it may be larger: the rows of embeddings of a folder that has spare ones.",
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
    initial_embeddings: Literal["random", "cooccurrence"] = Field(
        default="random",
        description='Token embeddings that a new run starts from. "cooccurrence": tokens that occur near the same '
        "tokens in the training text have similar ones (trainer/models/word_vectors.py), with the standard deviation "
        "initial_embedding_std.",
    )
    initial_embedding_std: float | None = Field(
        default=None,
        gt=0,
        le=10,
        description='With initial_embeddings "cooccurrence": the standard deviation of the embeddings; '
        "initializer_range if unset.",
    )
    initial_attention: Literal["random", "identity"] = Field(
        default="random",
        description='Attention of one layer that a new run starts from. "identity": it adds to each token the mean '
        "of the tokens that it attends to, from which the head predicts a word that occurs near them. In ALBERT all "
        "layers share this attention.",
    )
    initial_head: Literal["random", "identity"] = Field(
        default="random",
        description='Dense layer of the masked-LM head that a new run starts from. "identity": it passes on what the '
        "last layer computes, with a little of the random matrix.",
    )
    init_from: RecipePlace | None = Field(
        default=None,
        description="Hugging Face folder whose safetensors the run starts from, to continue a published model. Gives "
        "the shape, too, if the recipe names none.",
    )
    tile_from: RecipePlace | None = Field(
        default=None,
        description="Hugging Face folder of a smaller model of the same family and vocabulary. The run starts from "
        "tiles of its weights, divided so that a wider model computes what the smaller one does "
        "(trainer/models/tiling.py). Heads keep their size.",
    )


class DataSection(Section):
    """Where the rows come from: one folder of pairs or several, local or at URLs."""

    pairs: RecipePlace | list[RecipePlace] = Field(
        description="Folder written by `pairs`, or a list of folders to mix. Paths or URLs."
    )
    weights: list[float] | float | None = Field(
        default=None,
        description="Share of each folder of data.pairs in the mixture. If unset, each folder's size, so that "
        "all end their epochs together. A number instead of a list is the power of the sizes that counts: 0.7 as in "
        "multilingual BERT or 0.3 as in XLM-R (arXiv:1911.02116) for folders of a language each, 0 for equal shares.",
    )
    vocab: RecipePlace | None = Field(
        default=None,
        description="Vocabulary folder that the pairs must have been made with. The pairs carry a copy of their "
        "own, so this is only a check.",
    )
    max_length: int | None = Field(
        default=None,
        gt=0,
        description="Tokens in the longest row, for --describe before there are pairs. The pairs decide in training.",
    )
    statistics: RecipePlace | None = Field(
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
    """The learning rate rises linearly from 0 over the warm-up, then falls, and is final_lr after the last step."""

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
        description="The same as a share of the schedule's steps, rounded up. Only with warmup_steps = 0, and not with "
        "run.max_hours.",
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
