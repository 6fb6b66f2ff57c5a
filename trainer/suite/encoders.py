"""The encoders that a suite compares. An encoder's label names its column in tables and its folder in the output."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import UsageError
from schemas.urls import utf8_path
from trainer.finetune.encoder_folder import check_encoder_files
from trainer.suite.suite_file import NAME

RANDOM = "random"


@dataclass(frozen=True)
class Encoder:
    """An encoder to score.

    needs: names of the jobs that write its folder. random_weights: use only the folder's shape. manifest: the path of
    the manifest of a run's checkpoint, which a job exports to the folder; None for a folder that exists.
    """

    label: str
    folder: str
    needs: tuple[str, ...] = ()
    random_weights: bool = False
    manifest: str | None = None


def encoders_of(words: Sequence[str], random_weights: bool) -> list[Encoder]:
    """Return the encoders that the command line names as FOLDER or NAME=FOLDER.

    The label of a folder without a name is that of `name_of`.
    random_weights: whether to add an encoder with the first folder's shape and random weights.
    Raises UsageError for a folder that lacks a configuration, weights or a tokenizer, and for two encoders with the
    same label.
    """
    named = [split_name(word) for word in words]
    for _, folder in named:
        check_encoder_files(folder)

    encoders = [Encoder(name or name_of(folder), folder) for name, folder in named]
    if random_weights:
        encoders.append(Encoder(RANDOM, encoders[0].folder, random_weights=True))

    labels = [encoder.label for encoder in encoders]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise UsageError(f"two folders are called {twice[0]}. Give them names: NAME=FOLDER.")
    return encoders


def split_name(word: str) -> tuple[str | None, str]:
    """Split NAME=FOLDER or FOLDER into the name, None if there is none, and the folder.

    Raises UsageError for a path that is not UTF-8.
    """
    name, equals, folder = word.partition("=")
    if equals and re.fullmatch(NAME, name) and not Path(word).exists():
        return name, utf8_path(folder)
    return None, utf8_path(word)


def name_of(folder: str) -> str:
    """Return a name for a folder: the last part of its path, or the one before an `hf`, as exports are often called.

    It depends on no other folder, so that some may be added later.
    """
    place = Path(os.path.abspath(folder))
    last = place.parent.name if place.name == "hf" else place.name
    # The name also names a folder, which must not be hidden or contain characters that are special in a shell.
    return re.sub(r"[^A-Za-z0-9_.-]", "-", last).lstrip(".-_") or "encoder"
