"""The folder that an export is written to, which is filled at the end.

An export is first written into an unfinished folder on the same disk. A new folder appears complete, by a rename; of an
earlier export, the files are kept until the new ones only have to be renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import BaseFileLock
from safetensors import SafetensorError

from schemas import storage
from schemas.errors import StorageError, UsageError
from schemas.urls import FULL, advice_on_limit, full_folder, refuse_read_only
from schemas.vocabulary import TOKENIZER_FILES
from trainer.checkpoint.remote import upload_file
from trainer.checkpoint.run_lock import RUN_LOCK_FILE, hold
from trainer.export.request import is_export
from trainer.models.families import GENERATOR_FOLDER
from trainer.models.pretraining import PretrainingModel
from trainer.models.shape import EncoderShape

INDEX_FILE = "model.safetensors.index.json"
ONNX_FILE = "onnx/model.onnx"
MODULES_FILE = "modules.json"
SENTENCE_FILE = "sentence_bert_config.json"
POOLING_FILE = "1_Pooling/config.json"
CARD = "README.md"
EXPORT_FILES = {"config.json", "model.safetensors", INDEX_FILE, CARD, MODULES_FILE, SENTENCE_FILE}
EXPORT_FILES |= TOKENIZER_FILES
"""File names of an export, besides those that match SHARD. --overwrite replaces or removes these files."""
NESTED_FILES = (ONNX_FILE, f"{ONNX_FILE}.data", POOLING_FILE)
"""Files of an export that lie in folders of it; ELECTRA's generator has more."""
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


def pooling_files(shape: EncoderShape) -> dict[str, bytes]:
    """Return the files, by name, with which `SentenceTransformer(folder)` returns the mean of all tokens.

    Their format is that of sentence-transformers 2 and later (Reimers & Gurevych, arXiv:1908.10084). Special tokens
    count, padding does not.
    """
    folder = POOLING_FILE.partition("/")[0]
    contents: dict[str, Any] = {
        MODULES_FILE: [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": folder, "type": "sentence_transformers.models.Pooling"},
        ],
        SENTENCE_FILE: {"max_seq_length": shape.max_position_embeddings, "do_lower_case": False},
        POOLING_FILE: {"word_embedding_dimension": shape.hidden_size, "pooling_mode_mean_tokens": True},
    }
    return {name: (json.dumps(content, indent=2) + "\n").encode() for name, content in contents.items()}


@contextlib.contextmanager
def unfinished_folder(output: str) -> Iterator[Path]:
    """Yield an empty folder to write an export in, which is removed afterwards unless it was renamed.

    It lies inside `output`, or where that is to be created; for a URL, in TMPDIR. What a killed export left there is
    removed. Raises UsageError if a file is in the way or another export writes to `output`, and StorageError.
    """
    refuse_read_only(output)
    parent, target = Path(tempfile.gettempdir()), output
    if storage.is_local(output):
        path = Path(storage.filesystem(output)[1]).resolve()
        parent, target = next(part for part in (path, *path.parents) if part.exists()), str(path)
        if not parent.is_dir():
            raise UsageError(f"--output {output}: {parent} is not a folder. Give another folder.")

    # The name is the same in every export of a user to this folder, and one that `storage.is_partial` knows.
    place = storage.sha256(f"{os.getuid()} {target}".encode())[:12]
    work = parent / f".export.{place}{storage.PARTIAL_SUFFIX}"
    with write_errors(output, work):
        work.mkdir(exist_ok=True)
        lock = _lock(work, output)
    try:
        with write_errors(output, work):
            shutil.rmtree(work / "hf", ignore_errors=True)
            (work / "hf").mkdir()
        yield work / "hf"
    finally:
        # The lock file goes first, while it is held, so no other export locks a file that is about to be removed.
        shutil.rmtree(work / "hf", ignore_errors=True)
        with contextlib.suppress(OSError):
            (work / RUN_LOCK_FILE).unlink()
        lock.release()
        with contextlib.suppress(OSError):  # another export has begun
            work.rmdir()


def _lock(work: Path, output: str) -> BaseFileLock:
    try:
        return hold(str(work), "--output")
    except UsageError:
        raise UsageError(
            f"--output {output} is being written by another export. Wait until it has ended, or give another folder."
        ) from None


@contextlib.contextmanager
def write_errors(output: str, folder: Path, model: PretrainingModel | None = None) -> Iterator[None]:
    """Turn a failed write to an unfinished folder into a StorageError. model: if its weights are written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = f"{(isinstance(error, OSError) and error.strerror) or error} in {folder}"
        if model is not None:
            needed = sum(4 * parameter.numel() for parameter in model.parameters())
            reason += f", where it {full_folder(str(folder), needed)}"
        is_refused = isinstance(error, OSError) and error.errno not in FULL
        remedy = "Check the disk and your permissions there" if is_refused else "Free space there"
        other = "give another --output" if storage.is_local(output) else "set TMPDIR to another folder"
        advice = advice_on_limit(error) or f"{remedy}, or {other}"
        raise StorageError(f"--output {output} cannot be written: {reason}. {advice}.") from error


def publish_export(folder: Path, output: str) -> None:
    """Make the files of an unfinished folder those of `output`, and remove those that an earlier export left there.

    Raises StorageError.
    """
    target = Path(storage.filesystem(output)[1])
    is_new = storage.is_local(output) and not target.exists()
    with write_errors(output, folder):
        for part in {file.parent for file in folder.rglob("*.safetensors")}:
            follow_umask(part)
        if is_new:
            target.parent.mkdir(parents=True, exist_ok=True)
            for path in (*folder.rglob("*"), folder):
                storage.sync_folder(str(path))
            folder.rename(target)
            storage.sync_folder(str(target.parent))

    if not is_new:
        _replace_files(folder, output)


def _replace_files(folder: Path, output: str) -> None:
    """Move the files of the folder to `output`, after those of an earlier export that have no successor are removed.

    transformers prefers a single file of weights to several, so an old one must not lie beside new ones.
    """
    # config.json comes first, so that after an interruption the folder is recognized as an export and can be replaced.
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    files.sort(key=lambda name: (Path(name).name != "config.json", name))

    for name in _files_of_export(output):
        if name not in files:
            storage.remove(storage.join(output, name))
    for subfolder in (GENERATOR_FOLDER, *(name.partition("/")[0] for name in NESTED_FILES)):
        place = storage.join(output, subfolder)
        if storage.exists(place) and not storage.names(place):
            storage.remove(place)

    for name in files:
        move_file(folder / name, storage.join(output, name))


def _files_of_export(output: str) -> list[str]:
    """Return the files of an earlier export in a folder. Those of its subfolders have names with a slash."""
    files = [name for name in NESTED_FILES if is_export(output) and storage.exists(storage.join(output, name))]
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


def follow_umask(folder: Path) -> None:
    """Give the files of a folder the permissions of a newly created file.

    safetensors writes through a temporary file, which only its owner may read, whatever the umask is. Raises OSError.
    """
    # Reading the umask itself would change it for a moment, for all threads.
    probe = folder / f".{uuid.uuid4().hex[:12]}"
    probe.touch()
    try:
        mode = probe.stat().st_mode & 0o777
    finally:
        probe.unlink()

    for path in folder.iterdir():
        # Some mounts give all files one mode and refuse to change it.
        if path.is_file() and path.stat().st_mode & 0o777 != mode:
            path.chmod(mode)
