"""Defaults of a task file that depend on the kind of the task or the format of its files."""

from __future__ import annotations

import posixpath
from typing import Any

from trainer.finetune.metrics.table import default_metrics

SPAN_MAX_LENGTH = 384
"""The default max_length of spans, that of run_squad.py in https://github.com/google-research/bert."""

SPAN_STRIDE = 128
"""The default stride of spans, that of run_squad.py. Shorter rows have a shorter one."""

COLUMNS: dict[str, dict[str, Any]] = {
    "conll": {"words": 0, "tags": -1},
    # the columns that trainer/finetune/files/c3.py returns
    "c3": {"context": "context", "prefix": "prefix", "choices": "choices", "label": "label"},
}
"""Default columns of the formats whose files do not name them."""

ROLES = {
    "sentence": ["text", "label"],
    "pair": ["text", "text_pair", "label"],
    "choice": ["context", "prefix", "choices", "label"],
    "tags": ["words", "tags"],
    "span": [],
}
"""The default column names of each kind. A file whose columns have these names needs no [data.columns]."""

OPTIONAL_ROLES = ("prefix",)
"""Roles that a file may lack. They are read if a column has their name."""

NAMED_COLUMNS = {"jsonl", "json", "tsv", "csv"}
"""Formats whose columns have names (TSV and CSV files only if they have a header)."""

FORMATS = {".jsonl": "jsonl", ".json": "jsonl", ".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".conll": "conll"}
FORMATS_OF_KIND = {"span": {".json": "squad"}, "tags": {".txt": "conll"}}


def fill_defaults(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a task file with defaults filled in. Invalid values stay, for the schema to report."""
    data = content.get("data")
    if not isinstance(data, dict):
        return content

    # An unknown kind gets the defaults of a known one, so that the schema reports only the kind as wrong.
    kind = content.get("kind")
    kind = kind if isinstance(kind, str) and kind in ROLES else "sentence"

    filled = {"metrics": default_metrics(kind, data.get("labels") == "number"), **content}
    filled["data"] = fill_data(data, kind)

    training = content.get("training", {})
    if isinstance(training, dict):
        filled["training"] = {**training_defaults(kind, training), **training}
    return filled


def training_defaults(kind: str, training: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of [training] that differ from those in the schema. training: what the file sets."""
    if kind != "span":
        return {}

    max_length = training.get("max_length", SPAN_MAX_LENGTH)
    if not isinstance(max_length, int):
        # The schema reports it.
        max_length = SPAN_MAX_LENGTH

    # In short rows, too, two windows share at most a third of a row, as in run_squad.py.
    stride = max(0, min(SPAN_STRIDE, max_length // 3))
    return {"max_length": SPAN_MAX_LENGTH, "stride": stride}


def fill_data(data: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return [data] with the defaults of its format, columns and quotes filled in."""
    filled = dict(data)
    file_format = data.get("format") or format_of(data.get("train"), kind)
    if file_format is not None:
        filled["format"] = file_format

    defaults: dict[str, Any] = {}
    if isinstance(file_format, str):
        defaults = COLUMNS.get(file_format, {})
        if file_format in NAMED_COLUMNS and data.get("header", True) is True:
            defaults = {role: role for role in ROLES[kind]}

    columns = data.get("columns", {})
    if isinstance(columns, dict):
        filled["columns"] = {**defaults, **columns}

    filled.setdefault("quotes", file_format == "csv")
    return filled


def format_of(train: Any, kind: str) -> str | None:
    """Return the format that the training file's extension implies, or None if it implies none."""
    first = train[0] if isinstance(train, list) and train else train
    if not isinstance(first, str):
        # The schema reports the wrong value of data.train, so any format will do here.
        return "jsonl"

    ending = posixpath.splitext(first)[1].lower()
    return FORMATS_OF_KIND.get(kind, {}).get(ending) or FORMATS.get(ending)
