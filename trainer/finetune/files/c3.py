"""Reads C3, the multiple-choice task of CLUE: a JSON list of [lines of a dialogue or text, questions, id]."""

from __future__ import annotations

from typing import Any

from schemas.errors import DataError
from trainer.finetune.files.jsonl import parse_json
from trainer.finetune.files.records import Record
from trainer.finetune.files.text import read_text
from trainer.finetune.task import Column


def read_c3(path: str) -> list[Record]:
    """Return one row for each question, with the columns context, prefix (the question), choices and label.

    label: the position, from 0, of the answer among the choices; the file gives the answer as text. It is absent for a
    question without an answer. Raises DataError for any other layout and for an answer that is none of the choices.
    """
    content = parse_json(read_text(path), path)
    if not isinstance(content, list):
        raise DataError(f"{path} is not a list. Expected C3's [[lines], [questions], id] for each text.")

    records = []
    for number, entry in enumerate(content):
        place = f"{path} element {number}"
        if not isinstance(entry, list) or len(entry) < 2 or not isinstance(entry[1], list):
            raise DataError(f"{place}: expected [[lines], [questions], id], found {entry!r:.60}.")

        context = "\n".join(str(line) for line in entry[0])
        records += [_record(f"{place} question {index}", context, question) for index, question in enumerate(entry[1])]
    return records


def _record(place: str, context: str, question: Any) -> Record:
    if not isinstance(question, dict) or not {"question", "choice"} <= question.keys():
        raise DataError(f"{place}: expected an object with question, choice and answer, found {question!r:.60}.")

    values: dict[Column, Any] = {"context": context, "prefix": question["question"], "choices": question["choice"]}
    answer = question.get("answer")
    if answer in question["choice"]:
        values["label"] = question["choice"].index(answer)
    elif answer:
        raise DataError(f"{place}: the answer {answer!r} is none of the choices {question['choice']!r}.")
    return Record(place, values)
