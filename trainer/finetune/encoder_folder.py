"""Checks that a folder may hold an encoder, before transformers, which takes seconds to load, opens it."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from schemas import storage
from schemas.errors import UsageError
from schemas.folder_kinds import CHECKPOINT, CONFIG, RUN, START, SUITE, TUNED, what_is
from trainer.models.hf_files import check_link, weight_files

ADVICE = "Give the folder of a downloaded model, or one that `clozeline export` wrote."

ENCODERS_OF = {
    START: "It has no encoder yet; the command that began it continues it.",
    RUN: "`clozeline export` writes its encoder, and `clozeline suite --checkpoints` scores its checkpoints.",
    CHECKPOINT: "`clozeline export` writes its encoder, and `clozeline suite --checkpoints` scores its checkpoints.",
    TUNED: "It has no model yet; the command that began it continues it.",
    SUITE: "Give one of the encoders that it compares.",
}
"""What to do about a folder of another kind that holds no encoder in hf."""

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""What names of models on the Hugging Face hub look like: NAME or OWNER/NAME."""

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")
"""Files that transformers opens a tokenizer from. Files of sentencepiece, whose names differ, end with .model."""


def check_encoder_folder(folder: str) -> None:
    """Raise UsageError unless a folder has the configuration of a Hugging Face encoder.

    Raises DataError if that is a link to nothing.
    """
    if not storage.is_local(folder):
        raise UsageError(f"{folder} is a URL. Download the encoder, and give a folder of this machine.")
    path = Path(folder)
    check_link(path / CONFIG)
    with storage.storage_errors_of(folder):
        if (path / CONFIG).is_file():
            return
        is_there = path.exists()

    if not is_there:
        raise UsageError(f"{folder} does not exist.{_nearest_folder(path)} {ADVICE}{_download_advice(folder)}")
    what = what_is(folder)
    inside = path / "hf"
    advice = f"Give its encoder, {inside}." if (inside / CONFIG).is_file() else ENCODERS_OF.get(what, ADVICE)
    raise UsageError(
        f"{folder} has no {CONFIG}, so it is not an encoder in the Hugging Face format"
        f"{f' but {what}' if what else ''}. {advice}"
    )


def _download_advice(folder: str) -> str:
    """Return how to download a model, as a further sentence, if `folder` may be its name on the Hugging Face hub.

    In OWNER/NAME, OWNER is not a folder here: `models/encodr` is a mistyped path.
    """
    if not HUB_NAME.fullmatch(folder) or ("/" in folder and Path(folder).parent.is_dir()):
        return ""
    target = f"models/{folder.rpartition('/')[2]}"
    return (
        f" Models on the Hugging Face hub are not downloaded automatically. Run `hf download {folder} --local-dir "
        f"{target}`, then give {target}."
    )


def _nearest_folder(path: Path) -> str:
    folders = [found.name for found in path.parent.glob("*") if found.is_dir()]
    close = difflib.get_close_matches(path.name, folders, n=1, cutoff=0.6)
    return f" Did you mean {path.parent / close[0]}?" if close else ""


def check_encoder_files(folder: str, random_weights: bool = False) -> None:
    """Raise UsageError unless a folder has a configuration, a tokenizer, and weights if they are not to be random.

    Raises DataError for a damaged index of the weights, and for a link to nothing.
    """
    check_encoder_folder(folder)
    check_tokenizer_files(folder)

    if random_weights:
        return
    try:
        weight_files(Path(folder))
    except UsageError as error:
        raise UsageError(f"{error} Or use --random_weights to train from random weights.") from error


def check_tokenizer_files(folder: str) -> None:
    """Raise UsageError unless a folder has a file from which transformers opens a tokenizer.

    Raises DataError if one of them is a link to nothing.
    """
    with storage.storage_errors_of(folder):
        names = os.listdir(folder)
    for name in names:
        if name in TOKENIZER_FILES:
            check_link(Path(folder, name))
    if not any(name in TOKENIZER_FILES or name.endswith(".model") for name in names):
        raise UsageError(
            f"{folder} has no tokenizer. Expected {', '.join(TOKENIZER_FILES)} or a *.model of sentencepiece. Export "
            "or download the whole folder again, or copy there the tokenizer that the encoder was trained with."
        )
