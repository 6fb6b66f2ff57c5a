"""Exports a checkpoint as a Hugging Face folder. The command line is in cli.py.

The folder holds config.json, README.md (a model card), the tokenizer's files and the weights: model.safetensors, or
model-00001-of-00002.safetensors and so on with an index, if they need more than --max_shard_gigabytes. transformers'
Auto classes load it without any of our code. For ELECTRA, the folder holds the discriminator, and its subfolder
`generator` the generator.

All files are first written into an unfinished folder (folder.py). If transformers is installed, it loads them there,
and its logits, and the rows that its tokenizer builds, are compared with ours. Only then does HF_DIR change.

The weights are in memory once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor

from schemas import storage
from schemas.vocabulary import VOCABULARY_FOLDER, Vocabulary, read_vocabulary
from trainer.checkpoint.format import CHECKPOINTS_FOLDER, read_state
from trainer.config.load import load_recipe
from trainer.config.phases import recipe_of_step
from trainer.config.schema import Recipe
from trainer.export.folder import (
    INDEX_FILE,
    VERSION_KEY,
    check_output,
    publish_export,
    room_errors_named,
    unfinished_folder,
)
from trainer.export.model_card import model_card
from trainer.export.source import (
    check_belongs,
    check_saved,
    choose_checkpoint,
    last_steps,
    local_copy,
    read_weights,
    step_with_lowest_loss,
)
from trainer.export.tokenizer import tokenizer_files
from trainer.export.verify import check_export
from trainer.models.electra import ModelPart, PartModel, parts_of
from trainer.models.hf_config import AUTO_CLASSES, hf_config
from trainer.models.hf_names import constant_tensors, to_hf
from trainer.models.pretraining import PretrainingModel, empty_model


@dataclass(frozen=True)
class Writing:
    """How an export is written.

    overwrite: an earlier export may be replaced. max_shard_bytes: the maximum bytes of weights in a file, by default
    that of transformers. average: the number of last checkpoints whose weights are averaged.
    """

    overwrite: bool = False
    max_shard_bytes: int = 5 * 10**9
    average: int = 1


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
        unfinished = resources.enter_context(unfinished_folder(output))
        checkpoint = choose_checkpoint(folder, step, faults)
        recipe = load_recipe(str(Path(folder) / "recipe.toml"), [])
        vocabulary = read_vocabulary(str(Path(folder) / VOCABULARY_FOLDER))
        check_belongs(checkpoint, recipe, vocabulary)

        earlier = [choose_checkpoint(folder, one, faults) for one in averaged[:-1]]
        of_step = recipe_of_step(recipe, read_state(checkpoint).step)
        model = read_model(checkpoint, of_step, vocabulary, earlier)

        vocabulary_folder = Path(folder) / VOCABULARY_FOLDER
        tokenizer = tokenizer_files(vocabulary_folder, model.shape)
        parts = parts_of(model)
        with room_errors_named(unfinished, output, model):
            for part in parts:
                files = tokenizer | {"config.json": config_json(part.model, vocabulary)}
                write_part(part, unfinished / part.subfolder, files, writing.max_shard_bytes)
            (unfinished / "README.md").write_text(model_card(folder, checkpoint, recipe, averaged), encoding="utf-8")

        difference = check_parts(parts, unfinished, vocabulary, vocabulary_folder)
        publish_export(unfinished, output)

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


def write_part(part: ModelPart, folder: Path, files: dict[str, bytes], max_shard_bytes: int) -> None:
    """Write a part of the model into its folder: its weights, and `files` by name. Raises OSError."""
    folder.mkdir(exist_ok=True)
    weights = {name: parameter.detach() for name, parameter in part.model.named_parameters()}
    write_weights(to_hf(weights, part.model.shape) | constant_tensors(part.model.shape), folder, max_shard_bytes)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def write_weights(tensors: dict[str, Tensor], folder: Path, max_shard_bytes: int) -> None:
    """Write tensors into one safetensors file, or into several and their index, as transformers cuts them.

    A file has at most `max_shard_bytes` of weights, unless a single tensor is larger.
    """
    # Of tensors without data, the sizes alone count: several may be parts of one of ours, and share its memory.
    without_data = {name: tensor.to("meta") for name, tensor in tensors.items()}
    split = split_torch_state_dict_into_shards(without_data, max_shard_size=max_shard_bytes)
    for file, names in split.filename_to_tensors.items():
        save_file({name: tensors[name] for name in names}, folder / file, {"format": "pt"})

    if split.is_sharded:
        parameters = sum(tensor.numel() for tensor in tensors.values())
        index = {
            "metadata": {"total_parameters": parameters} | split.metadata,
            "weight_map": dict(sorted(split.tensor_to_filename.items())),
        }
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


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


def read_model(
    checkpoint: Path, recipe: Recipe, vocabulary: Vocabulary, earlier: Sequence[Path] = ()
) -> PretrainingModel:
    """Return the model of a checkpoint, in float32, or with the mean of its weights and those of earlier checkpoints.

    Raises CheckpointError if one of them is malformed.
    """
    # On the meta device, no memory is allocated for weights that are then replaced.
    model = empty_model(recipe.model, vocabulary.size, vocabulary.special_id("mask"))
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    model.assign_weights(read_weights([*earlier, checkpoint], shapes))
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
