"""What a task file may leave out, by the kind of its task."""

from __future__ import annotations

import posixpath
from typing import Any

from trainer.finetune.metrics.table import default_metrics

TRAINING: dict[str, dict[str, Any]] = {
    # run_squad.py of https://github.com/google-research/bert
    "span": {"max_length": 384, "stride": 128},
}
"""Defaults that differ from those in the schema."""

COLUMNS: dict[str, dict[str, Any]] = {
    "conll": {"words": 0, "tags": -1},
    # what trainer/finetune/files/c3.py makes of the file
    "c3": {"context": "context", "prefix": "prefix", "choices": "choices", "label": "label"},
}
"""Columns of formats that do not name them."""

ROLES = {
    "sentence": ["text", "label"],
    "pair": ["text", "text_pair", "label"],
    "choice": ["context", "choices", "label"],
    "tags": ["words", "tags"],
    "span": [],
}
"""What the columns of each kind hold. A file whose columns have these names needs no [data.columns]."""

NAMED_COLUMNS = {"jsonl", "json", "tsv", "csv"}
"""Formats whose columns have names, if there is a header."""

FORMATS = {".jsonl": "jsonl", ".json": "jsonl", ".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".conll": "conll"}
FORMATS_OF_KIND = {"span": {".json": "squad"}, "tags": {".txt": "conll"}}


def fill_defaults(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a task file with what it leaves out. Wrong values stay for the schema to name."""
    data = content.get("data")
    if not isinstance(data, dict):
        return content

    # An unknown kind gets the defaults of another one, so that the schema reports nothing but the kind.
    kind = content.get("kind")
    kind = kind if isinstance(kind, str) and kind in ROLES else "sentence"

    filled = {"metrics": default_metrics(kind, data.get("labels") == "number"), **content}
    filled["data"] = fill_data(data, kind)

    training = content.get("training", {})
    if isinstance(training, dict):
        filled["training"] = {**TRAINING.get(kind, {}), **training}
    return filled


def fill_data(data: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return [data] with the format of its files and whether quotes enclose fields."""
    filled = dict(data)
    file_format = data.get("format") or format_of(data.get("train"), kind)
    if file_format is not None:
        filled["format"] = file_format

    if file_format in COLUMNS:
        filled["columns"] = {**COLUMNS[file_format], **data.get("columns", {})}

    if file_format in NAMED_COLUMNS and data.get("header", True) is True:
        filled.setdefault("columns", {role: role for role in ROLES[kind]})

    filled.setdefault("quotes", file_format == "csv")
    return filled


def format_of(train: Any, kind: str) -> str | None:
    """Return the format that the ending of the training file stands for, None if it stands for none."""
    first = train[0] if isinstance(train, list) and train else train
    if not isinstance(first, str):
        # The schema reports the wrong value of data.train, so any format will do here.
        return "jsonl"

    ending = posixpath.splitext(first)[1].lower()
    return FORMATS_OF_KIND.get(kind, {}).get(ending) or FORMATS.get(ending)
