"""Reads Parquet files, as the Hugging Face Hub has them for most datasets."""

from __future__ import annotations

import json
from contextlib import suppress
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
        file = pq.ParquetFile(pa.BufferReader(storage.read(path)))
        table = file.read(_columns(file.schema_arrow.names, wanted))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataError(
            f"{path} cannot be read as Parquet ({reason}). Copy it again, or set data.format, which is that of all "
            "files of a task."
        ) from error

    names = _label_names(table.schema)
    records: list[Record] = []
    rows = [_decoded(row) for row in table.to_pylist()]
    has_answers = any(_answers(row) for row in rows)  # test files may have none for any question
    for number, row in enumerate(rows):
        place = f"{path} row {number}"
        row |= {column: _named(row[column], names[column]) for column in names if column in row}
        if wanted:
            records += rows_of(row, wanted, place, is_first=not records)
        else:
            is_impossible = {"is_impossible": not _answers(row)} if has_answers else {}
            records.append(Record(place, is_impossible | row | {"answers": _answers(row)}))
    return records


def _columns(names: list[str], wanted: Wanted) -> list[str] | None:
    """Return the columns to read: without pictures and others that no one wants, if all that are wanted are there."""
    # A name may itself have dots.
    paths = {column: {str(column), str(column).partition(".")[0]} for column in wanted}
    if not wanted or any(is_required and paths[column].isdisjoint(names) for column, is_required in wanted.items()):
        return None
    return [name for name in names if any(name in keys for keys in paths.values())]


def _decoded(value: Any) -> Any:
    """Return a value with bytes as text: some writers do not mark texts as such. Other bytes stay what they are."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    if isinstance(value, list):
        return [_decoded(part) for part in value]
    return {key: _decoded(part) for key, part in value.items()} if isinstance(value, dict) else value


def _label_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of labels, by column, from what datasets writes into a file's metadata."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}

    names = {}
    for column, feature in features.items():
        # A list of labels, such as the tags of words, holds its feature in a list, or under this key.
        while isinstance(feature, list) or (isinstance(feature, dict) and "feature" in feature):
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            names[column] = feature["names"]
    return names


def _named(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        named = [_named(one, names) for one in value]
        return None if named and set(named) == {None} else named  # the tags of a test file
    if value == -1:
        return None
    return names[value] if isinstance(value, int) and value in range(len(names)) else value


def _answers(row: dict[Any, Any]) -> Any:
    """Return the answers of a question as in SQuAD's JSON. The Hub has a list of texts and one of starts."""
    answers = row.get("answers")
    if not isinstance(answers, dict):
        return answers
    texts, starts = answers.get("text"), answers.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        return answers
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
