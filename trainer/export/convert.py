"""Exports a checkpoint as a Hugging Face folder: `python -m trainer.export RUN_DIR --output HF_DIR`.

The folder holds config.json, model.safetensors (or several files of at most --max_shard_gigabytes and their index, see
shards.py), README.md (a model card) and the tokenizer's files, and transformers' Auto classes load it without any of
our code.

All files are first written into a temporary folder. If transformers is installed, it loads them there, and its logits
and token ids are compared with ours. Only then are the files copied to HF_DIR.

Memory stays far below the size of the weights: files are written and copied piece by piece, and for the comparison both
models read their weights from mapped files, whose pages the system can drop at any time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from safetensors.torch import load_file

from schemas import storage
from schemas.errors import ClozelineError
from schemas.vocabulary import VOCABULARY_FOLDER as VOCABULARY_FOLDER
from schemas.vocabulary import Vocabulary, read_vocabulary
from trainer.checkpoint.layout import CHECKPOINTS_FOLDER as CHECKPOINTS_FOLDER
from trainer.checkpoint.layout import WEIGHTS_FILE
from trainer.checkpoint.safetensors_io import TensorFile
from trainer.cli import RecipeParser
from trainer.config.load import load_recipe
from trainer.config.schema import Recipe
from trainer.distributed.preemption import INTERRUPTED
from trainer.export.folder import (
    VERSION_KEY,
    check_output,
    publish_export,
    room_errors_named,
    scratch_folder,
    tokenizer_files,
)
from trainer.export.model_card import model_card
from trainer.export.shards import DEFAULT_SHARD_GIGABYTES, write_weights
from trainer.export.source import (
    check_belongs,
    check_saved,
    choose_checkpoint,
    local_copy,
    step_with_lowest_loss,
)
from trainer.export.verify import check_export
from trainer.logs import logger
from trainer.models.families import encoder_shape
from trainer.models.hf_convert import hf_config
from trainer.models.pretraining import PretrainingModel


@dataclass(frozen=True)
class Writing:
    """How an export is written. overwrite: an earlier export may be replaced. max_shard_bytes: of weights in a file."""

    overwrite: bool = False
    max_shard_bytes: int = int(DEFAULT_SHARD_GIGABYTES * 10**9)


def main(arguments: list[str] | None = None, prog: str = "python -m trainer.export") -> int:
    """Export and return the process's exit code. prog: the command's name in help and errors."""
    try:
        options = parser(prog).parse_args(arguments)
        writing = Writing(options.overwrite, int(options.max_shard_gigabytes * 10**9))
        message = export(options.run, options.output, options.step, options.best, writing)
        logger.info("%s", message)
        return 0
    except ClozelineError as error:
        logger.error("%s", error)
        return error.exit_code
    except KeyboardInterrupt:
        logger.error("interrupted. The run was not changed; run the same command again.")
        return INTERRUPTED


def parser(prog: str = "python -m trainer.export") -> argparse.ArgumentParser:
    top = RecipeParser(prog=prog, description="Write a checkpoint as a Hugging Face folder.", allow_abbrev=False)
    top.add_argument("run", metavar="RUN_DIR", help="run.output of the recipe: a folder or a URL")
    top.add_argument("--output", required=True, metavar="HF_DIR", help="folder to write, outside of RUN_DIR")

    which = top.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="export the checkpoint of this step; the newest by default")
    which.add_argument("--best", action="store_true", help="export the checkpoint with the lowest held-out loss")

    top.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the files of an earlier export in HF_DIR; other files are kept",
    )
    top.add_argument(
        "--max_shard_gigabytes",
        type=_gigabytes,
        default=DEFAULT_SHARD_GIGABYTES,
        metavar="GB",
        help="cut larger weights into several files of at most this size (default: %(default)g)",
    )
    return top


def _gigabytes(text: str) -> float:
    """Return a positive number of gigabytes. argparse turns the error into its own."""
    gigabytes = float(text)
    if not 0 < gigabytes < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of gigabytes")
    return gigabytes


def export(run: str, output: str, step: int | None, best: bool = False, writing: Writing | None = None) -> str:
    """Write the folder and return a sentence about it.

    Raises UsageError when the run or the step does not exist or `output` is not a place for an export, CheckpointError
    when the checkpoint does not verify, does not belong to the run folder, or the exported folder computes something
    else, DataError when the run's vocabulary is damaged, and StorageError when something cannot be written. `output`
    is then unchanged, except after a failure while the checked files are being copied into it.
    """
    writing = writing or Writing()
    check_output(run, output, writing.overwrite)
    check_saved(run, step)
    if best:
        step = step_with_lowest_loss(run)

    with local_copy(run, step) as (folder, faults), scratch_folder() as scratch:
        checkpoint = choose_checkpoint(folder, step, faults)
        recipe = load_recipe(str(Path(folder) / "recipe.toml"), [])
        vocabulary = read_vocabulary(str(Path(folder) / VOCABULARY_FOLDER))
        check_belongs(checkpoint, recipe, vocabulary)
        model = read_model(checkpoint, recipe, vocabulary)

        files = tokenizer_files(Path(folder) / VOCABULARY_FOLDER, model.shape)
        files["README.md"] = model_card(folder, checkpoint, recipe).encode()
        files["config.json"] = config_json(model, vocabulary)
        with room_errors_named(scratch, model):
            write_weights(checkpoint / WEIGHTS_FILE, scratch, model.shape.family, writing.max_shard_bytes)
            for name, content in files.items():
                (scratch / name).write_bytes(content)

        difference = check_export(scratch, model, vocabulary)
        publish_export(scratch, output)

    check = "not checked, because transformers is not installed"
    if difference is not None:
        check = f"checked, to {difference:.0e}"
    source = storage.join(run, CHECKPOINTS_FOLDER, checkpoint.name)
    return f"{output}: exported {source} ({check}). Load it with transformers' AutoModelForPreTraining."


def read_model(path: Path, recipe: Recipe, vocabulary: Vocabulary) -> PretrainingModel:
    """Return the model of a checkpoint, in float32. Its weights are pages of the mapped file."""
    # On the meta device no memory is allocated for weights that load_state_dict replaces.
    with torch.device("meta"):
        model = PretrainingModel(encoder_shape(recipe.model, vocabulary.size))

    # Opening it raises CheckpointError for a malformed file, for which load_file would raise something obscure.
    with TensorFile(path / WEIGHTS_FILE):
        pass
    model.load_state_dict(load_file(path / WEIGHTS_FILE), assign=True)
    return model.eval()


def config_json(model: PretrainingModel, vocabulary: Vocabulary) -> bytes:
    """Return the model's config.json, with its dtype and the versions that wrote it."""
    config = hf_config(model.shape, vocabulary)
    config["dtype"] = "float32"

    # Always present, because --overwrite recognizes an export by it. A copy that is not installed has no version.
    config[VERSION_KEY] = "unknown"
    for key, package in ((VERSION_KEY, "clozeline"), ("transformers_version", "transformers")):
        with contextlib.suppress(PackageNotFoundError):
            config[key] = version(package)
    return (json.dumps(config, indent=2) + "\n").encode()
