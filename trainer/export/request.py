"""What an export is asked for: which checkpoint, where to, and how. All of it is checked before torch is loaded.

An export never replaces files that are not its own. A folder counts as an earlier export, which --overwrite may
replace, if its config.json has the key `clozeline_version`.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import CheckpointError, DataError, UsageError
from schemas.terminal import counted
from trainer.checkpoint.format import (
    CHECKPOINTS_FOLDER,
    MANIFEST,
    best_step,
    location,
    no_checkpoint,
    steps_named,
    steps_saved,
)
from trainer.config.record import RECIPE, flatten, shown_value
from trainer.models.families import GENERATOR_FOLDER

VERSION_KEY = "clozeline_version"
"""The key of config.json by which an export is recognized."""


@dataclass(frozen=True)
class Writing:
    """How an export is written.

    overwrite: an earlier export may be replaced. max_shard_bytes: the maximum bytes of weights in a file, by default
    that of transformers. average: the number of last checkpoints whose weights are averaged.
    pooling: add what sentence-transformers needs. onnx: add an ONNX file.
    license: that of the model, as the Hub spells it, for the card. repository: OWNER/NAME on the Hub to upload to, or
    "" for none. private: create it as one that only its owner sees.
    """

    overwrite: bool = False
    max_shard_bytes: int = 5 * 10**9
    average: int = 1
    pooling: bool = False
    onnx: bool = False
    license: str = ""
    repository: str = ""
    private: bool = False


def check_request(run: str, output: str, step: int | None, best: bool, writing: Writing) -> list[int]:
    """Return the step to export, after those to average it with.

    run, output: local folders or URLs. step: None for the newest. best: the one with the lowest held-out loss.

    Raises UsageError if the run has no such checkpoint, nothing may be written to `output`, or the model's family has
    no ONNX; CheckpointError if the newest is asked for and a newer one lacks its manifest.
    """
    steps = steps_to_export(run, step, best, writing.average)
    check_output(output, writing.overwrite, run)
    if writing.onnx and _recipe_value(run, "model.family", str) == "xlnet":
        raise UsageError("--onnx: torch's ONNX exporter cannot translate XLNet. Leave --onnx out.")
    return steps


def _recipe_value(run: str, key: str, kind: type) -> Any:
    path = storage.join(run, RECIPE)
    try:
        value = flatten(tomllib.loads(storage.read(path).decode())).get(key)
        if not isinstance(value, kind):
            raise ValueError(f"{key} is {shown_value(value)}")
    except ValueError as error:
        raise DataError(f"{path} is not the recipe of a run: {error}. Give the run.output of a training.") from error
    return value


def check_output(output: str, overwrite: bool, run: str) -> None:
    """Raise UsageError if a local folder or URL holds files that must not be replaced, or is a link to nothing.

    These are any files without `overwrite`, and with it those of a folder that is not an earlier export. Nor may it lie
    among the checkpoints of `run`, where it would count as one. Changes nothing there.
    """
    checkpoints = storage.join(run, CHECKPOINTS_FOLDER)
    is_local = storage.is_local(output) and storage.is_local(run)
    if is_local and Path(checkpoints).resolve() in Path(output).resolve().parents:
        raise UsageError(f"--output {output} lies among the run's checkpoints. Give a folder outside of {checkpoints}.")

    link = storage.dead_link(output) if storage.is_local(output) else None
    if link is not None:
        raise UsageError(f"--output {output}: {link} is a link to nothing. Remove it, or give another folder.")

    if all(storage.is_partial(name) for name in storage.names(output)):
        return
    if not overwrite:
        raise UsageError(f"--output {output} is not empty. Give another folder, or --overwrite to replace an export.")
    for folder in (output, storage.join(output, GENERATOR_FOLDER)):
        if storage.names(folder) and not is_export(folder):
            raise UsageError(
                f"--output {output} --overwrite: {folder} holds other files than an export, whose config.json has "
                f"{VERSION_KEY}. Nothing was changed there. Give another folder, or an empty one."
            )


def is_export(folder: str) -> bool:
    try:
        content = json.loads(storage.read(storage.join(folder, "config.json")))
    except (ValueError, DataError):
        return False
    return isinstance(content, dict) and VERSION_KEY in content


def steps_to_export(run: str, step: int | None, best: bool, average: int) -> list[int]:
    """Return the step to export, after those to average it with. Raises UsageError if the run has no such checkpoint.

    Raises CheckpointError if the newest is asked for and a newer one lacks its manifest.
    """
    saved = steps_saved(run)
    if not saved:
        raise no_checkpoint(run)
    if step is not None and step not in saved:
        raise UsageError(f"{run} holds no checkpoint of step {step}. It holds {', '.join(map(str, saved))}.")

    if best:
        step = best_step(run)
        if step is None:
            raise UsageError(
                f"--best: no checkpoint of {run} was evaluated. With evaluation.pairs, training evaluates every "
                "evaluation.every steps and its last one: repeat its command, or choose one with --step."
            )
    if step is None:
        step = saved[-1]
        unsealed = [location(run, named) for named in steps_named(run) if named > step]
        if unsealed and storage.is_local(run):
            raise CheckpointError(f"{unsealed[0]} has no {MANIFEST}. To export an older checkpoint, add --step {step}.")
    return [step] if average == 1 else last_steps(run, step, average)


def last_steps(run: str, step: int, count: int) -> list[int]:
    """Return the steps of a run's last `count` checkpoints up to `step`, oldest first.

    run: a folder or a URL. Raises UsageError if the run keeps fewer.
    """
    keep = _recipe_value(run, "checkpoint.keep", int)

    # An older checkpoint was kept only because it is the best, and may be from much earlier.
    recent = [one for one in steps_saved(run)[-keep:] if one <= step]
    if len(recent) < count:
        raise UsageError(
            f"--average {count}: {run} keeps {counted(len(recent), 'recent checkpoint')} up to step {step} "
            f"({', '.join(map(str, recent)) or 'none'}). Average fewer, give a later --step, or train with a larger "
            f"checkpoint.keep; it is {keep}."
        )
    return recent[-count:]
