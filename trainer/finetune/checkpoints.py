"""The checkpoints of a seed: folders checkpoint-STEP of transformers' Trainer, each sealed with hashes of its files.

Trainer takes a folder as it finds it: it starts a new optimizer where the file of one is missing, and does not notice a
changed byte. A resume would then give other results without a word. So the hashes of all files are written last: a
folder without them is what a kill has left, and one whose files differ from them is damaged. Neither is continued from.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from schemas.errors import StorageError
from trainer.finetune.inputs import read_json, write_json
from trainer.logs import logger

SEAL = "sha256.json"
"""The file of a checkpoint with the hashes of all others, by their names."""

STATE = "trainer_state.json"

UNSEALED = "it is incomplete"


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints in the folder of a seed, the newest last. Some may be incomplete or damaged."""
    named = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal()]
    return sorted(named, key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def seal(checkpoint: Path) -> None:
    """Write the hashes of a checkpoint's files, which makes it complete. Raises OSError."""
    hashes = {path.name: hash_of(path) for path in sorted(checkpoint.iterdir()) if path.name != SEAL}
    write_json(checkpoint / SEAL, hashes)


def keep_newest(folder: Path, best_step: int | None) -> None:
    """Remove all checkpoints but the two newest and that of the best epoch."""
    for path in checkpoints_in(folder)[:-2]:
        if step_of(path) != best_step:
            shutil.rmtree(path, ignore_errors=True)


def newest_sound(folder: Path) -> str | None:
    """Return the path of the newest checkpoint to continue from, None if there is none, and remove those that are not.

    A checkpoint needs that of its best epoch, too. Raises StorageError if one cannot be read or removed.
    """
    try:
        sound = [path for path in checkpoints_in(folder) if is_usable(path, fault_of(path))]
        steps = set(map(step_of, sound))
        for path in reversed(sound):
            best = json.loads((path / STATE).read_bytes())["best_global_step"]
            missing = None if best is None or best in steps else f"it needs the weights of checkpoint-{best}"
            if is_usable(path, missing):
                return str(path)
    except OSError as error:
        raise StorageError(f"{folder}: a checkpoint cannot be read: {error}. The same command tries again.") from error
    return None


def fault_of(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint, None if it is as it was written. Raises OSError."""
    recorded = read_json(checkpoint / SEAL)
    if recorded is None:
        return UNSEALED
    for name, expected in recorded.items():
        path = checkpoint / name
        if not path.exists():
            return f"{name} is missing"
        if hash_of(path) != expected:
            return f"{name} is damaged"
    return None


def is_usable(checkpoint: Path, fault: str | None) -> bool:
    """Return whether a checkpoint has no fault, and remove it otherwise, with a warning unless a kill explains it."""
    if fault is None:
        return True
    if fault != UNSEALED:
        logger.warning("%s is not continued from: %s.", checkpoint, fault)
    shutil.rmtree(checkpoint)
    return False


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished seed. folder: of the seed, where other files of Trainer stay."""
    for path in checkpoints_in(folder):
        shutil.rmtree(path, ignore_errors=True)
