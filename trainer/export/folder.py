"""The folder that an export is written to: it is checked before any work, and filled at the end.

An export never replaces files that are not its own. A folder counts as an earlier export, which --overwrite may
replace, if its config.json has the key `clozeline_version`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from schemas import storage
from schemas.errors import DataError, StorageError, UsageError
from schemas.vocabulary import TOKENIZER_FILES
from trainer.checkpoint.remote import upload_file
from trainer.export.shards import INDEX_FILE, SINGLE_FILE
from trainer.models.electra import GENERATOR_FOLDER
from trainer.models.pretraining import PretrainingModel

EXPORT_FILES = {"config.json", SINGLE_FILE, INDEX_FILE, "README.md"} | TOKENIZER_FILES
"""File names of an export, besides those that match SHARD. --overwrite replaces or removes these files."""
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
VERSION_KEY = "clozeline_version"
"""The key of config.json by which an export is recognized."""


# ---- Before any work: may an export be written there? ----


def check_output(run: str, output: str, overwrite: bool) -> None:
    """Check that an export may be written to `output`, without changing anything there.

    Raises UsageError if `output` is an empty string, is in the run's folder, is a file or lies under one, or holds
    files that must not be replaced: any files without `overwrite`, and with it those of a folder that is not an earlier
    export. Raises StorageError if nothing can be written there.
    """
    if not output:
        raise UsageError("--output is empty. Give a folder for the export.")
    if _is_inside(output, run):
        raise UsageError(
            f"--output {output} lies in the run's folder {run}, whose files it would replace. Give another folder."
        )
    if storage.is_local(output):
        _check_local_output(Path(storage.filesystem(output)[1]), output)

    is_empty = not storage.names(output)
    if is_empty:
        return
    if not overwrite:
        raise UsageError(f"--output {output} is not empty. Give another folder, or --overwrite to replace an export.")
    if not is_export(output):
        raise UsageError(
            f"--output {output} --overwrite: the folder holds other files than an export, whose config.json has "
            f"{VERSION_KEY}. Nothing was changed there. Give another folder, or an empty one."
        )


def is_export(folder: str) -> bool:
    """Return whether a folder, which may be a URL, holds an export of this program."""
    try:
        content = json.loads(storage.read(storage.join(folder, "config.json")))
    except (OSError, ValueError, DataError):
        return False
    return isinstance(content, dict) and VERSION_KEY in content


def _check_local_output(path: Path, output: str) -> None:
    """Check the nearest ancestor of the path that exists, in which the rest would be created.

    Raises UsageError if it is not a folder, and StorageError if it is not writable.
    """
    nearest = next(part for part in (path, *path.parents) if part.exists())
    if not nearest.is_dir():
        raise UsageError(f"--output {output}: {nearest} is not a folder. Give another folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise StorageError(f"--output {output} cannot be written: {nearest} is read-only for this user.")


def _is_inside(output: str, run: str) -> bool:
    """Return whether `output` is `run` or lies inside it. Links are followed."""
    if storage.is_local(output) != storage.is_local(run):
        return False

    if storage.is_local(run):
        output_path = Path(storage.filesystem(output)[1]).resolve()
        run_path = Path(storage.filesystem(run)[1]).resolve()
        return output_path.is_relative_to(run_path)

    # The final slash makes sure that s3://runs/a does not contain s3://runs/ab.
    output_prefix = output.rstrip("/") + "/"
    run_prefix = run.rstrip("/") + "/"
    return output_prefix.startswith(run_prefix)


# ---- The temporary folder ----


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder in TMPDIR that is removed afterwards. Raises StorageError if it cannot be created."""
    try:
        folder = tempfile.mkdtemp(suffix=storage.PARTIAL_SUFFIX)
    except OSError as error:
        raise StorageError(
            f"A temporary folder cannot be created: {error.strerror}. Set TMPDIR to a folder that can be written."
        ) from error

    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def room_errors_named(folder: Path, model: PretrainingModel) -> Iterator[None]:
    """Turn a failed write to a temporary folder into a StorageError that states the bytes needed and free."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        bytes_needed = sum(4 * parameter.numel() for parameter in model.parameters())
        bytes_free = shutil.disk_usage(folder).free
        raise StorageError(
            f"The temporary folder {folder.parent} cannot be written: the export needs {bytes_needed:,} bytes and "
            f"{bytes_free:,} are free ({error}). Free space there, or set TMPDIR to another folder."
        ) from error


# ---- Publishing ----


def publish_export(folder: Path, output: str) -> None:
    """Copy the files of an export to `output`, and remove those that an earlier export left there.

    Raises StorageError if they cannot be written.
    """
    try:
        _publish_files(folder, output)

        # `output` was empty or an export (`check_output`), whose generator belongs to the weights that were replaced.
        generator = storage.join(output, GENERATOR_FOLDER)
        if (folder / GENERATOR_FOLDER).exists():
            _publish_files(folder / GENERATOR_FOLDER, generator)
        elif is_export(generator):
            _remove_files_of_export(generator, kept=set())
            if not storage.names(generator):
                storage.remove(generator)
    except (OSError, DataError) as error:
        # Only these are converted. storage raises StorageError itself, for example for a full disk.
        reason = str(error).rstrip(".")
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise StorageError(
            f"--output {output} cannot be written: {reason}. Free space there and export again with --overwrite, or "
            "give another folder."
        ) from error


def _publish_files(folder: Path, output: str) -> None:
    """Copy the files of a folder to `output`, and remove other files of an export from there."""
    # config.json comes first, so that after an interruption the folder is recognized as an export and can be replaced.
    files = sorted(
        (path for path in folder.iterdir() if path.is_file()),
        key=lambda file: (file.name != "config.json", file.name),
    )
    written = {file.name for file in files}

    # transformers prefers the single file to the index, so old weights must not remain next to new shards.
    if SINGLE_FILE not in written and SINGLE_FILE in storage.names(output):
        storage.remove(storage.join(output, SINGLE_FILE))

    for file in files:
        publish_file(file, storage.join(output, file.name))

    _remove_files_of_export(output, written)


def _remove_files_of_export(output: str, kept: set[str]) -> None:
    """Remove the files of an export from a folder, except those with names in `kept`. Other files stay."""
    for name in storage.names(output):
        is_of_an_export = name in EXPORT_FILES or SHARD.fullmatch(name) is not None
        if is_of_an_export and name not in kept:
            storage.remove(storage.join(output, name))


def publish_file(path: Path, url: str) -> None:
    """Copy a file atomically, as storage.publish does with bytes, without reading the whole file into memory.

    Raises StorageError if a store refuses, and OSError if the local disk does.
    """
    if not storage.is_local(url):
        upload_file(path, url)
        return

    target = Path(storage.filesystem(url)[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(6)}{storage.PARTIAL_SUFFIX}")
    try:
        shutil.copyfile(path, partial)
        with partial.open("rb") as copied:
            os.fsync(copied.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    storage.sync_folder(str(target.parent))
