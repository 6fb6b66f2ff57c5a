"""Reads Parquet files, as the Hugging Face Hub has them for most datasets."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas import storage
from schemas.errors import DataError
from trainer.finetune.files.json_files import rows_of
from trainer.finetune.files.records import Record, Wanted


def read_parquet(path: str, wanted: Wanted) -> list[Record]:
    """Return the rows of a Parquet file, with columns as in JSON files. Raises DataError.

    Numbers of a column whose names the file has (datasets' ClassLabel) are replaced by them; -1 is no label. Without
    wanted columns each row is a question, as the Hub has SQuAD: id, context, question, answers.
    """
    try:
        table = pq.read_table(pa.BufferReader(storage.read(path)))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"{path} cannot be read as Parquet ({reason}). Copy it again, or set data.format.") from error

    names = _label_names(table.schema)
    records: list[Record] = []
    for number, row in enumerate(table.to_pylist()):
        place = f"{path} row {number}"
        row |= {column: _named(row[column], names[column]) for column in names if column in row}
        if wanted:
            records += rows_of(row, wanted, place, is_first=not records)
        else:
            records.append(Record(place, _question(row)))
    return records


def _label_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of labels, by column, from what datasets writes into a file's metadata."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}

    names = {}
    for column, feature in features.items():
        # A list of labels, such as the tags of words, holds its feature in a list, or under this key.
        while isinstance(feature, list) or "feature" in feature:
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        if feature.get("_type") == "ClassLabel":
            names[column] = feature["names"]
    return names


def _named(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(one, names) for one in value]
    if value == -1:
        return None
    return names[value] if value in range(len(names)) else value


def _question(row: dict[Any, Any]) -> dict[Any, Any]:
    """Return a question as in SQuAD's JSON. The Hub has a list of texts and one of starts."""
    answers = row.get("answers")
    if not isinstance(answers, dict) or not {"text", "answer_start"} <= answers.keys():
        return row
    pairs = zip(answers["text"], answers["answer_start"], strict=True)
    found = [{"text": text, "answer_start": start} for text, start in pairs]
    return {"is_impossible": not found, **row, "answers": found}
