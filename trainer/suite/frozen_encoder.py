"""Opens an encoder for the jobs that score it without fine-tuning it: minimal pairs and linear probes."""

from __future__ import annotations

import os
from typing import Any

import torch

from schemas.command_line import CommandParser
from schemas.randomness import key
from trainer.finetune.opening import open_weights, read_config


def job_parser(prog: str, required: tuple[str, ...]) -> CommandParser:
    """Return the parser of a job with FOLDER, the required flags, and --random_weights."""
    flags = CommandParser(prog)
    flags.add_argument("folder")
    for name in required:
        flags.add_argument(name, required=True)
    flags.add_argument("--random_weights", action="store_true")
    return flags


def device_of_job() -> str:
    """Return the device of this job: "cuda" if its slot has a GPU and DS_ACCELERATOR allows it, otherwise "cpu".

    Fine-tuning follows the same variable, because DeepSpeed reads it.
    """
    may_use_gpu = os.environ.get("DS_ACCELERATOR", "cuda") == "cuda"
    return "cuda" if may_use_gpu and torch.cuda.is_available() else "cpu"


def open_model(auto_class: Any, folder: str, random_weights: bool) -> tuple[Any, list[str]]:
    """Return a folder's model, and the names of the weights that the folder lacks.

    The model is in float32, in evaluation mode and on the job's device.
    auto_class: an Auto class of transformers, such as AutoModel.
    random_weights: use random weights from a fixed seed, and read only the shape from the folder.
    Raises UsageError if transformers cannot open the folder, and DataError if its weights are damaged.
    """
    config = read_config(folder)
    # Weights that the folder lacks are random as well, so seed in either case.
    torch.manual_seed(key("suite", "weights") >> 1)
    if random_weights:
        model, missing = auto_class.from_config(config), []
    else:
        model, loading_info = open_weights(auto_class, folder)
        missing = sorted(loading_info["missing_keys"])
    return model.float().eval().to(device_of_job()), missing
