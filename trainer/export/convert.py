"""Exports a checkpoint as a Hugging Face folder. The command line is in cli.py.

The folder holds config.json, README.md (a model card), the tokenizer's files and the weights: model.safetensors, or
model-00001-of-00002.safetensors and so on with an index, if they need more than --max_shard_gigabytes. transformers'
Auto classes load it without any of our code. For ELECTRA, the folder holds the discriminator, and its subfolder
`generator` the generator.

All files are first written into an unfinished folder (folder.py). If transformers is installed, it loads them there,
and its logits, and the rows that its tokenizer builds, are compared with ours. Only then does HF_DIR change.

`--average K` exports the mean weights of the last K checkpoints. The mean of late checkpoints is closer to the center
of the loss valley that a run moves in, so it often scores better than the last of them, especially before the learning
rate has decayed (Izmailov et al., arXiv:1803.05407). NeoBERT was evaluated with such means.

The weights are in memory once.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor

from schemas import storage
from schemas.errors import CheckpointError
from schemas.vocabulary import VOCABULARY_FOLDER, Vocabulary, read_vocabulary
from trainer.checkpoint.format import (
    checkpoint_path,
    fault_of_checkpoint,
    location,
    steps_saved,
)
from trainer.checkpoint.rank_files import RankFiles
from trainer.checkpoint.remote import bring_checkpoint, bring_other_files
from trainer.checkpoint.state import check_identity, read_state
from trainer.config.load import load_recipe
from trainer.config.phases import recipe_of_step
from trainer.config.record import RECIPE, flatten
from trainer.config.schema import Recipe
from trainer.config.sections import START_KEYS
from trainer.export.folder import (
    CARD,
    INDEX_FILE,
    ONNX_FILE,
    pooling_files,
    publish_export,
    unfinished_folder,
    write_errors,
)
from trainer.export.hub import check_access, push
from trainer.export.model_card import model_card
from trainer.export.onnx_file import check_onnx, write_onnx
from trainer.export.request import VERSION_KEY, Writing, check_request
from trainer.export.tokenizer import tokenizer_files
from trainer.export.verify import check_export
from trainer.metrics.starts import versions
from trainer.models.electra import PartModel, parts_of
from trainer.models.hf_config import AUTO_CLASSES, hf_config
from trainer.models.hf_names import constant_tensors, to_hf
from trainer.models.pretraining import PretrainingModel
from trainer.models.starting_weights import empty_model


def export(run: str, output: str, step: int | None = None, best: bool = False, writing: Writing | None = None) -> str:
    """Write the folder and return a sentence about it.

    run, output: local folders or URLs. step: the checkpoint to export; None for the newest. best: export the one with
    the lowest held-out loss instead.

    Raises UsageError if the run or the step does not exist or nothing may be exported to `output`, CheckpointError if
    the checkpoint does not verify, does not belong to the run folder or the exported model computes something else,
    DataError if the run's vocabulary is damaged, and StorageError if something cannot be written. `output` is then
    unchanged, except after a failure while the checked files are being copied into it, or to the Hub.
    """
    writing = writing or Writing()
    steps = check_request(run, output, step, best, writing)
    if writing.repository:
        check_access(writing.repository, writing.overwrite)
    if writing.onnx:
        check_onnx()

    with unfinished_folder(output) as unfinished, _local_run(run, steps) as folder:
        family, checks = _fill(unfinished, output, folder, steps, writing)
        files = [path.relative_to(unfinished).as_posix() for path in unfinished.rglob("*") if path.is_file()]
        publish_export(unfinished, output)

        uploaded = ""
        if writing.repository:
            place = Path(storage.filesystem(output)[1]) if storage.is_local(output) else unfinished
            uploaded = f" Uploaded to {push(place, files, output, writing.repository, writing.private)}."

    source = location(run, steps[-1])
    if writing.average > 1:
        source = f"the mean of steps {', '.join(map(str, steps))} of {run}"
    loader = "sentence-transformers' SentenceTransformer, or " if writing.pooling else ""
    loader += f"transformers' {AUTO_CLASSES[family]}"
    return f"{output}: exported {source} ({checks}). Load it with {loader}.{uploaded}"


def write_card(run: str, output: str, steps: Sequence[int], writing: Writing) -> None:
    """Write the card of an export again, of a local run whose folder now says more. Raises StorageError."""
    card = model_card(run, load_recipe(str(Path(run, RECIPE)), []), steps, output, writing)
    storage.publish(storage.join(output, CARD), card.encode())


def _fill(unfinished: Path, output: str, folder: str, steps: Sequence[int], writing: Writing) -> tuple[str, str]:
    """Write all files of an export and check them. Return the model's family, and what was checked, in words.

    folder: the local run.
    """
    checkpoints = [checkpoint_path(folder, one) for one in steps]
    recipe = load_recipe(str(Path(folder, RECIPE)), [])

    vocabulary_folder = Path(folder, VOCABULARY_FOLDER)
    vocabulary = read_vocabulary(str(vocabulary_folder))
    _check_belongs(checkpoints[-1], recipe, vocabulary)
    model = read_model(checkpoints[-1], recipe_of_step(recipe, steps[-1]), vocabulary, checkpoints[:-1])

    parts = parts_of(model)
    tokenizer = tokenizer_files(vocabulary_folder, model.shape)
    card = model_card(folder, recipe, steps, output, writing)
    with write_errors(output, unfinished, model):
        for subfolder, part in parts.items():
            files = tokenizer | {"config.json": _config_json(part, vocabulary)}
            _write_part(part, unfinished / subfolder, files, writing.max_shard_bytes)
        extra = pooling_files(model.shape) if writing.pooling else {}
        _write_files(extra | {CARD: card.encode()}, unfinished)

    differences = [
        check_export(unfinished / subfolder, part, vocabulary, vocabulary_folder) for subfolder, part in parts.items()
    ]
    checks = "not checked, because transformers is not installed"
    if None not in differences:
        checks = f"checked, to {max(filter(None, differences), default=0.0):.0e}"
    if writing.onnx:
        with write_errors(output, unfinished, model):
            checks += f"; {ONNX_FILE} to {write_onnx(unfinished, parts[''], vocabulary):.0e}"
    return model.shape.family, checks


# The run


@contextlib.contextmanager
def _local_run(run: str, steps: Sequence[int]) -> Iterator[str]:
    """Yield a local folder with the checkpoints of these steps, all of which verify, and what else an export needs.

    Of a run at a URL, it is a temporary copy. Raises CheckpointError if a checkpoint does not verify, and StorageError.
    """
    if storage.is_local(run):
        for step in steps:
            _check_sound(run, step, fault_of_checkpoint(checkpoint_path(run, step)))
        yield run
        return

    with tempfile.TemporaryDirectory() as folder:
        with storage.storage_errors_of(run):
            bring_other_files(run, folder)
            for step in steps:
                _check_sound(run, step, bring_checkpoint(run, folder, step))
        yield folder


def _check_sound(run: str, step: int, fault: str | None) -> None:
    """Raise CheckpointError if a checkpoint has a fault. An older one is exported only if its step is given."""
    if fault is not None:
        older = [one for one in steps_saved(run) if one < step]
        remedy = (
            f"To export the one before, add --step {older[-1]}."
            if older
            else "No older one is kept: restore this one from a copy, or train again."
        )
        raise CheckpointError(f"{location(run, step)} does not verify: {fault.rstrip('.')}. {remedy}")


def _check_belongs(path: Path, recipe: Recipe, vocabulary: Vocabulary) -> None:
    """Raise CheckpointError unless a checkpoint was trained with the run folder's [model] and vocabulary."""
    saved_identity = read_state(path).identity
    current = {
        "model": recipe.model.model_dump(exclude_none=True, exclude={*START_KEYS, "vocab_size"}),
        "vocabulary": vocabulary.fingerprint,
    }

    # An export depends only on these two entries of the checkpoint's identity.
    saved = {name: saved_identity.get(name) for name in current}
    check_identity(path, flatten(saved), flatten(current))


# The weights


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


def read_weights(checkpoints: Sequence[Path], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return the float32 weights of a checkpoint, or the mean of several, by name.

    shapes: of the model's parameters. A mean is summed in float64 and rounded once.
    Raises CheckpointError if a checkpoint is malformed or holds other tensors.
    """
    files = [RankFiles(path) for path in checkpoints]
    for one in files:
        if one.shapes != shapes:
            raise CheckpointError(f"{one.folder} holds other tensors than a model of the run's recipe.")
    return {
        name: _mean([one.read(name, 0, prod(shape)) for one in files]).view(shape) for name, shape in shapes.items()
    }


def _mean(tensors: list[Tensor]) -> Tensor:
    if len(tensors) == 1:
        return tensors[0]

    total = tensors[0].double()
    for tensor in tensors[1:]:
        total += tensor
    return (total / len(tensors)).float()


# The files


def _write_part(part: PartModel, folder: Path, files: dict[str, bytes], max_shard_bytes: int) -> None:
    """Write a part of the model into its folder: its weights, and `files` by name."""
    folder.mkdir(exist_ok=True)
    weights = {name: parameter.detach() for name, parameter in part.named_parameters()}
    write_weights(to_hf(weights, part.shape) | constant_tensors(part.shape), folder, max_shard_bytes)
    _write_files(files, folder)


def _write_files(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
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
        metadata = {"total_parameters": parameters} | split.metadata
        index = {"metadata": metadata, "weight_map": dict(sorted(split.tensor_to_filename.items()))}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _config_json(model: PartModel, vocabulary: Vocabulary) -> bytes:
    """Return the model's config.json, with its dtype and the versions that wrote it."""
    config = hf_config(model.shape, vocabulary)
    config["dtype"] = "float32"

    # This key must always be present, because --overwrite recognizes an export by it.
    installed = versions("clozeline", "transformers")
    config[VERSION_KEY] = installed.get("clozeline", "unknown")
    if "transformers" in installed:
        config["transformers_version"] = installed["transformers"]
    return (json.dumps(config, indent=2) + "\n").encode()
