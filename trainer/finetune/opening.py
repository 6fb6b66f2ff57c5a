"""Opens the configuration, the tokenizer and the weights of an encoder in the Hugging Face format.

The folder may be a Clozeline export or a published encoder that transformers opens without remote code.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from schemas.errors import DataError, UsageError
from trainer.finetune.encoder_folder import check_encoder_folder, check_tokenizer_files
from trainer.finetune.kinds import KINDS
from trainer.models.hf_files import weight_files
from trainer.models.hf_load import fault_of, first_of

COUNTS_FROM_PADDING = {
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "layoutlmv3",
    "lilt",
    "longformer",
    "luke",
    "markuplm",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}
"""Families whose positions start at padding id + 1, so that the first rows of the position embedding are not used."""


def check_folder(folder: str, kind: str) -> None:
    """Raise UsageError if a folder holds no Hugging Face encoder, or if its family has no head for the kind."""
    config = read_config(folder)
    served = [other for other in KINDS if type(config) in classes_for(KINDS[other].model_class)]
    if kind in served:
        return

    what_it_serves = f"It serves {', '.join(served)}." if served else "It serves no kind of task."
    raise UsageError(
        f"{folder} is of the family {config.model_type}, for which transformers {transformers.__version__} has no "
        f"{KINDS[kind].model_class.removeprefix('AutoModel')}, so it cannot be fine-tuned on a task of kind {kind!r}. "
        f"{what_it_serves}"
    )


def classes_for(auto_class: str) -> Any:
    """Return the model classes of an Auto class, such as AutoModelForMultipleChoice, by configuration class."""
    words = re.findall(r"[A-Z][a-z]+", auto_class.removeprefix("AutoModelFor"))
    return getattr(transformers, f"MODEL_FOR_{'_'.join(words).upper()}_MAPPING")


def read_config(folder: str) -> Any:
    """Return the configuration in a folder. Raises UsageError if it is missing or transformers cannot open it."""
    check_encoder_folder(folder)
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = first_line(error)
        raise UsageError(f"{folder}: transformers {transformers.__version__} cannot open it: {reason}") from error


def open_tokenizer(folder: str, kind: str) -> PreTrainedTokenizerBase:
    """Return the folder's tokenizer.

    Raises UsageError if there is none, if it has no padding or classification token, or if it is not a fast tokenizer,
    which alone gives the offsets of tokens.
    """
    # Byte-level BPE expects a space before each word, which words that are already split do not have.
    tokenizer = any_tokenizer(folder, **({"add_prefix_space": True} if kind == "tags" else {}))
    if tokenizer.pad_token_id is None or tokenizer.cls_token_id is None:
        raise UsageError(
            f"the tokenizer of {folder} has no token for padding or for classification, which encoders have. Decoders "
            "such as GPT-2 cannot be fine-tuned here."
        )
    if kind == "span" and tokenizer.cls_token_id not in tokenizer("a")["input_ids"]:
        raise UsageError(
            f"the tokenizer of {folder} adds no {tokenizer.cls_token} to its rows, which a span task needs as the "
            "place of questions without an answer."
        )
    if not tokenizer.is_fast:
        raise UsageError(
            f"{folder} has no tokenizer.json, so the places of its tokens in the text are unknown. Save a fast "
            "tokenizer there: AutoTokenizer.from_pretrained(...).save_pretrained(...)."
        )
    return tokenizer


def any_tokenizer(folder: str, **settings: Any) -> PreTrainedTokenizerBase:
    """Return the folder's tokenizer, of whatever kind.

    Raises UsageError if transformers cannot open it, and DataError if it has more tokens than the encoder.
    """
    check_tokenizer_files(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **settings)
    except Exception as error:  # transformers raises many types, depending on which file is missing
        reason = first_line(error).rstrip(".")
        raise UsageError(
            f"{folder} has no tokenizer that transformers {transformers.__version__} can open: {reason}. Export or "
            "download the whole folder again."
        ) from error

    tokens, rows = len(tokenizer), getattr(read_config(folder), "vocab_size", None)
    if rows is not None and tokens > rows:
        raise DataError(
            f"the tokenizer of {folder} has {tokens} tokens, but its embeddings have {rows} rows. Open the model with "
            f"transformers, call resize_token_embeddings({tokens}) and save it again, or restore its own tokenizer."
        )
    return tokenizer


def open_weights(auto_class: Any, folder: str, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """Return a folder's model in float32 on the CPU, and transformers' facts about missing and mismatched weights.

    auto_class: an Auto class of transformers, such as AutoModel. settings: of its `from_pretrained`.
    Raises UsageError and DataError if the weights are missing, damaged, not finite, or a pickle.
    """
    weight_files(Path(folder))  # transformers would open pickles
    with quiet_transformers():
        try:
            model, loading_info = auto_class.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                **settings,
            )
        except Exception as error:  # transformers raises many types for missing, damaged and mismatched files
            reason = first_line(error).rstrip(".")
            raise DataError(
                f"the weights in {folder} cannot be read: {reason}. Export or download them again."
            ) from error

    faults = {name: fault_of(weight, list(weight.shape)) for name, weight in model.named_parameters()}
    found = [f"{name} {fault}" for name, fault in faults.items() if fault is not None]
    if found:
        raise DataError(f"{folder}: {first_of(found)}. Export or download the folder again.")
    return model, loading_info


def longest_row(config: Any) -> int | None:
    """Return the maximum number of tokens in a row, which the position embeddings limit; None if there is no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions <= 0:
        return None
    if config.model_type in COUNTS_FROM_PADDING:
        return positions - config.pad_token_id - 1
    return positions


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none.

    If the line announces a list, all lines are returned as one.
    """
    lines = str(error).split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines) if lines[0].endswith(":") else lines[0]


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide transformers' progress bars and its warning that the head's weights are newly initialized."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
        transformers_logging.enable_progress_bar()
