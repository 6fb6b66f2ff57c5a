"""Removes the head of a fine-tuned folder, so that another task can start from its encoder with a new head.

RTE, MRPC and STS-B start from MNLI in this way (Liu et al., RoBERTa, arXiv:1907.11692, section 5.1). The encoder's
weights are copied bit for bit. transformers initializes the new head, because the folder has no weights for it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import MODEL_MAPPING

from schemas.errors import DataError
from schemas.terminal import OneLineParser
from trainer.command_line import exit_code_of
from trainer.finetune.fingerprint import fingerprint_of
from trainer.finetune.opening import read_config
from trainer.permissions import follow_umask
from trainer.suite.plan import SOURCE_FILE

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
KEYS_OF_HEAD = ("architectures", "id2label", "label2id", "num_labels", "problem_type")
"""Keys of config.json that belong to the task."""


def main(arguments: list[str], prog: str) -> int:
    """Run the command line and return the exit code."""
    flags = OneLineParser(prog=prog)
    flags.add_argument("folder")
    flags.add_argument("--output", required=True)
    return exit_code_of(lambda: _run(flags.parse_args(arguments)))


def _run(options: argparse.Namespace) -> None:
    write_encoder(Path(options.folder), Path(options.output))


def write_encoder(folder: Path, output: Path) -> None:
    """Write the encoder and the tokenizer of a fine-tuned folder to `output`, which appears only when it is complete.

    Raises DataError if the folder has no weights, or none of an encoder.
    """
    prefix = f"{prefix_of(folder)}."
    weights = {name: tensor for name, tensor in read_weights(folder).items() if name.startswith(prefix)}
    if not weights:
        raise DataError(f"{folder} has no weights of an encoder (named {prefix}*). Fine-tune it again.")

    # Write to a temporary folder, which is renamed at the end.
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kept = {key: value for key, value in config.items() if key not in KEYS_OF_HEAD}
    (partial / "config.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")

    for path in sorted(folder.iterdir()):
        is_of_tokenizer = path.is_file() and path.suffix != ".safetensors" and path.name not in ("config.json", INDEX)
        if is_of_tokenizer:
            shutil.copyfile(path, partial / path.name)

    (partial / SOURCE_FILE).write_text(json.dumps({"source": fingerprint_of(str(folder))}) + "\n", encoding="utf-8")
    follow_umask(partial)
    shutil.rmtree(output, ignore_errors=True)
    partial.rename(output)


def prefix_of(folder: Path) -> str:
    """Return the prefix of the encoder's weights in a model with a head, such as "bert", "roberta" or "model"."""
    model_class: Any = MODEL_MAPPING[type(read_config(str(folder)))]
    return model_class.base_model_prefix


def read_weights(folder: Path) -> dict[str, Any]:
    """Return all weights of a folder, which may be split over several files. Raises DataError if they are missing."""
    names = [WEIGHTS]
    if (folder / INDEX).is_file():
        names = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    if not (folder / names[0]).is_file():
        raise DataError(f"{folder} has no {names[0]}. Fine-tune it again.")

    weights: dict[str, Any] = {}
    for name in names:
        weights |= load_file(folder / name)
    return weights
