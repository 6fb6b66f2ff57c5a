"""Checks that the weights of a Hugging Face folder fit a recipe's model, before the model is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from schemas.errors import DataError, UsageError
from schemas.vocabulary import Vocabulary
from trainer.config.validate import FAMILIES_WITH
from trainer.models.hf_config import hf_config
from trainer.models.hf_convert import Part, hf_parts
from trainer.models.hf_files import read_tokens
from trainer.models.hf_tables import WEIGHT_NAMES
from trainer.models.parts import PartModel
from trainer.models.shape import EncoderShape
from trainer.models.xlnet_hf import their_dimensions

UNCHECKED_KEYS = {
    "architectures",
    "vocab_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "attention_dropout",
    "classifier_pooling",
    "embedding_dropout",
    "mlp_dropout",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "dropout",
    "mem_len",
    "reuse_len",
    "use_mems_eval",
    "use_mems_train",
}
"""Keys of config.json that do not change what the weights mean, or that are checked in another way."""

REQUIRED_VALUES = {"position_embedding_type": "absolute", "is_decoder": False, "rope_scaling": None}
"""Keys that our exports leave out, with the only values that our models support."""

ESM_SPECIALS = {
    "<cls>": "[CLS]",
    "<pad>": "[PAD]",
    "<eos>": "[SEP]",
    "<unk>": "[UNK]",
    "<null_1>": "[unused1]",
    "<mask>": "[MASK]",
}
"""Special tokens in the vocab.txt of published ESM-2 models, and what pairs call the same ids (BERT's names)."""

MAX_FAULTS_SHOWN = 5


@dataclass(frozen=True)
class PublishedWeights:
    """The tensors of a folder, under transformers' current names, and the shape of the model that they must fit."""

    folder: str
    shape: EncoderShape
    tensors: dict[str, Tensor]


def extends(vocabulary: Vocabulary, tokens: int | None) -> bool:
    """Return whether a vocabulary extends a folder's, judging by the folder's number of tokens."""
    extension = vocabulary.extension
    return extension is not None and tokens == extension.base_size


def tokens_of(config: dict[str, Any], folder: str) -> int | None:
    """Return the number of tokens of a folder's tokenizer, or its rows of embeddings if these are fewer.

    There may be more rows than tokens: spare ones. A folder without a tokenizer has as many tokens as rows; without
    vocab_size in its config.json either, the result is None.
    """
    rows = config.get("vocab_size")
    tokens = read_tokens(folder)
    if tokens is None or rows is None:
        return rows if tokens is None else len(tokens)
    return min(len(tokens), rows)


def check_config(config: dict[str, Any], model: PartModel, vocabulary: Vocabulary, folder: str) -> None:
    """Raise UsageError with every difference between a folder's config.json and what the recipe would export."""
    ours = with_keys_of_transformers_4(REQUIRED_VALUES | hf_config(model.shape, vocabulary))
    if config.get("tie_word_embeddings", True) is False and model.shape.family not in FAMILIES_WITH["tied"]:
        raise UsageError(
            f"{folder} has tie_word_embeddings false, so its head predicts with a matrix of its own. Here, the head of "
            f"{model.shape.family} uses the token embeddings, so its pretraining cannot be continued. Give another "
            "folder; `clozeline finetune` without steps of pretraining accepts this one."
        )

    differences = []
    for key, value in ours.items():
        if key in config and key not in UNCHECKED_KEYS and config[key] != value:
            differences.append(f"{key} is {config[key]!r}, the recipe makes it {value!r}")

    if differences:
        raise UsageError(
            f"{folder} is not the recipe's model: {'; '.join(differences)}. "
            "Change [model] to fit the folder, or give another folder."
        )


def with_keys_of_transformers_4(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json with the RoPE base also under the key of transformers 4.

    transformers 5 moved `rope_theta` into `rope_parameters`. Folders that were published before have only `rope_theta`.
    """
    rotation = config.get("rope_parameters", {})
    if "rope_theta" not in rotation:
        return config
    return config | {"rope_theta": rotation["rope_theta"]}


def check_published_vocabulary(config: dict[str, Any], vocabulary: Vocabulary, folder: str) -> None:
    """Raise DataError unless the folder's token ids stand for the same tokens as the pairs' ids."""
    remedy = "Build the pairs with the folder's vocabulary, or give a folder that was trained with theirs."
    tokens = read_tokens(folder) or ()
    other_names = ESM_SPECIALS if config.get("model_type") == "esm" else {}
    for i, (theirs, ours) in enumerate(zip(tokens, vocabulary.tokens, strict=False)):
        if ours not in (theirs, other_names.get(theirs)):
            raise DataError(
                f"{folder} has another vocabulary than the pairs: token {i} is {theirs!r} there and "
                f"{ours!r} here. {remedy}"
            )

    size = tokens_of(config, folder)
    if size not in (None, vocabulary.size) and not extends(vocabulary, size):
        raise DataError(f"{folder} has a vocabulary of {size} tokens, the pairs of {vocabulary.size}. {remedy}")


def check_rows(config: dict[str, Any], shape: EncoderShape, vocabulary: Vocabulary, folder: str) -> None:
    """Raise UsageError unless a model has the spare rows of embeddings that a folder has beyond its tokens."""
    rows = config.get("vocab_size", vocabulary.size)
    expected = max(rows, vocabulary.size)
    if shape.vocab_size != expected:
        raise UsageError(
            f"{folder} has {rows} rows of embeddings for {tokens_of(config, folder)} tokens, and the pairs have "
            f"{vocabulary.size} tokens; the recipe makes {shape.vocab_size} rows. Use "
            f"--set model.vocab_size={expected}, which keeps the spare rows."
        )


def check_tied(published: PublishedWeights) -> None:
    """Raise DataError if the folder has a projection onto the vocabulary that differs from its embeddings."""
    names = WEIGHT_NAMES[published.shape.family]
    decoder = published.tensors.get(f"{names.decoder}.weight")
    embeddings = published.tensors.get(f"{names.outside['encoder.embeddings.token']}.weight")
    if decoder is None or embeddings is None:
        return

    if not torch.equal(decoder, embeddings):
        raise DataError(
            f"{published.folder} has a decoder that differs from its token embeddings; here the two "
            "are one matrix. Give a folder with tie_word_embeddings."
        )


def check_tensors(published: PublishedWeights, parameters: dict[str, nn.Parameter]) -> None:
    """Raise DataError if tensors are missing, have wrong shapes, hold NaN or infinity, or differ where ours are shared.

    The message lists the first MAX_FAULTS_SHOWN of them and the number of the others.
    """
    faults = []
    for name, parameter in parameters.items():
        rows, *rest = parameter.shape
        copies = hf_parts(name, rows, published.shape)
        for part in (part for parts in copies for part in parts):
            dimensions = their_dimensions(part.name, (part.rows, *rest), published.shape)
            fault = _fault_of(published.tensors.get(part.name), list(dimensions))
            if fault is not None:
                faults.append(f"{part.name} {fault}")
        faults += _unequal_copies(copies, published.tensors)

    if faults:
        hidden = len(faults) - MAX_FAULTS_SHOWN
        more = f"; and {hidden} more" if hidden > 0 else ""
        raise DataError(
            f"{published.folder} does not hold the recipe's model: "
            f"{'; '.join(faults[:MAX_FAULTS_SHOWN])}{more}. Download the folder again, or change [model] to fit it."
        )


def _unequal_copies(copies: list[list[Part]], tensors: dict[str, Tensor]) -> list[str]:
    """Return one fault for each tensor that our layers share and the folder's layers do not."""
    faults = []
    for parts in copies[1:]:
        for first, other in zip(copies[0], parts, strict=True):
            pair = (tensors.get(first.name), tensors.get(other.name))
            if pair[0] is not None and pair[1] is not None and not torch.equal(pair[0], pair[1]):
                faults.append(f"{other.name} is not equal to {first.name}, which model.sharing makes one tensor")
    return faults


def _fault_of(tensor: Tensor | None, shape: list[int]) -> str | None:
    """Return what is wrong with a tensor that must have this shape, or None."""
    if tensor is None:
        return "is missing"
    if list(tensor.shape) != shape:
        return f"is {list(tensor.shape)}, expected {shape}"
    if not tensor.isfinite().all():
        return "holds values that are not finite"
    return None
