"""Starting weights computed from the training text before the first step: its word frequencies and co-occurrences.

A small masked LM spends its first thousands of steps on what can be counted in seconds: how frequent each word is, and
which words occur near each other. The model.initial_* keys replace randomly drawn weights, one tensor at a time:

initial_output_bias = "unigram"          the head predicts word frequencies
initial_embeddings = "cooccurrence"      words that occur near the same words have similar vectors (word_vectors.py)
initial_positions = "sinusoidal"         tokens at equal distances have equally similar positions
initial_attention = "identity"           one layer adds to each token the mean of the tokens around it
initial_head = "identity"                the masked-LM head compares what it is given with the vectors of all words

Together they are a continuous bag of words (Mikolov et al., arXiv:1301.3781) whose vectors come from counts: the mean
of the words around a masked token predicts it. Training continues from there. Nothing else about the model changes.
docs/measurements.md shows what each part gains, and for how many steps the gain lasts.

Shape suffixes: V vocabulary, D hidden size, E embedding size, P positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from schemas.statistics import TokenStatistics
from trainer.models.shape import EncoderShape

if TYPE_CHECKING:
    from trainer.config.schema import Recipe
    from trainer.config.sections import ModelSection
    from trainer.models.word_vectors import WordVectors

Weights = Iterator[tuple[str, Tensor]]
"""The name and the float32 values of every parameter, in the order of the model."""

TOKENS = ("encoder.embeddings.token.weight", "mlm_head.decoder.weight")
"""The parameters that get the token vectors: the embeddings, and the projection of a head that is not tied."""

POSITIONS = "encoder.embeddings.position.weight"
OUTPUT_BIAS = "mlm_head.bias"
HEAD = "mlm_head.dense.weight"

IDENTITY_QUERY_SCALE = 0.5
"""The factor for queries and keys of the identity layer, so that it attends to all tokens nearly equally. Chosen by
hand; no other value was measured."""

RANDOM_IN_HEAD = 0.3
"""The factor for the drawn matrix of an identity head before the identity is added. Chosen by hand, too."""

LONGEST_WAVE = 10_000
"""The longest wavelength of sinusoidal positions is 2 pi times as many tokens (Vaswani et al., arXiv:1706.03762)."""


@dataclass(frozen=True)
class TextCounts:
    """Counts of the training text. is_special_V: (V,) bool, True for special tokens, which are never predicted."""

    statistics: TokenStatistics
    is_special_V: NDArray[np.bool_]


def needs_statistics(model: ModelSection) -> bool:
    """Return whether a new run with this [model] needs statistics of its text."""
    return model.initial_embeddings == "cooccurrence" or model.initial_output_bias == "unigram"


def ignored_keys(model: ModelSection, shape: EncoderShape, sizes: Mapping[str, torch.Size]) -> dict[str, str]:
    """Return the keys initial_* of [model] that change nothing, each with the reason.

    sizes: of the model's parameters by name.
    """
    no_weights = f"{model.family} has no such weights"
    reasons: dict[str, str] = {}
    if OUTPUT_BIAS not in sizes:
        reasons["initial_output_bias"] = no_weights
    if POSITIONS not in sizes:
        reasons["initial_positions"] = no_weights

    if not any(name.endswith("attention.qkv.weight") for name in sizes):
        reasons["initial_attention"] = no_weights
    elif not values_are_whole(shape):
        reasons["initial_attention"] = f"the attention heads of {model.family} share keys and values"

    if HEAD not in sizes:
        reasons["initial_head"] = no_weights
    elif sizes[HEAD][0] != sizes[HEAD][1]:
        reasons["initial_head"] = f"the matrix in the head of {model.family} is not square"

    unchanged = ("zero", "random")
    return {key: reason for key, reason in reasons.items() if getattr(model, key) not in unchanged}


def values_are_whole(shape: EncoderShape) -> bool:
    """Return whether no attention heads share keys and values. The identity needs a square value matrix."""
    return shape.num_key_value_heads == shape.num_attention_heads


def with_starting_weights(drawn: Weights, shape: EncoderShape, recipe: Recipe, text: TextCounts | None) -> Weights:
    """Return an iterator over the name and values of all weights of step 0: those drawn, unless [model] replaces them.

    The replacements also depend on run.seed. text: None only if the recipe does not need counts (`needs_statistics`).

    The counts are read and factorized right away, so this raises DataError and StorageError for files that cannot be
    read, not the iterator.
    """
    start = StartingWeights(shape, recipe, text)
    return ((name, start.of(name, values)) for name, values in drawn)


class StartingWeights:
    """Replaces drawn weights as [model] says. Keys for weights that the family does not have have no effect."""

    def __init__(self, shape: EncoderShape, recipe: Recipe, text: TextCounts | None):
        model = recipe.model
        self.model = model
        self.shape = shape
        self.std = model.initial_embedding_std or model.initializer_range

        self.vectors: WordVectors | None = None
        if model.initial_embeddings == "cooccurrence":
            from trainer.models.word_vectors import word_vectors  # imports scipy, which few runs need

            assert text is not None
            triples = text.statistics.cooccurrences()
            context_weights_V = text.statistics.context_weights_V
            self.vectors = word_vectors(triples, context_weights_V, shape.embedding_size, recipe.run.seed)

        self.bias_V: Tensor | None = None
        if model.initial_output_bias == "unigram":
            assert text is not None
            self.bias_V = log_frequencies(text)

        self.attention: str | None = None
        if model.initial_attention == "identity" and values_are_whole(shape):
            self.attention = f"layers.{identity_layer(shape)}.attention."

    def of(self, name: str, values: Tensor) -> Tensor:
        """Return the values of the parameter `name`. values: those drawn for it, which may be modified in place."""
        if self.vectors is not None and name in TOKENS:
            # A token without a vector, such as [MASK], keeps the embedding that was drawn.
            has_vector_V = self.vectors.has_vector_V
            values[has_vector_V] = self.vectors.vectors_VE[has_vector_V] * self.std
        elif self.bias_V is not None and name == OUTPUT_BIAS:
            return self.bias_V
        elif self.model.initial_positions == "sinusoidal" and name == POSITIONS:
            values[self.shape.first_position :] = sinusoids(self.shape) * self.model.initializer_range
        elif self.model.initial_head == "identity" and name == HEAD:
            add_identity_to_head(values)
        elif self.attention is not None and self.attention in name:
            make_identity(name, values)
        return values


def identity_layer(shape: EncoderShape) -> int:
    """Return the layer that `initial_attention` changes: the first one with a window, or layer 0 if none has one.

    A window is better, because the words nearest to a token say the most about it.
    """
    windowed = [layer for layer in range(shape.num_hidden_layers) if shape.window_of(layer) is not None]
    return windowed[0] if windowed else 0


def log_frequencies(text: TextCounts) -> Tensor:
    """Return (V,) float32: the natural logarithm of each token's share of all labels, with 1 added to every count.

    Special tokens are never labels, so their counts are replaced by 0. [UNK] may be frequent.
    """
    counts_V = text.statistics.unigrams_V.astype(np.float64)
    counts_V[text.is_special_V] = 0
    smoothed_V = torch.from_numpy(counts_V + 1)
    return (smoothed_V / smoothed_V.sum()).log().float()


def add_identity_to_head(values: Tensor) -> None:
    """Shrink the drawn matrix of a masked-LM head in place, and add the identity. One that is not square stays."""
    if values.shape[0] == values.shape[1]:
        values *= RANDOM_IN_HEAD
        values += torch.eye(len(values))


def sinusoids(shape: EncoderShape) -> Tensor:
    """Return (P, E) float32: for each position the sines, then the cosines, of wavelengths that grow geometrically."""
    width = shape.embedding_size
    positions_P = torch.arange(shape.max_position_embeddings, dtype=torch.float64)
    frequencies = LONGEST_WAVE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)

    angles = torch.outer(positions_P, frequencies)
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width].float()


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
