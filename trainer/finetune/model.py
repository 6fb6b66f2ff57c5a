"""Opens an encoder in the Hugging Face format with the head of a task.

Any folder will do that transformers opens without code from the folder: Clozeline's exports and published encoders. The
head's weights, which the folder does not have, are drawn from the seed.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from schemas.errors import DataError, UsageError
from schemas.randomness import key
from trainer.finetune.kinds.kind import Kind
from trainer.finetune.kinds.table import KINDS
from trainer.finetune.task import Task


def check_folder(folder: str, kind: str) -> None:
    """Raise UsageError if a folder is no encoder in the Hugging Face format, or its family cannot serve the kind."""
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
    auto_class = getattr(transformers, KINDS[kind].model_class)
    return type(config) in auto_class._model_mapping


def read_config(folder: str) -> Any:
    """Return the configuration of a folder. Raises UsageError if there is none that transformers knows."""
    if not (Path(folder) / "config.json").is_file():
        raise UsageError(
            f"{folder} has no config.json. Give the folder of an encoder in the Hugging Face format, such as one that "
            "`clozeline export` wrote."
        )
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{folder}: transformers {transformers.__version__} cannot open it: {reason}") from error


def open_tokenizer(folder: str, kind: str) -> PreTrainedTokenizerBase:
    """Return the folder's tokenizer. Raises UsageError if there is none, or it has no offsets (is not a fast one)."""
    settings = {"local_files_only": True}
    if kind == "tags":
        # A byte-level BPE reads words that were split already as if each began with a space.
        settings["add_prefix_space"] = True
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **settings)
    except Exception as error:  # transformers raises many types here, depending on which file is missing
        reason = str(error).splitlines()[0]
        raise UsageError(f"{folder} has no tokenizer that transformers can open: {reason}") from error

    if not tokenizer.is_fast:
        raise UsageError(
            f"{folder} has no tokenizer.json, so the places of its tokens in the text are unknown. Save a fast "
            "tokenizer there: AutoTokenizer.from_pretrained(...).save_pretrained(...)."
        )
    return tokenizer


def build_model(folder: str, task: Task, kind: Kind[Any, Any], seed: int, random_weights: bool) -> Any:
    """Return the encoder with the task's head, in float32 on the host.

    seed: of the weights that are drawn. random_weights: draw the encoder's as well, to compare with.
    Raises DataError if weights of the encoder are missing or damaged.
    """
    config = read_config(folder)
    config.num_labels = kind.outputs
    if kind.labels:
        config.id2label = dict(enumerate(kind.labels))
        config.label2id = {label: i for i, label in enumerate(kind.labels)}
    if task.training.dropout is not None:
        set_dropout(config, task.training.dropout)

    auto_class = getattr(transformers, kind.model_class)
    torch.manual_seed(key("finetune", "weights", seed) >> 1)
    if random_weights:
        return auto_class.from_config(config).float()

    with quiet_transformers():
        try:
            model, told = auto_class.from_pretrained(
                folder, config=config, dtype=torch.float32, local_files_only=True, output_loading_info=True
            )
        except Exception as error:  # transformers raises many types here: of missing, damaged and misfit files
            reason = str(error).splitlines()[0]
            raise DataError(
                f"The weights in {folder} cannot be read: {reason}. Export or download them again."
            ) from error

    check_weights(folder, model, told["missing_keys"])
    return model


def check_weights(folder: str, model: Any, missing: Any) -> None:
    """Raise DataError if weights of the encoder itself are not in the folder: those would be random, unnoticed."""
    encoder = f"{model.base_model_prefix}."
    of_encoder = sorted(name for name in missing if name.startswith(encoder) and "pooler" not in name)
    if of_encoder:
        raise DataError(
            f"{folder} lacks {len(of_encoder)} weights of its encoder, such as {of_encoder[0]}. Export or download it "
            "again, or use --random_weights to train from random weights."
        )


def set_dropout(config: Any, dropout: float) -> None:
    """Set all rates of dropout that a configuration has; the families give them different names."""
    for name, value in vars(config).items():
        is_rate = "dropout" in name and isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_rate:
            setattr(config, name, dropout)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide progress bars, and the warning that the head's weights are new and should be trained."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
        transformers_logging.enable_progress_bar()


def fingerprint_of(folder: str) -> str:
    """Return a hash of the files of a folder that decide what is trained: configuration, tokenizer and weights."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix not in {".json", ".safetensors", ".bin", ".txt", ".model"}:
            continue
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
