"""What a Hugging Face folder holds: its config, its tensors, its tokens. Nothing in it is trusted or run.

Tensors are read from safetensors alone. A pickle (pytorch_model.bin) is refused, for opening one runs whatever code is
in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from schemas.errors import DataError, UsageError
from schemas.vocabulary import FILE, parse_vocabulary

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def read_config(folder: str) -> dict[str, Any]:
    """config.json. Raises UsageError when there is no such folder, DataError when the file is not a JSON object."""
    path = Path(folder) / CONFIG
    if not path.exists():
        raise UsageError(
            f"model.init_from {folder} is not a Hugging Face folder: {path} does not exist. Give a folder on this "
            "machine with config.json and model.safetensors."
        )
    return _json_object(path)


def read_tensors(folder: str) -> dict[str, Tensor]:
    """All floating-point tensors in float32, out of one file or of the files that an index names."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(Path(folder)):
        try:
            with safe_open(path, framework="pt") as file:
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is not a dict
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path} cannot be read as safetensors ({error}). Download it again.") from error
        tensors |= {name: tensor.to(torch.float32) for name, tensor in found.items() if tensor.is_floating_point()}
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """Raises UsageError when a folder holds no safetensors, and says so when it holds pickles instead."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        names = sorted({str(name) for name in dict(_json_object(folder / INDEX).get("weight_map", {})).values()})
        outside = [name for name in names if Path(name).name != name]
        if outside or not names:
            raise DataError(f"{folder / INDEX} must name files beside it, but names {outside or 'none'}.")
        return [folder / name for name in names]
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise UsageError(
            f"model.init_from {folder} holds {', '.join(pickles)} but no {WEIGHTS}. Opening a pickle runs whatever "
            "code is in it, so none is opened here. Give a folder with safetensors: where you trust the file, "
            "transformers' save_pretrained writes one."
        )
    raise UsageError(f"model.init_from {folder} holds no {WEIGHTS}. Give a folder with safetensors.")


def read_tokens(folder: str) -> tuple[str, ...] | None:
    """The tokens in order of their ids, from whichever file holds them; None when none does."""
    tokenizer, words, table = (Path(folder) / name for name in (FILE, "vocab.txt", "vocab.json"))
    if tokenizer.exists():
        return parse_vocabulary(tokenizer.read_bytes(), str(tokenizer)).tokens
    if words.exists():
        return tuple(words.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    if table.exists():
        ids = _json_object(table)
        return tuple(sorted(ids, key=lambda token: ids[token]))
    return None


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path} is not JSON ({error}). Download the folder again.") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a JSON object. Download the folder again.")
    return content
