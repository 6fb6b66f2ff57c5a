"""`python -m trainer.export RUN_DIR --output HF_DIR`: a checkpoint as a Hugging Face folder.

config.json  model.safetensors  tokenizer.json ...   AutoModelForPreTraining and AutoTokenizer load them as they are
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from safetensors.torch import load_file, save

from schemas import storage
from schemas.errors import CheckpointError, ClozelineError, UsageError
from schemas.vocabulary import FOLDER, read_vocabulary
from trainer import checkpoints
from trainer.command_line import Parser
from trainer.models.families import encoder_shape
from trainer.models.huggingface import config_of, to_theirs
from trainer.recipe import load_recipe


def main(arguments: list[str] | None = None) -> int:
    """Export and return the process's exit code."""
    try:
        options = parser().parse_args(arguments)
        path = export(options.run, options.output, options.step)
        print(f"{options.output}: exported {path}. Load it with transformers' AutoModelForPreTraining.")
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


def export(run: str, output: str, step: int | None) -> Path:
    """Write the folder and return the checkpoint it came from.

    Raises UsageError when the run or the step does not exist, CheckpointError when the checkpoint does not verify.
    """
    path = find_checkpoint(run, step)
    recipe = load_recipe(str(Path(run) / "recipe.toml"), [])
    vocabulary = read_vocabulary(str(Path(run) / FOLDER))
    shape = encoder_shape(recipe.model, vocabulary.size)
    weights = to_theirs(load_file(path / checkpoints.WEIGHTS), shape.family)
    config = json.dumps(config_of(shape, vocabulary), indent=2) + "\n"
    storage.publish(storage.join(output, "config.json"), config.encode())
    storage.publish(storage.join(output, "model.safetensors"), save(weights, metadata={"format": "pt"}))
    for name in storage.names(str(Path(run) / FOLDER)):
        storage.publish(storage.join(output, name), storage.read(str(Path(run) / FOLDER / name)))
    return path


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
