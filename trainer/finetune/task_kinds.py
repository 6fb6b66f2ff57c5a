"""What the task files of each kind have: columns, formats, labels; and the defaults that depend on the kind."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Any

SPAN_MAX_LENGTH = 384
"""The default max_length of spans, that of run_squad.py in https://github.com/google-research/bert."""

SPAN_STRIDE = 128
"""The default stride of spans, that of run_squad.py. Shorter rows have a shorter one."""

ROW_FORMATS = ("jsonl", "json", "tsv", "csv", "parquet")
"""Formats whose columns have names (TSV and CSV files only if they have a header)."""

COLUMNS_OF_FORMAT: dict[str, dict[str, Any]] = {
    "conll": {"words": 0, "tags": -1},
    # the columns that read_c3 of trainer/finetune/files/json_files.py returns
    "c3": {"context": "context", "prefix": "prefix", "choices": "choices", "label": "label"},
}
"""Default columns of the formats whose files do not name them."""

CONLLU = ".conllu"
COLUMNS_OF_CONLLU = {"words": 1, "tags": 3}
"""The form of a word and its part of speech (UPOS), as https://universaldependencies.org/format.html has them."""

FORMAT_OF_ENDING = {
    **{f".{name}": name for name in ("jsonl", "tsv", "csv", "parquet", "conll")},
    CONLLU: "conll",
    ".json": "jsonl",
    ".txt": "tsv",
}

METRICS_OF_NUMBERS = ("pearson_and_spearman", "pearson", "spearman")
"""The default metrics of a regression."""


@dataclass(frozen=True)
class KindRules:
    """What a task file of one kind may have.

    columns: those that the files must have, which are also the default names. formats: of the files.
    optional: the columns that the files may have, in addition to "id".
    endings: formats by the ending of a file, where the kind differs from others.
    metrics: the default ones.
    has_labels: whether data.labels may name the labels.
    one_label: whether an example has one label, so that it may be a number or one of data.skip_labels.
    """

    columns: tuple[str, ...]
    formats: tuple[str, ...]
    optional: tuple[str, ...] = ()
    endings: dict[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ("accuracy",)
    has_labels: bool = True
    one_label: bool = False


RULES = {
    "sentence": KindRules(("text", "label"), ROW_FORMATS, one_label=True),
    "pair": KindRules(("text", "text_pair", "label"), ROW_FORMATS, one_label=True),
    "choice": KindRules(("context", "choices", "label"), (*ROW_FORMATS, "c3"), optional=("prefix",)),
    "tags": KindRules(
        ("words", "tags"),
        ("jsonl", "json", "parquet", "conll"),
        endings={".txt": "conll"},
        metrics=("chunk_f1",),
    ),
    "span": KindRules(
        (), ("squad", "parquet"), endings={".json": "squad"}, metrics=("answer_f1", "exact_match"), has_labels=False
    ),
}


def fill_defaults(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a task file with defaults filled in. Invalid values stay, for the schema to report."""
    # An unknown kind gets the defaults of a known one, so that the schema reports only the kind as wrong.
    kind = content.get("kind")
    kind = kind if isinstance(kind, str) and kind in RULES else "sentence"
    data = content.get("data")
    if not isinstance(data, dict):
        return {"metrics": RULES[kind].metrics, **content}

    metrics = METRICS_OF_NUMBERS if data.get("labels") == "number" else RULES[kind].metrics
    filled = {"metrics": metrics, **content, "data": _fill_data(data, kind)}

    training = content.get("training", {})
    if kind == "span" and isinstance(training, dict):
        filled["training"] = {**_defaults_of_windows(training), **training}
    return filled


def _defaults_of_windows(training: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of [training] for the kind span. training: what the file sets."""
    max_length = training.get("max_length", SPAN_MAX_LENGTH)
    if not isinstance(max_length, int):
        # The schema reports it.
        max_length = SPAN_MAX_LENGTH

    # In short rows, too, two windows share at most a third of a row, as in run_squad.py.
    return {"max_length": SPAN_MAX_LENGTH, "stride": max(0, min(SPAN_STRIDE, max_length // 3))}


def _fill_data(data: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return [data] with the defaults of its format, columns and quotes filled in."""
    filled = dict(data)
    file_format = data.get("format") or format_of(data.get("train"), kind)
    if file_format is not None:
        filled["format"] = file_format

    defaults: dict[str, Any] = {}
    has_names = file_format not in ("tsv", "csv") or data.get("header", True) is True
    if file_format in ROW_FORMATS and has_names:
        defaults = {column: column for column in RULES[kind].columns + RULES[kind].optional}
    elif file_format == "conll" and ending_of(data.get("train")) == CONLLU:
        defaults = COLUMNS_OF_CONLLU
    elif isinstance(file_format, str):
        defaults = COLUMNS_OF_FORMAT.get(file_format, {})

    columns = data.get("columns", {})
    if isinstance(columns, dict):
        filled["columns"] = {**defaults, **columns}

    filled.setdefault("quotes", file_format == "csv")
    return filled


def format_of(train: Any, kind: str) -> str | None:
    """Return the format that the training file's extension implies, or None if it implies none."""
    endings = FORMAT_OF_ENDING | (RULES[kind].endings if kind in RULES else {})
    return endings.get(ending_of(train))


def ending_of(train: Any) -> str:
    """Return the ending of the first training file, in lower case."""
    first = train[0] if isinstance(train, list) and train else train
    # The schema reports the wrong value of data.train, so any ending will do here.
    return posixpath.splitext(first)[1].lower() if isinstance(first, str) else ".jsonl"
