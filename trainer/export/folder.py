"""The folder that an export is written to: it is checked before any work, and filled at the end.

An export is first written into an unfinished folder on the same disk. A new folder appears complete, by a rename; of an
earlier export, the files are kept until the new ones only have to be renamed.

An export never replaces files that are not its own. A folder counts as an earlier export, which --overwrite may
replace, if its config.json has the key `clozeline_version`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from schemas import storage
from schemas.errors import DataError, StorageError, UsageError
from schemas.vocabulary import TOKENIZER_FILES
from trainer.checkpoint.remote import upload_file
from trainer.checkpoint.run_lock import NO_FLOCK
from trainer.models.electra import GENERATOR_FOLDER
from trainer.models.pretraining import PretrainingModel

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
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

    if all(storage.is_partial(name) for name in storage.names(output)):
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
    nearest = _nearest_existing(path)
    if not nearest.is_dir():
        raise UsageError(f"--output {output}: {nearest} is not a folder. Give another folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise StorageError(f"--output {output} cannot be written: {nearest} is read-only for this user.")


def _nearest_existing(path: Path) -> Path:
    """Return the path itself if it exists, otherwise its nearest ancestor that does."""
    return next(part for part in (path, *path.parents) if part.exists())


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


# ---- Writing ----


@contextlib.contextmanager
def unfinished_folder(output: str) -> Iterator[Path]:
    """Yield an empty folder to write an export in, which is removed afterwards unless it was renamed.

    It lies inside `output`, or where that is to be created; for a URL, in TMPDIR. What a killed export left there is
    removed. Raises StorageError if the folder cannot be created, and UsageError while another export writes there.
    """
    target = Path(storage.filesystem(output)[1]).resolve() if storage.is_local(output) else None
    parent = Path(tempfile.gettempdir()) if target is None else _nearest_existing(target)
    place = storage.sha256(str(target or output).encode())[:12]
    folder = parent / f".export.{os.getuid()}.{place}{storage.PARTIAL_SUFFIX}"
    lock = parent / f".export.{os.getuid()}.lock.{place}{storage.PARTIAL_SUFFIX}"

    with contextlib.ExitStack() as resources:
        try:
            resources.enter_context(_locked(lock, output))
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        except OSError as error:
            raise StorageError(
                f"--output {output} cannot be written: {error.strerror or error}. {_way_out(output)}"
            ) from error
        resources.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


@contextlib.contextmanager
def _locked(path: Path, output: str) -> Iterator[None]:
    """Hold a lock file, which is removed afterwards. Raises UsageError if another export holds it, and OSError."""
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise UsageError(
            f"--output {output} is being written by another export. Wait until it has ended, or give another folder."
        ) from None
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
        yield
        return

    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


@contextlib.contextmanager
def room_errors_named(folder: Path, output: str, model: PretrainingModel) -> Iterator[None]:
    """Turn a failed write to an unfinished folder into a StorageError that states the bytes needed and free."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        bytes_needed = sum(4 * parameter.numel() for parameter in model.parameters())
        bytes_free = shutil.disk_usage(folder).free
        raise StorageError(
            f"--output {output} cannot be written: it needs {bytes_needed:,} bytes in {folder.parent}, and "
            f"{bytes_free:,} are free there ({error}). {_way_out(output)}"
        ) from error


def _way_out(output: str) -> str:
    other = "give another --output" if storage.is_local(output) else "set TMPDIR to another folder"
    return f"Free space there or {other}."


def publish_export(folder: Path, output: str) -> None:
    """Make the files of an unfinished folder those of `output`, and remove those that an earlier export left there.

    Raises StorageError if they cannot be written, and UsageError if `output` has a generator that is not an export.
    """
    # Files that safetensors writes can be read by their owner alone.
    for file in folder.rglob("*.safetensors"):
        shutil.copymode(folder / "config.json", file)

    try:
        target = Path(storage.filesystem(output)[1])
        if storage.is_local(output) and not target.exists():
            _rename_folder(folder, target)
        else:
            _replace_files(folder, output)
    except (OSError, DataError) as error:
        # Only these are converted. storage raises StorageError itself, for example for a full disk.
        reason = str(error).rstrip(".")
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise StorageError(
            f"--output {output} cannot be written: {reason}. Free space there and export again with --overwrite, or "
            "give another folder."
        ) from error


def _rename_folder(folder: Path, target: Path) -> None:
    """Make the folder durable and rename it. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for path in (*folder.rglob("*"), folder):
        storage.sync_folder(str(path))
    folder.rename(target)
    storage.sync_folder(str(target.parent))


def _replace_files(folder: Path, output: str) -> None:
    """Move the files of the folder to `output`, after those of an earlier export that have no successor are removed.

    transformers prefers a single file of weights to several, so an old one must not lie beside new ones.
    """
    # config.json comes first, so that after an interruption the folder is recognized as an export and can be replaced.
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    files.sort(key=lambda name: (Path(name).name != "config.json", name))

    generator = storage.join(output, GENERATOR_FOLDER)
    is_taken = not all(storage.is_partial(name) for name in storage.names(generator)) and not is_export(generator)
    if is_taken and (folder / GENERATOR_FOLDER).exists():
        raise UsageError(
            f"--output {output} --overwrite: {generator} holds other files than an export, whose config.json has "
            f"{VERSION_KEY}. Nothing was changed there. Move it away, or give another folder."
        )

    for name in _files_of_export(output):
        if name not in files:
            storage.remove(storage.join(output, name))
    if storage.exists(generator) and not storage.names(generator):
        storage.remove(generator)

    for name in files:
        move_file(folder / name, storage.join(output, name))


def _files_of_export(output: str) -> list[str]:
    """Return the files of an earlier export in a folder. Those of its generator have names with a slash."""
    files: list[str] = []
    for subfolder in ("", f"{GENERATOR_FOLDER}/"):
        place = storage.join(output, subfolder) if subfolder else output
        if is_export(place):
            files += [f"{subfolder}{name}" for name in storage.names(place) if _is_of_export(name)]
    return files


def _is_of_export(name: str) -> bool:
    return name in EXPORT_FILES or SHARD.fullmatch(name) is not None


def move_file(path: Path, url: str) -> None:
    """Move a file to a place on the same disk, or copy it to a URL. Raises StorageError."""
    if storage.is_local(url):
        storage.move(str(path), url)
    else:
        upload_file(path, url)
