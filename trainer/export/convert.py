"""Exports a checkpoint as a Hugging Face folder. The command line is in cli.py.

The folder holds config.json, model.safetensors (or several files of at most --max_shard_gigabytes and their index, see
shards.py), README.md (a model card) and the tokenizer's files. transformers' Auto classes load it without any of our
code. For ELECTRA, the folder holds the discriminator, and its subfolder `generator` the generator.

All files are first written into a temporary folder. If transformers is installed, it loads them there, and its logits,
and the rows that its tokenizer builds, are compared with ours. Only then are the files copied to HF_DIR.

Memory stays far below the size of the weights: files are written and copied piece by piece, and for the comparison both
models read their weights from memory-mapped files, whose pages the system can drop at any time.
"""

from __future__ import annotations

import contextlib
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from safetensors.torch import load_file

from schemas import storage
from schemas.vocabulary import VOCABULARY_FOLDER as VOCABULARY_FOLDER
from schemas.vocabulary import Vocabulary, read_vocabulary
from trainer.checkpoint.format import CHECKPOINTS_FOLDER as CHECKPOINTS_FOLDER
from trainer.checkpoint.format import read_state
from trainer.config.load import load_recipe
from trainer.config.phases import recipe_of_step
from trainer.config.schema import Recipe
from trainer.export.average import WEIGHTS_FILE, folder_of_weights, last_steps
from trainer.export.folder import VERSION_KEY, check_output, publish_export, room_errors_named, scratch_folder
from trainer.export.model_card import model_card
from trainer.export.shards import write_weights
from trainer.export.source import (
    check_belongs,
    check_saved,
    choose_checkpoint,
    local_copy,
    step_with_lowest_loss,
)
from trainer.export.tokenizer import tokenizer_files
from trainer.export.verify import check_export
from trainer.export.writing import Writing as Writing
from trainer.models.electra import ModelPart, PartModel, parts_of
from trainer.models.hf_config import AUTO_CLASSES, hf_config
from trainer.models.pretraining import PretrainingModel, empty_model


def export(run: str, output: str, step: int | None, best: bool = False, writing: Writing | None = None) -> str:
    """Write the folder and return a sentence about it.

    step: the checkpoint to export; None for the newest. best: export the one with the lowest held-out loss instead.

    Raises UsageError if the run or the step does not exist or nothing may be exported to `output`, CheckpointError if
    the checkpoint does not verify, does not belong to the run folder or the exported model computes something else,
    DataError if the run's vocabulary is damaged, and StorageError if something cannot be written. `output` is then
    unchanged, except after a failure while the checked files are being copied into it.
    """
    writing = writing or Writing()
    check_output(run, output, writing.overwrite)
    check_saved(run, step)
    step, averaged = _chosen_steps(run, step, best, writing.average)

    with contextlib.ExitStack() as resources:
        folder, faults = resources.enter_context(local_copy(run, step, averaged[:-1]))
        scratch = resources.enter_context(scratch_folder())
        checkpoint = choose_checkpoint(folder, step, faults)
        recipe = load_recipe(str(Path(folder) / "recipe.toml"), [])
        vocabulary = read_vocabulary(str(Path(folder) / VOCABULARY_FOLDER))
        check_belongs(checkpoint, recipe, vocabulary)

        earlier = [choose_checkpoint(folder, one, faults) for one in averaged[:-1]]
        weights = resources.enter_context(folder_of_weights([*earlier, checkpoint]))
        of_step = recipe_of_step(recipe, read_state(checkpoint).step)
        model = read_model(weights, of_step, vocabulary)

        vocabulary_folder = Path(folder) / VOCABULARY_FOLDER
        tokenizer = tokenizer_files(vocabulary_folder, model.shape)
        parts = parts_of(model)
        with room_errors_named(scratch, model):
            for part in parts:
                files = tokenizer | {"config.json": config_json(part.model, vocabulary)}
                write_part(part, scratch, weights / WEIGHTS_FILE, files, writing.max_shard_bytes)
            (scratch / "README.md").write_text(model_card(folder, checkpoint, recipe, averaged), encoding="utf-8")

        difference = check_parts(parts, scratch, vocabulary, vocabulary_folder)
        publish_export(scratch, output)

    source = _source_text(run, checkpoint, averaged)
    auto_class = AUTO_CLASSES[model.shape.family]
    return f"{output}: exported {source} ({_check_text(difference)}). Load it with transformers' {auto_class}."


def _chosen_steps(run: str, step: int | None, best: bool, average: int) -> tuple[int | None, list[int]]:
    """Return the step to export, or None for the newest, and the steps to average, of which it is the last."""
    if best:
        step = step_with_lowest_loss(run)
    if average <= 1:
        return step, []

    averaged = last_steps(run, step, average)
    return averaged[-1], averaged


def _source_text(run: str, checkpoint: Path, averaged: list[int]) -> str:
    """Return text that names the checkpoint, or the steps, whose weights were exported."""
    if averaged:
        return f"the mean of steps {', '.join(map(str, averaged))} of {run}"
    return storage.join(run, CHECKPOINTS_FOLDER, checkpoint.name)


def write_part(part: ModelPart, folder: Path, weights: Path, files: dict[str, bytes], max_shard_bytes: int) -> None:
    """Write a part of the model into its subfolder of the export's `folder`: its weights, then `files`.

    weights: the file with the whole model. files: the content of other files, by name.
    """
    part_folder = folder / part.subfolder
    part_folder.mkdir(exist_ok=True)
    write_weights(weights, part_folder, part.model.shape, max_shard_bytes, part.names)
    for name, content in files.items():
        (part_folder / name).write_bytes(content)


def check_parts(parts: list[ModelPart], folder: Path, vocabulary: Vocabulary, vocabulary_folder: Path) -> float | None:
    """Return the largest relative difference between transformers' logits and ours, or None without transformers.

    vocabulary_folder: the run's. Raises CheckpointError if a part in the export's `folder` computes something else, or
    its tokenizer builds other rows than the model was trained on.
    """
    differences = [check_export(folder / part.subfolder, part.model, vocabulary, vocabulary_folder) for part in parts]
    if differences[0] is None:
        return None
    return max(filter(None, differences), default=0.0)


def _check_text(difference: float | None) -> str:
    """Return text that says how an export was checked. difference: from `check_parts`."""
    if difference is None:
        return "not checked, because transformers is not installed"
    return f"checked, to {difference:.0e}"


def read_model(path: Path, recipe: Recipe, vocabulary: Vocabulary) -> PretrainingModel:
    """Return the model of a checkpoint, in float32. Its weights are pages of the memory-mapped file.

    path: the folder with the weights file.
    """
    # On the meta device, no memory is allocated for weights that load_state_dict replaces.
    model = empty_model(recipe.model, vocabulary.size, vocabulary.special_id("mask"))

    model.assign_weights(load_file(path / WEIGHTS_FILE))
    return model.eval()


def config_json(model: PartModel, vocabulary: Vocabulary) -> bytes:
    """Return the model's config.json, with its dtype and the versions that wrote it."""
    config = hf_config(model.shape, vocabulary)
    config["dtype"] = "float32"

    # This key must always be present, because --overwrite recognizes an export by it. Without an installed package,
    # there is no version.
    config[VERSION_KEY] = "unknown"
    for key, package in ((VERSION_KEY, "clozeline"), ("transformers_version", "transformers")):
        with contextlib.suppress(PackageNotFoundError):
            config[key] = version(package)
    return (json.dumps(config, indent=2) + "\n").encode()
