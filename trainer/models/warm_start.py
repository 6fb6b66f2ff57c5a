"""Initializes a model with published weights: those of a Hugging Face folder, checked before anything is changed.

The encoder must be complete; a head that the folder lacks keeps its initial weights. Folders of a bare encoder
(BertModel), and old ones whose norms have a gamma and a beta, load as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from schemas.errors import DataError, UsageError
from schemas.vocabulary import Vocabulary
from trainer.models.hf_convert import WEIGHT_NAMES, from_hf, hf_config, hf_names
from trainer.models.hf_files import read_config, read_tensors, read_tokens
from trainer.models.pretraining import PretrainingModel

HEADS = ("encoder.pooler.", "mlm_head.", "pair_head.")
"""Prefixes of our tensors that a folder may lack."""

UNCHECKED_KEYS = {
    "architectures",
    "vocab_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
}
"""Keys of config.json that do not change what the weights mean, or that are checked in another way."""

REQUIRED_VALUES = {"position_embedding_type": "absolute", "is_decoder": False}
"""Keys that our exports leave out, with the only values that our models can compute."""

OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias", ".decoder.bias": ".bias"}
"""Ends of tensor names in old releases, and what they are called now."""

BARE_PARTS = ("embeddings", "encoder", "pooler")
"""What names begin with in a folder of a bare encoder; elsewhere they begin with the base, as `bert.`."""

MAX_FAULTS_SHOWN = 5


@dataclass(frozen=True)
class PublishedWeights:
    """The tensors of a folder, under today's names, and the family that they are to fill."""

    folder: str
    family: str
    tensors: dict[str, Tensor]


def warm_start(model: PretrainingModel, folder: str, vocabulary: Vocabulary) -> list[str]:
    """Fill a model with a folder's weights. Returns the heads that the folder lacks, which stay as they are.

    Raises UsageError if the folder is of another architecture or holds no safetensors, and DataError if a tensor is
    missing or has a wrong shape, or if the folder's vocabulary is not `vocabulary`. The model is then unchanged.
    """
    config = read_config(folder)
    check_config(config, model, vocabulary, folder)
    check_published_vocabulary(config, vocabulary, folder)

    family = model.shape.family
    tensors = with_current_names(read_tensors(folder), WEIGHT_NAMES[family].base)
    published = PublishedWeights(folder, family, tensors)
    check_tied(published)

    absent_heads = tuple(head for head in HEADS if not any(name in tensors for name in names_in(head, model)))
    parameters = {}
    for name, parameter in model.named_parameters():
        if not name.startswith(absent_heads):
            parameters[name] = parameter
    check_tensors(published, parameters)

    with torch.no_grad():
        for name, weight in from_hf(tensors, parameters, family).items():
            parameters[name].copy_(weight)

    # A head that our family does not have is not missed.
    return [head.strip(".") for head in absent_heads if names_in(head, model)]


def names_in(head: str, model: PretrainingModel) -> list[str]:
    """Return transformers' names of a head's tensors; none if the model has no such head."""
    names = []
    for ours, _ in model.named_parameters():
        if ours.startswith(head):
            names += hf_names(ours, model.shape.family)
    return names


def with_current_names(tensors: dict[str, Tensor], base: str) -> dict[str, Tensor]:
    """Return the tensors of an old release or of a bare encoder under the names of the family's class of today."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        current_name = name
        for old, new in OLD_ENDINGS.items():
            if current_name.endswith(old):
                current_name = current_name.removesuffix(old) + new

        if current_name.split(".")[0] in BARE_PARTS:
            current_name = f"{base}.{current_name}"
        renamed[current_name] = tensor
    return renamed


def check_config(config: dict[str, Any], model: PretrainingModel, vocabulary: Vocabulary, folder: str) -> None:
    """Raise UsageError with every difference between a folder's config.json and what the recipe would export."""
    ours = hf_config(model.shape, vocabulary) | REQUIRED_VALUES
    differences = []
    for key, value in ours.items():
        if key in config and key not in UNCHECKED_KEYS and config[key] != value:
            differences.append(f"{key} is {config[key]!r}, the recipe makes it {value!r}")

    if differences:
        raise UsageError(
            f"model.init_from {folder} is not the recipe's model: {'; '.join(differences)}. "
            "Change [model] to fit the folder, or give another folder."
        )


def check_published_vocabulary(config: dict[str, Any], vocabulary: Vocabulary, folder: str) -> None:
    """Raise DataError unless the folder's token ids mean what the pairs' ids mean."""
    remedy = "Build the pairs with the folder's vocabulary, or give a folder that was trained with theirs."
    size = config.get("vocab_size", vocabulary.size)
    if size != vocabulary.size:
        raise DataError(
            f"model.init_from {folder} has a vocabulary of {size} tokens, the pairs of {vocabulary.size}. {remedy}"
        )

    tokens = read_tokens(folder) or ()
    for i, (theirs, ours) in enumerate(zip(tokens, vocabulary.tokens, strict=False)):
        if theirs != ours:
            raise DataError(
                f"model.init_from {folder} has another vocabulary than the pairs: token {i} is {theirs!r} there and "
                f"{ours!r} here. {remedy}"
            )


def check_tied(published: PublishedWeights) -> None:
    """Raise DataError if the folder projects onto the vocabulary with another matrix than its embeddings."""
    outside = WEIGHT_NAMES[published.family].outside
    decoder = published.tensors.get(outside["mlm_head"] + ".decoder.weight")
    embeddings = published.tensors.get(outside["encoder.embeddings.token"] + ".weight")
    if decoder is None or embeddings is None:
        return

    if not torch.equal(decoder, embeddings):
        raise DataError(
            f"model.init_from {published.folder} has a decoder that differs from its token embeddings; here the two "
            "are one matrix. Give a folder with tie_word_embeddings."
        )


def check_tensors(published: PublishedWeights, parameters: dict[str, nn.Parameter]) -> None:
    """Raise DataError with every tensor that is missing, has another shape than ours, or holds NaN or infinity."""
    faults = []
    for name, parameter in parameters.items():
        # Query, key and value are three tensors there: each has a third of our rows.
        parts = hf_names(name, published.family)
        rows, *rest = parameter.shape
        shape = [rows // len(parts), *rest]
        for part in parts:
            fault = _fault_of(published.tensors.get(part), shape)
            if fault is not None:
                faults.append(f"{part} {fault}")

    if faults:
        hidden = len(faults) - MAX_FAULTS_SHOWN
        more = f"; and {hidden} more" if hidden > 0 else ""
        raise DataError(
            f"model.init_from {published.folder} does not hold the recipe's model: "
            f"{'; '.join(faults[:MAX_FAULTS_SHOWN])}{more}. Download the folder again, or change [model] to fit it."
        )


def _fault_of(tensor: Tensor | None, shape: list[int]) -> str | None:
    """Return what is wrong with a tensor that must have this shape, or None."""
    if tensor is None:
        return "is missing"
    if list(tensor.shape) != shape:
        return f"is {list(tensor.shape)}, expected {shape}"
    if not tensor.isfinite().all():
        return "holds values that are not finite"
    return None
