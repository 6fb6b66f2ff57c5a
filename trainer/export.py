"""`python -m trainer.export RUN_DIR --output HF_DIR`: a checkpoint as a Hugging Face folder.

config.json  model.safetensors  README.md  tokenizer.json ...   transformers' Auto classes load them as they are

The folder is written aside and, where transformers is installed, loaded there and compared with our model; only then
does it take its name.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
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
    path = find_checkpoint(run, step)
    recipe = load_recipe(str(Path(run) / "recipe.toml"), [])
    vocabulary = read_vocabulary(str(Path(run) / FOLDER))
    model = read_model(path, recipe, vocabulary)
    with tempfile.TemporaryDirectory(suffix=storage.PARTIAL) as aside:
        write_folder(Path(aside), model, vocabulary, model_card(run, path, recipe))
        for name in storage.names(str(Path(run) / FOLDER)):
            storage.publish(str(Path(aside) / name), storage.read(str(Path(run) / FOLDER / name)), durable=False)
        difference = check_export(Path(aside), model, vocabulary)
        for file in sorted(Path(aside).iterdir()):
            storage.publish(storage.join(output, file.name), file.read_bytes())
    told = "unchecked, for transformers is not installed" if difference is None else f"checked, to {difference:.0e}"
    return f"{output}: exported {path} ({told}). Load it with transformers' AutoModelForPreTraining."


def read_model(path: Path, recipe: Recipe, vocabulary: Vocabulary) -> PretrainingModel:
    """The model of a checkpoint, in float32."""
    with torch.device("meta"):
        model = PretrainingModel(encoder_shape(recipe.model, vocabulary.size))
    model.load_state_dict(load_file(path / checkpoints.WEIGHTS), assign=True)
    return model.eval()


def write_folder(folder: Path, model: PretrainingModel, vocabulary: Vocabulary, card: str) -> None:
    """All but the tokenizer's files."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_file(to_theirs(weights, model.shape.family), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_of(model.shape, vocabulary), indent=2) + "\n")
    (folder / "README.md").write_text(card)


def find_checkpoint(run: str, step: int | None) -> Path:
    saved = checkpoints.steps_saved(run)
    if not saved:
        raise UsageError(f"{run} holds no checkpoint. Give the run.output of a recipe that has been trained.")
    if step is None:
        found = checkpoints.newest(run)
        assert found is not None
        return found[0]
    if step not in saved:
        raise UsageError(f"{run} holds no checkpoint of step {step}. It holds {', '.join(map(str, saved))}.")
    path = checkpoints.checkpoint_path(run, step)
    fault = checkpoints.verify(path)
    if fault is not None:
        raise CheckpointError(f"{path} does not verify: {fault}. Export another step.")
    return path


if __name__ == "__main__":
    raise SystemExit(main())
