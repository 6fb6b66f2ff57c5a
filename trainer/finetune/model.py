"""Opens an encoder in the Hugging Face format and adds a task's head to it.

The folder may be a Clozeline export or a published encoder that transformers opens without remote code. A head that
the folder does not have gets random weights, which depend on the seed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from schemas.errors import DataError, UsageError
from schemas.randomness import key
from trainer.finetune.encoder_folder import check_encoder_folder, check_tokenizer_files
from trainer.finetune.kinds.kind import Kind
from trainer.finetune.kinds.table import KINDS
from trainer.finetune.task import Task
from trainer.logs import logger

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
    if _serves(config, kind):
        return

    others = [other for other in KINDS if _serves(config, other)]
    what_it_serves = f"It serves {', '.join(others)}." if others else "It serves no kind of task."
    raise UsageError(
        f"{folder} is of the family {config.model_type}, for which transformers {transformers.__version__} has no "
        f"{KINDS[kind].model_class.removeprefix('AutoModel')}, so it cannot be fine-tuned on a task of kind {kind!r}. "
        f"{what_it_serves}"
    )


def _serves(config: Any, kind: str) -> bool:
    return type(config) in classes_for(KINDS[kind].model_class)


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
    check_tokenizer_files(folder)
    settings = {"local_files_only": True}
    if kind == "tags":
        # Byte-level BPE expects a space before each word, which words that are already split do not have.
        settings["add_prefix_space"] = True
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **settings)
    except Exception as error:  # transformers raises many types, depending on which file is missing
        reason = first_line(error).rstrip(".")
        raise UsageError(
            f"{folder} has no tokenizer that transformers {transformers.__version__} can open: {reason}. Export or "
            "download the whole folder again."
        ) from error

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


def longest_row(config: Any) -> int | None:
    """Return the maximum number of tokens in a row, which the position embeddings limit; None if there is no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions <= 0:
        return None
    if config.model_type in COUNTS_FROM_PADDING:
        return positions - config.pad_token_id - 1
    return positions


def build_model(folder: str, task: Task, kind: Kind[Any, Any], seed: int, random_weights: bool) -> Any:
    """Return the encoder with the task's head, in float32 on the CPU.

    seed: of the random weights. random_weights: whether the encoder gets random weights too, not only the head.
    Raises DataError if weights of the encoder are missing or damaged.
    """
    config = config_for_task(folder, task, kind)
    auto_class = getattr(transformers, kind.model_class)
    torch.manual_seed(key("finetune", "weights", seed) >> 1)
    if random_weights:
        return auto_class.from_config(config).float()

    keeps_head = keeps_existing_head(folder, config, kind)
    with quiet_transformers():
        try:
            model, loading_info = auto_class.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
                # A head with a different number of labels gets random weights. check_weights rejects other mismatches.
                ignore_mismatched_sizes=True,
            )
        except Exception as error:  # transformers raises many types for missing, damaged and mismatched files
            reason = first_line(error).rstrip(".")
            raise DataError(
                f"the weights in {folder} cannot be read: {reason}. Export or download them again."
            ) from error

    mismatched = [name for name, *_ in loading_info["mismatched_keys"]]
    check_weights(folder, model, [*loading_info["missing_keys"], *mismatched])
    return model if keeps_head else with_new_head(model)


def config_for_task(folder: str, task: Task, kind: Kind[Any, Any]) -> Any:
    """Return the folder's configuration with the task's labels and dropout."""
    config = read_config(folder)
    config.num_labels = kind.outputs
    if kind.labels:
        config.id2label = dict(enumerate(kind.labels))
        config.label2id = {label: i for i, label in enumerate(kind.labels)}

    # Without it, transformers' pipelines apply a sigmoid to the number that a regression predicts. It is set for all
    # kinds, because the folder may be of an earlier task.
    config.problem_type = "regression" if task.is_regression else None

    if task.training.dropout is not None:
        set_dropout(config, task.training.dropout)
    return config


def keeps_existing_head(folder: str, config: Any, kind: Kind[Any, Any]) -> bool:
    """Return whether a head of this kind that a folder may have is used, and log it.

    A head is kept if it has the same labels in the same order. If the kind has no named labels, as in regressions and
    spans, it is kept whenever its size is the same. config: that of the task.
    """
    has_head = classes_for(kind.model_class)[type(config)].__name__ in (config.architectures or ())
    if not has_head:
        return True

    labels = list(read_config(folder).id2label.values())
    if kind.labels and labels != list(kind.labels):
        logger.info("%s has a head for other labels (%s), so its head is replaced.", folder, listed_labels(labels))
        return False

    logger.info("%s was fine-tuned on a task of this kind. Its head is kept if it has the same size.", folder)
    return True


def listed_labels(labels: list[str]) -> str:
    """Return label names joined by commas, at most five of them."""
    shown = ", ".join(labels[:5])
    return shown if len(labels) <= 5 else f"{shown}, ..."


def with_new_head(model: Any) -> Any:
    """Return a model with the same encoder, and a head with random weights by torch's random state."""
    fresh = type(model)(model.config).to(torch.float32)
    fresh.base_model.load_state_dict(model.base_model.state_dict())
    return fresh


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none.

    If the line announces a list, all lines are returned as one.
    """
    lines = str(error).split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines) if lines[0].endswith(":") else lines[0]


def check_weights(folder: str, model: Any, missing: Any) -> None:
    """Raise DataError if weights of the encoder itself are among `missing`.

    transformers would silently use random weights for them. A missing pooler is allowed: it is trained with the head.
    """
    encoder = f"{model.base_model_prefix}."
    of_encoder = sorted(name for name in missing if name.startswith(encoder) and "pooler" not in name)
    if of_encoder:
        raise DataError(
            f"{folder} lacks {len(of_encoder)} weights of its encoder, such as {of_encoder[0]}. Export or download it "
            "again, or use --random_weights to train from random weights."
        )


def set_dropout(config: Any, dropout: float) -> None:
    """Set every dropout rate of a configuration. Model families name these fields differently."""
    for name, value in vars(config).items():
        is_rate = "dropout" in name and isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_rate:
            setattr(config, name, dropout)


def restore_dropout(config: Any, folder: str) -> None:
    """Set every dropout rate of a configuration to that of the encoder in a folder."""
    for name, value in vars(read_config(folder)).items():
        if "dropout" in name:
            setattr(config, name, value)


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
