"""The encoders that a suite compares: each has a label, which is its column in tables and its folder in the output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import UsageError
from trainer.suite.schema import NAME

RANDOM = "random"


@dataclass(frozen=True)
class Encoder:
    """An encoder's folder. needs: the jobs that write it. random_weights: whether only its shape counts.

    manifest: of the checkpoint that the folder will be an export of, None for a folder that is there already.
    """

    label: str
    folder: str
    needs: tuple[str, ...] = ()
    random_weights: bool = False
    manifest: str | None = None


def encoders_of(words: Sequence[str], random_weights: bool) -> list[Encoder]:
    """Return the encoders that FOLDER and NAME=FOLDER of the command line stand for.

    A folder without a name is called by the last parts of its path, as many as tell it from the others.
    random_weights: add one with the shape of the first folder and random weights.
    Raises UsageError for a folder that holds no encoder, and for two with one name.
    """
    named = [split_name(word) for word in words]
    for _, folder in named:
        check_folder(folder)

    short = short_names([folder for _, folder in named])
    encoders = [Encoder(name or short[folder], folder) for name, folder in named]
    if random_weights:
        encoders.append(Encoder(RANDOM, encoders[0].folder, random_weights=True))

    labels = [encoder.label for encoder in encoders]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise UsageError(f"Two folders are called {twice[0]}. Give them names: NAME=FOLDER.")
    return encoders


def split_name(word: str) -> tuple[str | None, str]:
    """Return the name, if there is one, and the folder of NAME=FOLDER or FOLDER."""
    name, equals, folder = word.partition("=")
    if equals and re.fullmatch(NAME, name) and not Path(word).exists():
        return name, folder
    return None, word


def check_folder(folder: str) -> None:
    """Raise UsageError if a folder does not look like an encoder."""
    if (Path(folder) / "config.json").is_file():
        return

    hint = ""
    if (Path(folder) / "recipe.toml").is_file():
        hint = (
            " It is a run's folder: `clozeline export` writes its encoder, and --checkpoints all scores it over time."
        )
    raise UsageError(f"{folder} has no config.json, so it is no encoder in the Hugging Face format.{hint}")


def short_names(folders: Sequence[str]) -> dict[str, str]:
    """Return a name for each folder: the last part of its path, and more of it where these are the same."""
    parts = {folder: [part for part in Path(folder).absolute().parts if part not in ("/", ".")] for folder in folders}
    names = {}
    for folder in folders:
        for count in range(1, len(parts[folder]) + 1):
            ending = parts[folder][-count:]
            alike = [other for other in parts if parts[other][-count:] == ending]
            if len(alike) == 1:
                break
        names[folder] = re.sub(r"[^A-Za-z0-9_.-]", "-", "-".join(ending)).lstrip(".-_") or "encoder"
    return names
