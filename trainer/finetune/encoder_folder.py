"""Checks that a folder may hold an encoder, before transformers, which takes seconds to load, opens it."""

from __future__ import annotations

import re
from pathlib import Path

from schemas.errors import UsageError

ADVICE = "Give the folder of a downloaded model, or one that `clozeline export` wrote."

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""What names of models on the Hugging Face hub look like: NAME or OWNER/NAME."""

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")
"""Files that transformers opens a tokenizer from. Files of sentencepiece, whose names differ, end with .model."""

WEIGHTS = (".safetensors", ".bin")
"""The endings of files with weights."""


def check_encoder_folder(folder: str, further_advice: str = "") -> None:
    """Raise UsageError unless a folder has the configuration of a Hugging Face encoder.

    further_advice: what else can be done with the folder of a run, as the end of a sentence.
    """
    path = Path(folder)
    if (path / "config.json").is_file():
        return

    if not path.exists():
        raise UsageError(f"{folder} does not exist. {ADVICE}{_download_advice(folder)}")
    if (path / "recipe.toml").is_file():
        raise UsageError(
            f"{folder} has no config.json, so it is not an encoder in the Hugging Face format. It is the folder of a "
            f"run: `clozeline export` writes its encoder{further_advice}."
        )
    raise UsageError(f"{folder} has no config.json, so it is not an encoder in the Hugging Face format. {ADVICE}")


def _download_advice(folder: str) -> str:
    """Return how to download a model, as a further sentence, if `folder` may be its name on the Hugging Face hub."""
    if not HUB_NAME.fullmatch(folder):
        return ""
    target = f"models/{folder.rpartition('/')[2]}"
    return (
        f" Models on the Hugging Face hub are not downloaded automatically. Run `hf download {folder} --local-dir "
        f"{target}`, then give {target}."
    )


def check_encoder_files(folder: str, random_weights: bool = False) -> None:
    """Raise UsageError unless a folder has a configuration, a tokenizer, and weights if they are not to be random."""
    check_encoder_folder(folder)
    check_tokenizer_files(folder)

    has_weights = any(path.suffix in WEIGHTS for path in Path(folder).iterdir())
    if not has_weights and not random_weights:
        raise UsageError(
            f"{folder} has no weights. Expected model.safetensors, or pytorch_model.bin. Export or download the whole "
            "folder again, or use --random_weights to train from random weights."
        )


def check_tokenizer_files(folder: str) -> None:
    """Raise UsageError unless a folder has a file from which transformers opens a tokenizer."""
    names = [path.name for path in Path(folder).iterdir()]
    if not any(name in TOKENIZER_FILES or name.endswith(".model") for name in names):
        raise UsageError(
            f"{folder} has no tokenizer. Expected {', '.join(TOKENIZER_FILES)} or a *.model of sentencepiece. Export "
            "or download the whole folder again, or copy there the tokenizer that the encoder was trained with."
        )
