"""`python -m trainer.export RUN_DIR --output HF_DIR`: a checkpoint as a Hugging Face folder.

config.json  model.safetensors  README.md  tokenizer.json ...   transformers' Auto classes load them as they are

The folder is written aside and, where transformers is installed, loaded there and compared with our model; only then
does it take its name.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from schemas import storage
from schemas.errors import CheckpointError, ClozelineError, UsageError
from schemas.vocabulary import FOLDER, Vocabulary, read_vocabulary
from trainer import checkpoints
from trainer.command_line import Parser
from trainer.export_check import check_export
from trainer.model_card import model_card
from trainer.models.families import encoder_shape
from trainer.models.huggingface import config_of, to_theirs
from trainer.models.pretraining import PretrainingModel
from trainer.recipe import load_recipe
from trainer.recipe_sections import Recipe
from trainer.remote_run import bring_run, reaching
from trainer.tensor_files import TensorFile


def main(arguments: list[str] | None = None) -> int:
    """Export and return the process's exit code."""
    try:
        options = parser().parse_args(arguments)
        print(export(options.run, options.output, options.step))
        return 0
    except ClozelineError as error:
        print(f"clozeline: {error}", file=sys.stderr)
        return error.exit_code


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="python -m trainer.export", description="A checkpoint as a Hugging Face folder.", allow_abbrev=False
    )
    top.add_argument("run", metavar="RUN_DIR", help="the run.output of a recipe")
    top.add_argument("--output", required=True, metavar="HF_DIR", help="folder to write")
    top.add_argument("--step", type=int, help="which checkpoint; the newest by default")
    return top


def export(run: str, output: str, step: int | None) -> str:
    """Write the folder and return what to tell of it.

    Raises UsageError when the run or the step does not exist, CheckpointError when the checkpoint does not verify or
    the folder computes something else than our model; `output` is then as it was.
    """
    check_saved(run, step)
    with at_hand(run, step) as folder, tempfile.TemporaryDirectory(suffix=storage.PARTIAL) as aside:
        path = find_checkpoint(folder, step)
        recipe = load_recipe(str(Path(folder) / "recipe.toml"), [])
        vocabulary = read_vocabulary(str(Path(folder) / FOLDER))
        model = read_model(path, recipe, vocabulary)
        write_folder(Path(aside), model, vocabulary, model_card(folder, path, recipe))
        for name in storage.names(str(Path(folder) / FOLDER)):
            storage.publish(str(Path(aside) / name), storage.read(str(Path(folder) / FOLDER / name)), durable=False)
        difference = check_export(Path(aside), model, vocabulary)
        for file in sorted(Path(aside).iterdir()):
            storage.publish(storage.join(output, file.name), file.read_bytes())
    told = "unchecked, for transformers is not installed" if difference is None else f"checked, to {difference:.0e}"
    checkpoint = storage.join(run, checkpoints.FOLDER, path.name)
    return f"{output}: exported {checkpoint} ({told}). Load it with transformers' AutoModelForPreTraining."


def read_model(path: Path, recipe: Recipe, vocabulary: Vocabulary) -> PretrainingModel:
    """The model of a checkpoint, in float32."""
    with torch.device("meta"):
        model = PretrainingModel(encoder_shape(recipe.model, vocabulary.size))
    with TensorFile(path / checkpoints.WEIGHTS):
        pass  # raises CheckpointError for a file that the library would stumble over
    model.load_state_dict(load_file(path / checkpoints.WEIGHTS), assign=True)
    return model.eval()


def write_folder(folder: Path, model: PretrainingModel, vocabulary: Vocabulary, card: str) -> None:
    """All but the tokenizer's files."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_file(to_theirs(weights, model.shape.family), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_of(model.shape, vocabulary), indent=2) + "\n")
    (folder / "README.md").write_text(card)


def check_saved(run: str, step: int | None) -> None:
    """Raises UsageError when a run, which may be a URL, has no checkpoint, or none of this step."""
    with reaching(run):
        saved = checkpoints.steps_saved(run)
    if not saved:
        raise UsageError(f"{run} holds no checkpoint. Give the run.output of a recipe that has been trained.")
    if step is not None and step not in saved:
        raise UsageError(f"{run} holds no checkpoint of step {step}. It holds {', '.join(map(str, saved))}.")


@contextlib.contextmanager
def at_hand(run: str, step: int | None) -> Iterator[str]:
    """The run's folder, or one that holds what is needed of a run at a URL."""
    if storage.is_local(run):
        yield run
        return
    with tempfile.TemporaryDirectory() as folder:
        with reaching(run):
            bring_run(run, folder, step)
        yield folder


def find_checkpoint(run: str, step: int | None) -> Path:
    """The checkpoint to export, of those that a local folder holds. Raises CheckpointError when it does not verify."""
    if step is None:
        found = checkpoints.newest(run)
        assert found is not None
        return found[0]
    path = checkpoints.checkpoint_path(run, step)
    fault = checkpoints.verify(path)
    if fault is not None:
        raise CheckpointError(f"{path} does not verify: {fault}. Export another step.")
    return path


if __name__ == "__main__":
    raise SystemExit(main())
