"""The folder that an export is written to, and the tokenizer files in it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from schemas import storage
from schemas.errors import DataError, StorageError, UsageError
from schemas.vocabulary import TOKENIZER_FILES
from trainer.models.encoder import EncoderShape
from trainer.models.pretraining import PretrainingModel

CONFIG = "tokenizer_config.json"
OURS = {"config.json", "model.safetensors", "README.md"} | TOKENIZER_FILES
"""Names that an export may hold: what --overwrite replaces or removes."""
VERSION = "clozeline_version"
"""Key of an export's config.json by which it is recognized."""
LOCAL_PLACES = ("name_or_path", "_name_or_path", "tokenizer_file", "vocab_file", "special_tokens_map_file", "cache_dir")
"""Keys of a published tokenizer_config.json in which transformers keeps paths of the machine that wrote it."""


def check_output(run: str, output: str, overwrite: bool) -> None:
    """Check the place for an export before any work, without touching it.

    Raises UsageError when `output` is empty, is in the run's folder, is a file or lies under one, or holds files that
    may not be replaced: any without `overwrite`, and with it those of a folder that is no earlier export.
    Raises StorageError when nothing can be written there.
    """
    if not output:
        raise UsageError("--output is empty. Give a folder for the export.")
    if _inside(output, run):
        raise UsageError(
            f"--output {output} lies in the run's folder {run}, whose files it would replace. Give another."
        )

    if storage.is_local(output):
        _check_local(Path(storage.filesystem(output)[1]), output)
    names = storage.names(output)
    if names and not overwrite:
        raise UsageError(f"--output {output} is not empty. Give another folder, or --overwrite to replace an export.")
    if names and not is_export(output):
        raise UsageError(
            f"--output {output} --overwrite: the folder holds other files than an export, whose config.json has "
            f"{VERSION}. Nothing was changed there. Give another folder, or an empty one."
        )


def is_export(folder: str) -> bool:
    """Return whether a folder, which may be a URL, holds an export of this program."""
    try:
        content = json.loads(storage.read(storage.join(folder, "config.json")))
    except (OSError, ValueError, DataError):
        return False
    return isinstance(content, dict) and VERSION in content


def _check_local(path: Path, output: str) -> None:
    """Look at the nearest part of the path that exists."""
    nearest = next(part for part in (path, *path.parents) if part.exists())
    if not nearest.is_dir():
        raise UsageError(f"--output {output}: {nearest} is not a folder. Give another folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise StorageError(f"--output {output} cannot be written: {nearest} is read-only for this user.")


def _inside(output: str, run: str) -> bool:
    """Whether `output` is `run` or lies in it, links followed."""
    if storage.is_local(output) != storage.is_local(run):
        return False
    if storage.is_local(run):
        place = Path(storage.filesystem(output)[1]).resolve()
        return place.is_relative_to(Path(storage.filesystem(run)[1]).resolve())
    return f"{output.rstrip('/')}/".startswith(f"{run.rstrip('/')}/")


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a folder in TMPDIR that is removed afterwards. Raises StorageError when there is none to be had."""
    try:
        folder = tempfile.mkdtemp(suffix=storage.PARTIAL)
    except OSError as error:
        raise StorageError(f"No temporary folder can be made: {error.strerror}. Set TMPDIR to a folder.") from error
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def scratch_room(folder: Path, model: PretrainingModel) -> Iterator[None]:
    """Turn a scratch folder without room for the model's float32 weights into a StorageError that names TMPDIR."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        needed = sum(4 * parameter.numel() for parameter in model.parameters())
        free = shutil.disk_usage(folder).free
        raise StorageError(
            f"The temporary folder {folder.parent} cannot be written: the export needs {needed:,} bytes and {free:,} "
            f"are free ({error}). Free space there, or set TMPDIR to another folder."
        ) from error


def tokenizer_files(vocabulary: Path, shape: EncoderShape) -> dict[str, bytes]:
    """Return the files of a run's vocabulary by name, with what its tokenizer must know of the model.

    Raises DataError when tokenizer_config.json is not JSON.
    """
    files = {name: storage.read(str(vocabulary / name)) for name in storage.names(str(vocabulary))}
    config = tokenizer_config(vocabulary / CONFIG, shape)
    return files | {CONFIG: (json.dumps(config, indent=1, ensure_ascii=False) + "\n").encode()}


def tokenizer_config(path: Path, shape: EncoderShape) -> dict[str, Any]:
    """Return a tokenizer_config.json for a model of this shape.

    model_max_length lets `truncation=True` cut to what the model takes. token_type_ids are listed for models with two
    segments; transformers leaves them out for ALBERT otherwise, and B would be read as segment A.
    """
    try:
        content = json.loads(path.read_text()) if path.exists() else {}
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise DataError(f"{path} is not the JSON of a tokenizer ({error}). Put the vocabulary's own back.") from error

    kept = {name: value for name, value in content.items() if name not in LOCAL_PLACES}
    names = (
        ["input_ids", "token_type_ids", "attention_mask"]
        if shape.type_vocab_size > 1
        else ["input_ids", "attention_mask"]
    )
    return kept | {"model_max_length": shape.positions - shape.first_position, "model_input_names": names}


def publish_folder(folder: Path, output: str) -> None:
    """Copy the files of an export to `output`, and remove those that an earlier export left there.

    Raises StorageError when they cannot be written.
    """
    written = {file.name for file in folder.iterdir()}
    try:
        # config.json first: after an interruption the folder can still be recognized and replaced
        for file in sorted(folder.iterdir(), key=lambda file: (file.name != "config.json", file.name)):
            storage.publish(storage.join(output, file.name), file.read_bytes())
        for name in OURS & {*storage.names(output)} - written:
            storage.remove(storage.join(output, name))
    except (OSError, DataError) as error:  # storage words a full disk itself
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error).rstrip(".")
        advice = "Free space there or give another folder, and export again."
        raise StorageError(f"--output {output} cannot be written: {reason}. {advice}") from error
