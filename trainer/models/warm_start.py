"""Begin with published weights: a Hugging Face folder into one of our models, checked before anything is changed.

The encoder must be there to the last tensor; a head that the folder lacks keeps its fresh weights. Folders of a bare
encoder (BertModel), and old ones whose norms have a gamma and a beta, load as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from schemas.errors import DataError, UsageError
from schemas.vocabulary import Vocabulary
from trainer.models.hf_convert import NAMES, config_of, their_names, to_ours
from trainer.models.hf_files import read_config, read_tensors, read_tokens
from trainer.models.pretraining import PretrainingModel

HEADS = ("encoder.pooler.", "mlm_head.", "pair_head.")
DECIDED_BY_RECIPE = {
    "architectures", "vocab_size", "hidden_dropout_prob", "attention_probs_dropout_prob",
    "pad_token_id", "bos_token_id", "eos_token_id",
}  # fmt: skip
"""Keys of config.json that do not change what the weights mean, or are checked by themselves."""
ALWAYS = {"position_embedding_type": "absolute", "is_decoder": False}


def warm_start(model: PretrainingModel, folder: str, vocabulary: Vocabulary) -> list[str]:
    """Fill a model with a folder's weights; returns the heads that the folder lacks, which stay as they are.

    Raises UsageError when the folder is of another architecture or holds no safetensors, DataError when a tensor is
    missing or misshapen or when its vocabulary is not `vocabulary`. The model is then unchanged.
    """
    config, family = read_config(folder), model.shape.family
    check_config(config, model, vocabulary, folder)
    check_published_vocabulary(config, vocabulary, folder)
    tensors = under_new_names(read_tensors(folder), NAMES[family].base)
    check_tied(tensors, family, folder)
    absent = tuple(head for head in HEADS if not any(name in tensors for name in names_in(head, model)))
    wanted = {name: p for name, p in model.named_parameters() if not name.startswith(absent)}
    check_tensors(tensors, wanted, family, folder)
    with torch.no_grad():
        for name, weight in to_ours(tensors, wanted, family).items():
            wanted[name].copy_(weight)
    return [head.strip(".") for head in absent if names_in(head, model)]


def names_in(head: str, model: PretrainingModel) -> list[str]:
    """Their names of a head's tensors; none when our family has no such head."""
    ours = [name for name, _ in model.named_parameters() if name.startswith(head)]
    return [part for name in ours for part in their_names(name, model.shape.family)]


def under_new_names(tensors: dict[str, Tensor], base: str) -> dict[str, Tensor]:
    """Norms of old releases have a gamma and a beta; a bare encoder's names lack what a whole model's begin with."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for old, new in ((".gamma", ".weight"), (".beta", ".bias"), (".decoder.bias", ".bias")):
            if name.endswith(old):
                name = name.removesuffix(old) + new
        bare = name.split(".")[0] in ("embeddings", "encoder", "pooler")
        renamed[f"{base}.{name}" if bare else name] = tensor
    return renamed


def check_config(config: dict[str, Any], model: PretrainingModel, vocabulary: Vocabulary, folder: str) -> None:
    """Raises UsageError with every difference between a folder's config.json and what the recipe would export."""
    ours = config_of(model.shape, vocabulary) | ALWAYS
    differences = [
        f"{key} is {config[key]!r}, the recipe makes it {ours[key]!r}"
        for key in ours
        if key in config and key not in DECIDED_BY_RECIPE and config[key] != ours[key]
    ]
    if differences:
        raise UsageError(
            f"model.init_from {folder} is not the recipe's model: {'; '.join(differences)}. "
            "Change [model] to fit the folder, or give another one."
        )


def check_published_vocabulary(config: dict[str, Any], vocabulary: Vocabulary, folder: str) -> None:
    """Raises DataError unless the folder's token ids mean what the pairs' ids mean."""
    remedy = "Build the pairs with the folder's vocabulary, or give a folder trained with theirs."
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


def check_tied(tensors: dict[str, Tensor], family: str, folder: str) -> None:
    """Raises DataError when the folder projects onto the vocabulary by another matrix than its embeddings."""
    decoder = tensors.get(NAMES[family].outside["mlm_head"] + ".decoder.weight")
    embeddings = tensors.get(NAMES[family].outside["encoder.embeddings.token"] + ".weight")
    if decoder is not None and embeddings is not None and not torch.equal(decoder, embeddings):
        raise DataError(
            f"model.init_from {folder} has a decoder of its own beside its token embeddings; here the two are one "
            "matrix. Give a folder with tie_word_embeddings."
        )


def check_tensors(tensors: dict[str, Tensor], wanted: dict[str, Any], family: str, folder: str) -> None:
    """Raises DataError with every tensor that is missing or has another shape than ours, or holds NaN or infinity."""
    faults = []
    for name, parameter in wanted.items():
        parts = their_names(name, family)
        rows, *rest = parameter.shape
        shape = [rows // len(parts), *rest]
        for part in parts:
            if part not in tensors:
                faults.append(f"{part} is missing")
            elif list(tensors[part].shape) != shape:
                faults.append(f"{part} is {list(tensors[part].shape)}, expected {shape}")
            elif not tensors[part].isfinite().all():
                faults.append(f"{part} holds numbers that are not finite")
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise DataError(
            f"model.init_from {folder} does not hold the recipe's model: {'; '.join(faults[:5])}{more}. "
            "Download the folder again, or change [model] to fit it."
        )
