"""Initial weights: drawn from a seed, with the distributions of the published models, or computed from the text.

BERT, ALBERT (google-research/bert and albert) and ModernBERT draw matrices from a normal distribution truncated at two
standard deviations. RoBERTa, Megatron-BERT (fairseq, Megatron-LM) and the others use an untruncated one. Megatron-BERT
and ModernBERT divide the standard deviation of the matrices that add to the residual stream by sqrt(2 * layers), so
that the stream's variance does not grow with depth (arXiv:1909.08053). ELECTRA draws like BERT, except for two matrices
(families.py). Norms begin with weights of one. All biases are zero, except XLNet's attention biases, which are drawn.

A small masked LM spends its first thousands of steps on what can be counted in seconds: which words occur near each
other. The model.initial_* keys replace randomly drawn weights, one tensor at a time:

initial_embeddings = "cooccurrence"      words that occur near the same words have similar vectors (word_vectors.py)
initial_attention = "identity"           one layer adds to each token the mean of the tokens around it
initial_head = "identity"                the masked-LM head compares what it is given with the vectors of all words

Together they are a continuous bag of words (Mikolov et al., arXiv:1301.3781) whose vectors come from counts: the mean
of the words around a masked token predicts it. Training continues from there. Nothing else about the model changes.
docs/measurements.md shows what each part gains, and for how many steps the gain lasts.

Shape suffixes: V vocabulary, D hidden size, E embedding size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from schemas.randomness import key
from trainer.models.electra import ReplacedTokenModel
from trainer.models.families import encoder_shape
from trainer.models.pretraining import PretrainingModel
from trainer.models.shape import EncoderShape

if TYPE_CHECKING:
    from schemas.statistics import TokenStatistics
    from trainer.config.schema import Recipe
    from trainer.config.sections import ModelSection
    from trainer.models.word_vectors import WordVectors

Weights = Iterator[tuple[str, Tensor]]
"""The name and the float32 values of every parameter, in the order of the model."""

RESIDUAL_MATRICES = ("attention.out", "down")
"""Name endings of the matrices whose output is added to the residual stream."""

DRAWN_WEIGHTS = ("q", "k", "v", "o", "r", "r_w_bias", "r_r_bias", "r_s_bias", "seg_embed", "mask_emb")
"""XLNet's weights that are not in torch modules. All are drawn, biases included, as in zihangdai/xlnet, modeling.py."""

TOKENS = ("encoder.embeddings.token.weight", "mlm_head.decoder.weight")
"""The parameters that get the token vectors: the embeddings, and the projection of a head that is not tied."""

HEAD = "mlm_head.dense.weight"

IDENTITY_QUERY_SCALE = 0.5
"""The factor for queries and keys of the identity layer, so that it attends to all tokens nearly equally. Chosen by
hand; no other value was measured."""

RANDOM_IN_HEAD = 0.3
"""The factor for the drawn matrix of an identity head before the identity is added. Chosen by hand, too."""


@torch.no_grad()
def initialize(model: nn.Module, shape: EncoderShape, std: float, seed: int) -> None:
    """Fill in all weights, in place. They depend only on the seed, the shape and `std`."""
    drawn = drawn_weights(model, shape, std, seed)
    for (_, values), parameter in zip(drawn, model.parameters(), strict=True):
        parameter.copy_(values)


@torch.no_grad()
def drawn_weights(model: nn.Module, shape: EncoderShape, std: float, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the initial values of every parameter, in float32, in the order of the model.

    Only the model's names and shapes are read, so it may be on the meta device. A single generator draws all matrices,
    so the values also depend on the order in which they are drawn.
    """
    generator = torch.Generator().manual_seed(key(seed, "initial weights") >> 1)  # torch takes 63 bits

    for name, module in model.named_modules():
        for kind, parameter in module.named_parameters(recurse=False):
            is_matrix = isinstance(module, nn.Linear | nn.Embedding) and kind == "weight"
            if is_matrix or kind in DRAWN_WEIGHTS:
                values = torch.empty(parameter.shape)
                _draw(values, name, shape, std, generator)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm) and kind == "weight":
                values = torch.ones(parameter.shape)
            else:
                assert kind == "bias", f"no initial values are known for {name}.{kind}"
                values = torch.zeros(parameter.shape)
            yield f"{name}.{kind}", values


def _draw(values: Tensor, name: str, shape: EncoderShape, std: float, generator: torch.Generator) -> None:
    if shape.scaled_residuals and name.endswith(RESIDUAL_MATRICES):
        std = std / (2 * shape.num_hidden_layers) ** 0.5

    if name.endswith(shape.glorot):
        nn.init.xavier_uniform_(values, generator=generator)
    elif shape.truncated is not None:
        bound = shape.truncated * std
        nn.init.trunc_normal_(values, std=std, a=-bound, b=bound, generator=generator)
    else:
        nn.init.normal_(values, std=std, generator=generator)


# Weights that are computed from the training text, or the identity


def needs_statistics(model: ModelSection) -> bool:
    """Return whether a new run with this [model] needs statistics of its text."""
    return model.initial_embeddings == "cooccurrence"


def ignored_keys(model: ModelSection, shape: EncoderShape, sizes: Mapping[str, torch.Size]) -> dict[str, str]:
    """Return the keys initial_* of [model] that change nothing, each with the reason.

    sizes: of the model's parameters by name.
    """
    no_weights = f"{model.family} has no such weights"
    reasons: dict[str, str] = {}
    if not any(name.endswith("attention.qkv.weight") for name in sizes):
        reasons["initial_attention"] = no_weights
    elif not values_are_whole(shape):
        reasons["initial_attention"] = f"the attention heads of {model.family} share keys and values"

    if HEAD not in sizes:
        reasons["initial_head"] = no_weights
    elif sizes[HEAD][0] != sizes[HEAD][1]:
        reasons["initial_head"] = f"the matrix in the head of {model.family} is not square"

    return {key: reason for key, reason in reasons.items() if getattr(model, key) != "random"}


def values_are_whole(shape: EncoderShape) -> bool:
    """Return whether no attention heads share keys and values. The identity needs a square value matrix."""
    return shape.num_key_value_heads == shape.num_attention_heads


def with_starting_weights(drawn: Weights, shape: EncoderShape, recipe: Recipe, text: TokenStatistics | None) -> Weights:
    """Return an iterator over the name and values of all weights of step 0: those drawn, unless [model] replaces them.

    The replacements also depend on run.seed. text: None only if the recipe does not need counts (`needs_statistics`).
    Keys for weights that the family does not have have no effect. Drawn values may be modified in place.

    The counts are read and factorized right away, so this raises DataError and StorageError for files that cannot be
    read, not the iterator.
    """
    model = recipe.model
    std = model.initial_embedding_std or model.initializer_range
    vectors: WordVectors | None = None
    if model.initial_embeddings == "cooccurrence":
        from trainer.models.word_vectors import word_vectors  # imports scipy, which few runs need

        assert text is not None
        triples = text.cooccurrences()
        vectors = word_vectors(triples, text.context_weights_V, shape.embedding_size, recipe.run.seed)

    makes_identity = model.initial_attention == "identity" and values_are_whole(shape)
    attention = f"layers.{identity_layer(shape)}.attention."

    def replaced(name: str, values: Tensor) -> Tensor:
        if vectors is not None and name in TOKENS:
            # A token without a vector, such as [MASK], keeps the embedding that was drawn.
            has_vector_V = vectors.has_vector_V
            values[has_vector_V] = vectors.vectors_VE[has_vector_V] * std
        elif model.initial_head == "identity" and name == HEAD:
            add_identity_to_head(values)
        elif makes_identity and attention in name:
            make_identity(name, values)
        return values

    return ((name, replaced(name, values)) for name, values in drawn)


def identity_layer(shape: EncoderShape) -> int:
    """Return the layer that `initial_attention` changes: the first one with a window, or layer 0 if none has one.

    A window is better, because the words nearest to a token say the most about it.
    """
    windowed = [layer for layer in range(shape.num_hidden_layers) if shape.window_of(layer) is not None]
    return windowed[0] if windowed else 0


def add_identity_to_head(values: Tensor) -> None:
    """Shrink the drawn matrix of a masked-LM head in place, and add the identity. One that is not square stays."""
    if values.shape[0] == values.shape[1]:
        values *= RANDOM_IN_HEAD
        values += torch.eye(len(values))


def make_identity(name: str, values: Tensor) -> None:
    """Change the drawn weights of attention in place, so that it passes on what it attends to. Biases are not changed.

    The identity is added to the value matrix and the output matrix. Queries and keys are made small.
    """
    if name.endswith("qkv.weight"):
        query_DD, key_DD, value_DD = values.chunk(3)
        query_DD *= IDENTITY_QUERY_SCALE
        key_DD *= IDENTITY_QUERY_SCALE
        value_DD += torch.eye(len(value_DD))
    elif name.endswith("out.weight"):
        values += torch.eye(len(values))


# ---- Whole models ----


def empty_model(model: ModelSection, vocabulary_size: int, mask_id: int | None = None) -> PretrainingModel:
    """Return a model without weights, on the meta device. mask_id: the id of [MASK], which some families need."""
    with torch.device("meta"):
        return model_of(encoder_shape(model, vocabulary_size, mask_id))


def model_of(shape: EncoderShape) -> PretrainingModel:
    """Return the model that has this shape, with meaningless weights."""
    return ReplacedTokenModel(shape) if shape.replaced_tokens else PretrainingModel(shape)


def build_model(model: ModelSection, vocabulary_size: int, seed: int, mask_id: int | None = None) -> PretrainingModel:
    """Return a model on the CPU with initial weights that depend on the seed alone."""
    built = empty_model(model, vocabulary_size, mask_id).to_empty(device="cpu")
    initialize(built, built.shape, model.initializer_range, seed)
    return built
