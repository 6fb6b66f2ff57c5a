"""Reads the config, the tensors and the tokens of a Hugging Face folder. Nothing in it is trusted or executed.

Tensors are read from safetensors only. Pickles (pytorch_model.bin) are refused, because opening one runs whatever code
is in it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas import storage
from schemas.errors import DataError, UsageError
from schemas.vocabulary import TOKENIZER_FILE, parse_vocabulary

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
HF_WEIGHTS_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
WORDPIECE_TOKENS = "vocab.txt"
BYTEBPE_TOKENS = "vocab.json"
PICKLES = ("*model*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def read_config(folder: str) -> dict[str, Any]:
    """Return config.json. Raises UsageError if it does not exist, and DataError if it is not a JSON object."""
    path = Path(folder) / CONFIG
    check_link(path)
    if not path.exists():
        raise UsageError(
            f"{folder} is not a Hugging Face folder: {path} does not exist. Give a folder on this "
            "machine with config.json and model.safetensors."
        )
    return _json_object(path)


def check_link(path: Path) -> None:
    """Raise DataError if a path is a link to nothing, as in a cache of the Hub whose blobs were removed."""
    link = storage.dead_link(str(path))
    if link is not None:
        raise DataError(f"{link} is a link to {os.readlink(link)}, which does not exist. Download it again.")


def read_tensors(folder: str) -> dict[str, Tensor]:
    """Return all floating-point tensors in float32, from one file or from the files that an index names.

    Raises DataError if a file cannot be read, and what `weight_files` raises.
    """
    from safetensors import SafetensorError, safe_open  # the doctor reads shapes without it

    tensors: dict[str, Tensor] = {}
    for path in weight_files(Path(folder)):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  it is not a dict
                    tensor = file.get_tensor(name)
                    if tensor.is_floating_point():
                        tensors[name] = tensor.float()
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path} cannot be read as safetensors ({error}). Download it again.") from error
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder. Whoever opens weights in another way calls this first.

    Raises UsageError if there are none, naming the pickles that the folder holds instead, and DataError if the index
    names files that are missing or outside the folder, or for a link to nothing.
    """
    for name in (HF_WEIGHTS_FILE, INDEX):
        check_link(folder / name)
    if (folder / HF_WEIGHTS_FILE).exists():
        return [folder / HF_WEIGHTS_FILE]
    if (folder / INDEX).exists():
        return _files_of_index(folder)

    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise UsageError(
            f"{folder} holds {', '.join(pickles)} but no {HF_WEIGHTS_FILE}. Opening a pickle runs "
            "whatever code is in it, so none is opened here. Give a folder with safetensors: if you trust the file, "
            "transformers' save_pretrained writes one."
        )
    raise UsageError(f"{folder} holds no {HF_WEIGHTS_FILE}. Give a folder with safetensors.")


def _files_of_index(folder: Path) -> list[Path]:
    """Return the files that an index names. Raises DataError unless all are safetensors that lie next to it."""
    weight_map = dict(_json_object(folder / INDEX).get("weight_map", {}))
    names = sorted({str(name) for name in weight_map.values()})
    wrong = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
    if wrong or not names:
        raise DataError(f"{folder / INDEX} must name safetensors in its own folder, but names {wrong or 'none'}.")

    for name in names:
        check_link(folder / name)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder / INDEX} names {', '.join(missing)}, which {folder} lacks. Download it again.")
    return [folder / name for name in names]


def read_tokens(folder: str) -> tuple[str, ...] | None:
    """Return the tokens in order of their ids, from the first tokenizer file that exists, or None if there is none.

    Raises DataError if the file is damaged, or for a link to nothing.
    """
    for name in (TOKENIZER_FILE, WORDPIECE_TOKENS, BYTEBPE_TOKENS):
        check_link(Path(folder) / name)
    tokenizer = Path(folder) / TOKENIZER_FILE
    if tokenizer.exists():
        return parse_vocabulary(tokenizer.read_bytes(), str(tokenizer)).tokens

    wordpiece = Path(folder) / WORDPIECE_TOKENS
    if wordpiece.exists():
        return tuple(wordpiece.read_text(encoding="utf-8").removesuffix("\n").split("\n"))

    bytebpe = Path(folder) / BYTEBPE_TOKENS
    if bytebpe.exists():
        ids = _json_object(bytebpe)
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
