"""Initializes a model with the weights of a Hugging Face folder, which are checked before the model is changed.

The encoder must be complete. A head that the folder lacks keeps its initial weights. Folders of a bare encoder
(BertModel) can be loaded, and so can old ones whose norms have a gamma and a beta.

If the pairs' vocabulary extends the folder's (`vocab --extend`), the embedding of a new token, and its bias in the
head, begin as the mean of the old tokens that it replaces. Old rows do not change. The spare rows of a folder, beyond
its tokens, are kept, except those that become rows of new tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from schemas.errors import DataError, UsageError
from schemas.vocabulary import Extension, Vocabulary
from trainer.logs import logger
from trainer.models.electra import PartModel, parts_of
from trainer.models.families import FAMILIES_WITH, GENERATOR_FOLDER
from trainer.models.hf_config import ARCHITECTURES, hf_config, read_family_config
from trainer.models.hf_files import read_tensors, read_tokens
from trainer.models.hf_names import WEIGHT_NAMES, Part, WeightNames, from_hf, hf_parts, their_dimensions
from trainer.models.pretraining import PretrainingModel
from trainer.models.shape import EncoderShape

HEADS = ("encoder.pooler.", "mlm_head.", "pair_head.", "dense.", "prediction.")
"""Prefixes of our tensors that a folder may lack. The last two are the discriminator's head (electra.py)."""

OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias", ".decoder.bias": ".bias"}
"""Endings of tensor names in old releases, and the current ones."""

BARE_PARTS = ("embeddings", "embeddings_project", "encoder", "pooler")
"""The first part of tensor names in a folder of a bare encoder. In other folders they begin with a base such as `bert`.
"""

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


def warm_start_model(model: PretrainingModel, folder: str, vocabulary: Vocabulary) -> list[str]:
    """Fill all parts of a model with the weights of a folder and its subfolders.

    Returns the heads that the folders lack, and the parts without a subfolder; both keep their initial weights. Raises
    what `warm_start` raises, and DataError if the embeddings of a subfolder differ from those of the folder.
    """
    parts = parts_of(model)
    first = parts.pop("")
    absent = warm_start(first, folder, vocabulary)
    for subfolder, part in parts.items():
        if not Path(folder, subfolder).exists():
            absent.append(subfolder)
            continue

        shared = {name: values.clone() for name, values in first.encoder.embeddings.named_parameters()}
        absent += [f"{subfolder}'s {head}" for head in warm_start(part, str(Path(folder, subfolder)), vocabulary)]
        for name, values in part.encoder.embeddings.named_parameters():
            if not torch.equal(values, shared[name]):
                raise DataError(
                    f"{folder} has other {name} embeddings than its subfolder {subfolder}; here "
                    "the two are shared. Give a pair that was trained together, or remove the subfolder."
                )
    return absent


def warm_start(model: PartModel, folder: str, vocabulary: Vocabulary) -> list[str]:
    """Fill a model with a folder's weights. Returns the heads that the folder lacks, which keep their weights.

    Raises UsageError if the folder has another architecture or no safetensors, and DataError if a tensor is missing,
    has a wrong shape or is not finite, or if the folder's vocabulary is not `vocabulary` and is not extended by it. The
    model is then unchanged.
    """
    config = read_family_config(folder)
    check_config(config, model, vocabulary, folder)
    extension = vocabulary.extension if check_published_vocabulary(config, vocabulary, folder) else None
    tokens = vocabulary.size if extension is None else extension.base_size

    shape = model.shape
    check_rows(config.get("vocab_size", vocabulary.size), tokens, shape, vocabulary, folder)
    tensors = with_current_names(read_tensors(folder), WEIGHT_NAMES[shape.family])
    tensors = with_one_segment(tensors, shape, folder)
    if extension is not None:
        tensors = with_new_rows(tensors, shape.family, extension)
    if shape.tied:
        check_tied(tensors, shape, folder)

    absent_heads = tuple(head for head in HEADS if not any(name in tensors for name in names_in(head, model)))
    parameters = {}
    for name, parameter in model.named_parameters():
        if not name.startswith(absent_heads):
            parameters[name] = parameter
    check_tensors(tensors, parameters, shape, folder)

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


def with_one_segment(tensors: dict[str, Tensor], shape: EncoderShape, folder: str) -> dict[str, Tensor]:
    """Return the tensors with the vector of segment 0 alone, and log it, if a family without segments has several.

    This is a RobertaConfig's default. RoBERTa's tokenizer puts every token into segment 0.
    """
    name = f"{WEIGHT_NAMES[shape.family].outside.get('encoder.embeddings.segment')}.weight"
    if shape.type_vocab_size != 1 or name not in tensors or len(tensors[name]) < 2:
        return tensors
    logger.info("%s has %d segments. All tokens are in the first here, and in the export.", folder, len(tensors[name]))
    return tensors | {name: tensors[name][:1]}


def with_new_rows(tensors: dict[str, Tensor], family: str, extension: Extension) -> dict[str, Tensor]:
    """Return the tensors with a row for each new token: the float32 mean of the rows of its old tokens.

    Rows follow those of the old tokens, in place of spare rows, in the token embeddings, the decoder if it is listed,
    and the bias of the predictions.
    """
    names = WEIGHT_NAMES[family]
    modules = (names.outside["encoder.embeddings.token"], names.outside.get("mlm_head", names.decoder), names.decoder)
    extended = dict(tensors)
    for name in {f"{module}.{kind}" for module in modules for kind in ("weight", "bias")}:
        if name in tensors:
            extended[name] = _add_rows(tensors[name], extension)
    return extended


def _add_rows(tensor: Tensor, extension: Extension) -> Tensor:
    base_size = extension.base_size
    if len(tensor) < base_size:
        return tensor  # a wrong shape is named by check_tensors

    means = [tensor[list(old)].mean(dim=0) for _, old in sorted(extension.rows.items())]
    return torch.cat([tensor[:base_size], torch.stack(means), tensor[base_size + len(means) :]])


# Whether a folder fits the recipe's model and the pairs


def check_config(config: dict[str, Any], model: PartModel, vocabulary: Vocabulary, folder: str) -> None:
    """Raise UsageError with every difference between a folder's config.json and what the recipe would export."""
    ours = REQUIRED_VALUES | hf_config(model.shape, vocabulary)
    if model.shape.rope_base is not None:  # transformers 4 has this key instead of `rope_parameters`
        ours["rope_theta"] = model.shape.rope_base

    if config.get("tie_word_embeddings", True) is False and model.shape.family not in FAMILIES_WITH["tied"]:
        raise UsageError(
            f"{folder} has tie_word_embeddings false, so its head predicts with a matrix of its own. Here, the head of "
            f"{model.shape.family} uses the token embeddings, so its pretraining cannot be continued. Give another "
            "folder; `clozeline finetune` without steps of pretraining accepts this one."
        )

    if model.shape.family == "electra" and config.get("architectures") == [ARCHITECTURES["electra_generator"]]:
        raise UsageError(
            f"{folder} holds the generator of an ELECTRA, and a run continues the discriminator. Give the "
            f"discriminator's folder, {ARCHITECTURES['electra']}, and put the generator's into its subfolder "
            f"{GENERATOR_FOLDER} to continue both."
        )

    if model.shape.type_vocab_size == 1 < config.get("type_vocab_size", 1):
        del ours["type_vocab_size"]  # see with_one_segment
    differences = []
    for key, value in ours.items():
        if key in config and key not in UNCHECKED_KEYS and config[key] != value:
            differences.append(f"{key} is {config[key]!r}, the recipe makes it {value!r}")

    if differences:
        raise UsageError(
            f"{folder} is not the recipe's model: {'; '.join(differences)}. "
            "Change [model] to fit the folder, or give another folder."
        )


def check_published_vocabulary(config: dict[str, Any], vocabulary: Vocabulary, folder: str) -> bool:
    """Return whether the pairs' vocabulary extends the folder's. If it does not, the two are the same.

    A folder has as many tokens as its tokenizer, or as rows of embeddings if these are fewer or it has no tokenizer.
    Raises DataError unless the folder's token ids stand for the same tokens as the pairs' ids.
    """
    remedy = "Build the pairs with the folder's vocabulary, or give a folder that was trained with theirs."
    tokens = read_tokens(folder)
    other_names = ESM_SPECIALS if config.get("model_type") == "esm" else {}
    for i, (theirs, ours) in enumerate(zip(tokens or (), vocabulary.tokens, strict=False)):
        if ours not in (theirs, other_names.get(theirs)):
            raise DataError(
                f"{folder} has another vocabulary than the pairs: token {i} is {theirs!r} there and "
                f"{ours!r} here. {remedy}"
            )

    counts = [config.get("vocab_size"), None if tokens is None else len(tokens)]
    size = min((count for count in counts if count is not None), default=vocabulary.size)
    extension = vocabulary.extension
    if extension is not None and size == extension.base_size:
        return True
    if size != vocabulary.size:
        raise DataError(f"{folder} has a vocabulary of {size} tokens, the pairs of {vocabulary.size}. {remedy}")
    return False


def check_rows(rows: int, tokens: int, shape: EncoderShape, vocabulary: Vocabulary, folder: str) -> None:
    """Raise UsageError unless a model has the spare rows of embeddings that a folder has beyond its tokens."""
    expected = max(rows, vocabulary.size)
    if shape.vocab_size != expected:
        raise UsageError(
            f"{folder} has {rows} rows of embeddings for {tokens} tokens, and the pairs have "
            f"{vocabulary.size} tokens; the recipe makes {shape.vocab_size} rows. Use "
            f"--set model.vocab_size={expected}, which keeps the spare rows."
        )


def check_tied(tensors: dict[str, Tensor], shape: EncoderShape, folder: str) -> None:
    """Raise DataError if the folder has a projection onto the vocabulary that differs from its embeddings."""
    names = WEIGHT_NAMES[shape.family]
    decoder = tensors.get(f"{names.decoder}.weight")
    embeddings = tensors.get(f"{names.outside['encoder.embeddings.token']}.weight")
    if decoder is None or embeddings is None:
        return

    if not torch.equal(decoder, embeddings):
        raise DataError(
            f"{folder} has a decoder that differs from its token embeddings; here the two "
            "are one matrix. Give a folder with tie_word_embeddings."
        )


def check_tensors(
    tensors: dict[str, Tensor], parameters: dict[str, nn.Parameter], shape: EncoderShape, folder: str
) -> None:
    """Raise DataError if tensors are missing, have wrong shapes, hold NaN or infinity, or differ where ours are shared.

    The message lists the first MAX_FAULTS_SHOWN of them and the number of the others.
    """
    faults = []
    for name, parameter in parameters.items():
        rows, *rest = parameter.shape
        copies = hf_parts(name, rows, shape)
        for part in (part for parts in copies for part in parts):
            dimensions = their_dimensions(part.name, (part.rows, *rest), shape)
            fault = fault_of(tensors.get(part.name), list(dimensions))
            if fault is not None:
                faults.append(f"{part.name} {fault}")
        faults += _unequal_copies(copies, tensors)

    if faults:
        raise DataError(
            f"{folder} does not hold the recipe's model: {first_of(faults)}. Download the folder again, or change "
            "[model] to fit it."
        )


def first_of(faults: list[str]) -> str:
    """Return the first MAX_FAULTS_SHOWN faults, and the number of the others."""
    hidden = len(faults) - MAX_FAULTS_SHOWN
    return "; ".join(faults[:MAX_FAULTS_SHOWN]) + (f"; and {hidden} more" if hidden > 0 else "")


def _unequal_copies(copies: list[list[Part]], tensors: dict[str, Tensor]) -> list[str]:
    """Return one fault for each tensor that our layers share and the folder's layers do not."""
    faults = []
    for parts in copies[1:]:
        for first, other in zip(copies[0], parts, strict=True):
            pair = (tensors.get(first.name), tensors.get(other.name))
            if pair[0] is not None and pair[1] is not None and not torch.equal(pair[0], pair[1]):
                faults.append(f"{other.name} is not equal to {first.name}, which model.sharing makes one tensor")
    return faults


def fault_of(tensor: Tensor | None, shape: list[int]) -> str | None:
    """Return what is wrong with a tensor that must have this shape, or None."""
    if tensor is None:
        return "is missing"
    if list(tensor.shape) != shape:
        return f"is {list(tensor.shape)}, expected {shape}"
    if not tensor.isfinite().all():
        return "holds values that are not finite"
    return None
