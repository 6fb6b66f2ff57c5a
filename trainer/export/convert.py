"""`python -m trainer.export RUN_DIR --output HF_DIR`: a checkpoint as a Hugging Face folder.

config.json  model.safetensors  README.md  tokenizer.json ...   transformers' Auto classes load them as they are

The files are written into a scratch folder and, where transformers is installed, loaded there and compared with our
model and our vocabulary; only then are they copied to HF_DIR.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from schemas import storage
from schemas.errors import CheckpointError, ClozelineError, UsageError
from schemas.vocabulary import FOLDER, Vocabulary, read_vocabulary
from trainer.checkpoint import layout as checkpoints
from trainer.checkpoint.remote_sync import bring_run
from trainer.checkpoint.safetensors_io import TensorFile
from trainer.cli import Parser
from trainer.config.changes import flatten
from trainer.config.load import load_recipe
from trainer.config.schema import Recipe
from trainer.distributed.preemption import INTERRUPTED
from trainer.export.folder import check_output, publish_folder, scratch_folder, scratch_room, tokenizer_files
from trainer.export.model_card import model_card
from trainer.export.verify import check_export
from trainer.models.families import encoder_shape
from trainer.models.hf_convert import config_of, to_theirs
from trainer.models.pretraining import PretrainingModel


def main(arguments: list[str] | None = None) -> int:
    """Export and return the process's exit code."""
    try:
        options = parser().parse_args(arguments)
        print(export(options.run, options.output, options.step, options.best, options.overwrite))
        return 0
    except ClozelineError as error:
        print(f"clozeline: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("clozeline: interrupted. The run is as it was; run the same command again.", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="python -m trainer.export", description="A checkpoint as a Hugging Face folder.", allow_abbrev=False
    )
    top.add_argument("run", metavar="RUN_DIR", help="the run.output of a recipe")
    top.add_argument("--output", required=True, metavar="HF_DIR", help="folder to write, outside of RUN_DIR")
    which = top.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="which checkpoint; the newest by default")
    which.add_argument("--best", action="store_true", help="the checkpoint with the lowest loss on held-out pairs")
    top.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an earlier export in HF_DIR, and nothing else",
    )
    return top


def export(run: str, output: str, step: int | None, best: bool = False, overwrite: bool = False) -> str:
    """Write the folder and return a sentence about it.

    Raises UsageError when the run or the step does not exist or `output` is no place for it, CheckpointError when the
    checkpoint does not verify, does not belong to the run folder, or the exported folder computes something else,
    DataError when the run's vocabulary is damaged, StorageError when something cannot be written. `output` is then as
    it was, except after a failure while the checked files are copied into it.
    """
    check_output(run, output, overwrite)
    check_saved(run, step)
    if best:
        step = best_step(run)

    with available_steps(run, step) as (folder, faults), scratch_folder() as aside:
        path = find_checkpoint(folder, step, faults)
        recipe = load_recipe(str(Path(folder) / "recipe.toml"), [])
        vocabulary = read_vocabulary(str(Path(folder) / FOLDER))
        check_belongs(path, recipe, vocabulary)
        model = read_model(path, recipe, vocabulary)
        texts = tokenizer_files(Path(folder) / FOLDER, model.shape)
        texts |= {
            "README.md": model_card(folder, path, recipe).encode(),
            "config.json": config_json(model, vocabulary),
        }

        with scratch_room(aside, model):
            write_folder(aside, model, texts)
        difference = check_export(aside, model, vocabulary)
        publish_folder(aside, output)

    told = "unchecked, for transformers is not installed" if difference is None else f"checked, to {difference:.0e}"
    checkpoint = storage.join(run, checkpoints.FOLDER, path.name)
    return f"{output}: exported {checkpoint} ({told}). Load it with transformers' AutoModelForPreTraining."


def best_step(run: str) -> int:
    """Return the step with the lowest loss on held-out pairs. Raises UsageError when none was evaluated."""
    with storage.storage_errors_of(run):
        step = checkpoints.best(run)
    if step is None:
        raise UsageError(
            f"--best: no checkpoint of {run} was evaluated. Train with evaluation.pairs, or choose one with --step."
        )
    return step


def check_belongs(path: Path, recipe: Recipe, vocabulary: Vocabulary) -> None:
    """Raises CheckpointError when a run folder's recipe or vocabulary is not what its checkpoint was trained with."""
    saved = checkpoints.read_state(path).identity
    now = {
        "model": recipe.model.model_dump(exclude_none=True, exclude={"init_from", "vocabulary"}),
        "vocabulary": vocabulary.fingerprint,
    }
    checkpoints.check_identity(path, flatten({name: saved.get(name) for name in now}), flatten(now))


def read_model(path: Path, recipe: Recipe, vocabulary: Vocabulary) -> PretrainingModel:
    """The model of a checkpoint, in float32."""
    with torch.device("meta"):
        model = PretrainingModel(encoder_shape(recipe.model, vocabulary.size))
    with TensorFile(path / checkpoints.WEIGHTS):
        pass  # raises CheckpointError for a file that the library would stumble over
    model.load_state_dict(load_file(path / checkpoints.WEIGHTS), assign=True)
    return model.eval()


def config_json(model: PretrainingModel, vocabulary: Vocabulary) -> bytes:
    """Return the model's config.json, with its dtype and the versions that wrote it."""
    versions = {"clozeline_version": "clozeline", "transformers_version": "transformers"}
    config = config_of(model.shape, vocabulary) | {"dtype": "float32"}
    config["clozeline_version"] = "unknown"  # of a copy that is not installed; --overwrite asks for the key
    for key, package in versions.items():
        with contextlib.suppress(PackageNotFoundError):
            config[key] = version(package)
    return (json.dumps(config, indent=2) + "\n").encode()


def write_folder(folder: Path, model: PretrainingModel, texts: dict[str, bytes]) -> None:
    """Write the weights and all other files, given by name."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_file(to_theirs(weights, model.shape.family), folder / "model.safetensors", {"format": "pt"})
    for name, content in texts.items():
        (folder / name).write_bytes(content)


def check_saved(run: str, step: int | None) -> None:
    """Raises UsageError when a run, which may be a URL, has no checkpoint, or none of this step."""
    with storage.storage_errors_of(run):
        saved = checkpoints.steps_saved(run)
    if not saved:
        raise UsageError(f"{run} holds no checkpoint. Give the run.output of a recipe that has been trained.")
    if step is not None and step not in saved:
        raise UsageError(f"{run} holds no checkpoint of step {step}. It holds {', '.join(map(str, saved))}.")


@contextlib.contextmanager
def available_steps(run: str, step: int | None) -> Iterator[tuple[str, list[str]]]:
    """Yield the run's folder, or one that holds what is needed of a run at a URL, and faults of newer checkpoints."""
    if storage.is_local(run):
        yield run, []
        return
    with tempfile.TemporaryDirectory() as folder:
        with storage.storage_errors_of(run):
            faults = bring_run(run, folder, step)
        yield folder, faults


def find_checkpoint(run: str, step: int | None, faults: list[str]) -> Path:
    """Return the checkpoint to export, of those that a local folder holds.

    `faults` says what was wrong with newer ones that were not brought here. Raises CheckpointError when the one asked
    for, or the newest, does not verify: an older one is exported only by its step.
    """
    if step is None:
        found = checkpoints.newest(run)
        assert found is not None
        path, damaged = found
        if faults or damaged:
            raise CheckpointError(
                f"The newest checkpoint does not verify: {'; '.join([*faults, *damaged])}. "
                f"To export the newest that does, add --step {checkpoints.read_state(path).step}."
            )
        return path
    path = checkpoints.checkpoint_path(run, step)
    fault = checkpoints.verify(path)
    if fault is not None:
        raise CheckpointError(f"{path} does not verify: {fault}. Export another step.")
    return path


if __name__ == "__main__":
    raise SystemExit(main())
