"""Initializes a model with the weights of a Hugging Face folder, which are checked before the model is changed.

The encoder must be complete. A head that the folder lacks keeps its initial weights. Folders of a bare encoder
(BertModel) can be loaded, and so can old ones whose norms have a gamma and a beta.

If the pairs' vocabulary extends the folder's (`vocab --extend`), the embedding of a new token, and its bias in the
head, begin as the mean of the old tokens that it replaces. Old rows do not change. The spare rows of a folder, beyond
its tokens, are kept, except those that become rows of new tokens.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from schemas.errors import DataError
from schemas.vocabulary import Vocabulary
from trainer.models.hf_convert import from_hf, hf_parts
from trainer.models.hf_files import read_config, read_tensors
from trainer.models.hf_tables import WEIGHT_NAMES, WeightNames
from trainer.models.parts import PartModel, parts_of
from trainer.models.pretraining import PretrainingModel
from trainer.models.published_checks import (
    PublishedWeights,
    check_config,
    check_published_vocabulary,
    check_rows,
    check_tensors,
    check_tied,
    extends,
    tokens_of,
)

HEADS = ("encoder.pooler.", "mlm_head.", "pair_head.", "dense.", "prediction.")
"""Prefixes of our tensors that a folder may lack. The last two are the discriminator's head (electra.py)."""

OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias", ".decoder.bias": ".bias"}
"""Endings of tensor names in old releases, and the current ones."""

BARE_PARTS = ("embeddings", "embeddings_project", "encoder", "pooler")
"""The first part of tensor names in a folder of a bare encoder. In other folders they begin with a base such as `bert`.
"""


def warm_start_model(model: PretrainingModel, folder: str, vocabulary: Vocabulary) -> list[str]:
    """Fill all parts of a model with the weights of a folder and its subfolders.

    Returns the heads that the folders lack, and the parts without a subfolder; both keep their initial weights. Raises
    what `warm_start` raises, and DataError if the embeddings of a subfolder differ from those of the folder.
    """
    first, *others = parts_of(model)
    absent = warm_start(first.model, folder, vocabulary)
    for part in others:
        subfolder = Path(folder) / part.subfolder
        if not subfolder.exists():
            absent.append(part.subfolder)
            continue

        shared = {name: values.clone() for name, values in first.model.encoder.embeddings.named_parameters()}
        absent += [f"{part.subfolder}'s {head}" for head in warm_start(part.model, str(subfolder), vocabulary)]
        for name, values in part.model.encoder.embeddings.named_parameters():
            if not torch.equal(values, shared[name]):
                raise DataError(
                    f"{folder} has other {name} embeddings than its subfolder {part.subfolder}; here "
                    "the two are shared. Give a pair that was trained together, or remove the subfolder."
                )
    return absent


def warm_start(model: PartModel, folder: str, vocabulary: Vocabulary) -> list[str]:
    """Fill a model with a folder's weights. Returns the heads that the folder lacks, which keep their weights.

    Raises UsageError if the folder has another architecture or no safetensors, and DataError if a tensor is missing,
    has a wrong shape or is not finite, or if the folder's vocabulary is not `vocabulary` and is not extended by it. The
    model is then unchanged.
    """
    config = read_config(folder)
    check_config(config, model, vocabulary, folder)
    check_published_vocabulary(config, vocabulary, folder)
    check_rows(config, model.shape, vocabulary, folder)

    shape = model.shape
    tensors = with_current_names(read_tensors(folder), WEIGHT_NAMES[shape.family])
    if extends(vocabulary, tokens_of(config, folder)):
        tensors = with_new_rows(tensors, shape.family, vocabulary)
    published = PublishedWeights(folder, shape, tensors)
    if shape.tied:
        check_tied(published)

    absent_heads = tuple(head for head in HEADS if not any(name in tensors for name in names_in(head, model)))
    parameters = {}
    for name, parameter in model.named_parameters():
        if not name.startswith(absent_heads):
            parameters[name] = parameter
    check_tensors(published, parameters)

    with torch.no_grad():
        for name, weight in from_hf(tensors, parameters, shape).items():
            parameters[name].copy_(weight)

    # Do not report heads that our model does not have either.
    return [head.strip(".") for head in absent_heads if names_in(head, model)]


def names_in(head: str, model: PartModel) -> list[str]:
    """Return transformers' names of a head's tensors, or an empty list if the model has no such head."""
    names = []
    for ours, parameter in model.named_parameters():
        if ours.startswith(head):
            names += [part.name for parts in hf_parts(ours, len(parameter), model.shape) for part in parts]
    return names


def with_current_names(tensors: dict[str, Tensor], names: WeightNames) -> dict[str, Tensor]:
    """Return the tensors of an old release or of a bare encoder under the current names of the family's class."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        current_name = name
        for old, new in OLD_ENDINGS.items():
            # In gte, for example, the current name of this bias ends like an old one of other families.
            is_today_s = current_name == f"{names.outside['mlm_head']}.bias"
            if current_name.endswith(old) and not is_today_s:
                current_name = current_name.removesuffix(old) + new

        if current_name.split(".")[0] in BARE_PARTS:
            current_name = f"{names.base}.{current_name}"
        renamed[current_name] = tensor
    return renamed


def with_new_rows(tensors: dict[str, Tensor], family: str, vocabulary: Vocabulary) -> dict[str, Tensor]:
    """Return the tensors with a row for each new token: the float32 mean of the rows of its old tokens.

    Rows follow those of the old tokens, in place of spare rows, in the token embeddings, the decoder if it is listed,
    and the bias of the predictions.
    """
    names = WEIGHT_NAMES[family]
    modules = (names.outside["encoder.embeddings.token"], names.outside.get("mlm_head", names.decoder), names.decoder)
    extended = dict(tensors)
    for name in {f"{module}.{kind}" for module in modules for kind in ("weight", "bias")}:
        if name in tensors:
            extended[name] = _add_rows(tensors[name], vocabulary)
    return extended


def _add_rows(tensor: Tensor, vocabulary: Vocabulary) -> Tensor:
    extension = vocabulary.extension
    if extension is None or len(tensor) < extension.base_size:
        return tensor  # a wrong shape is named by check_tensors

    new_ids = range(extension.base_size, vocabulary.size)
    means = [tensor[list(extension.rows[new])].mean(dim=0) for new in new_ids]
    return torch.cat([tensor[: extension.base_size], torch.stack(means), tensor[vocabulary.size :]])
