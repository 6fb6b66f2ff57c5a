"""Builds the examples of a set from the rows or questions of its files, for each kind of task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from schemas.errors import DataError
from trainer.finetune.examples import ChoiceExample, Example, TagExample, TextExample
from trainer.finetune.files.labels import choice_position, class_id, name_of, number
from trainer.finetune.files.records import BadRowError, Record, counted
from trainer.finetune.files.sets import ExampleSet
from trainer.finetune.files.squad import AnswerRules, Question, span_example
from trainer.finetune.files.values import TextReader, words_of
from trainer.finetune.task import ColumnsSection, Task


@dataclass(frozen=True)
class Building:
    """The context for building the examples of one set.

    names: the id of each label name. For the kind choice, the position of each name of a choice. Empty if labels are
    numbers.
    """

    task: Task
    example_set: ExampleSet
    names: dict[str, int]

    @property
    def columns(self) -> ColumnsSection:
        return self.example_set.columns

    @property
    def is_test(self) -> bool:
        return self.example_set.is_test

    @property
    def keeps_bad_rows(self) -> bool:
        """Whether bad rows are kept, with empty texts, because every line of a test set needs a prediction."""
        return self.is_test and self.task.data.bad_rows == "drop"

    @cached_property
    def reader(self) -> TextReader:
        return TextReader(self.task.data.replace, empty_allowed=self.keeps_bad_rows)

    def value(self, record: Record, column: str | int | None) -> Any:
        """Return the value of a column, None if it is absent."""
        return None if column is None else record.values.get(column)


def example_of(content: Record | Question, id_: str, building: Building) -> Example:
    """Return the example of a row or a question. Raises DataError, or BadRowError if `bad_rows` may drop it."""
    if isinstance(content, Question):
        rules = AnswerRules(
            find=building.task.data.find_answers or building.keeps_bad_rows,
            is_train=building.example_set.is_train,
            is_test=building.is_test,
            empty_allowed=building.keeps_bad_rows,
        )
        return span_example(content, id_, rules)

    if content.fault and not building.keeps_bad_rows:
        raise BadRowError(f"{content.place}: {content.fault}.")
    return BUILDERS[building.task.kind](content, id_, building)


def _text_example(record: Record, id_: str, building: Building) -> TextExample:
    columns = building.columns
    text = building.reader.text(record, columns.text, "the text")

    text_pair = None
    if building.task.kind == "pair":
        text_pair = building.reader.text(record, columns.text_pair, "the second text")

    value = building.value(record, columns.label)
    if building.task.is_regression:
        return TextExample(id_, text, text_pair, number(value, record.place, building.is_test))

    # Examples with a label to skip are dropped from the other sets. In test sets they count as unlabeled.
    is_skipped = name_of(value, record.place) in building.task.data.skip_labels
    label = class_id(None if is_skipped else value, building.names, record.place, building.is_test)
    return TextExample(id_, text, text_pair, label)


def _choice_example(record: Record, id_: str, building: Building) -> ChoiceExample:
    columns = building.columns
    context = building.reader.text(record, columns.context, "the context")
    choices = building.reader.choices(record, columns.choices)

    if columns.prefix is not None:
        prefix = building.reader.text_or_empty(record, columns.prefix)
        choices = tuple(f"{prefix} {choice}".strip() for choice in choices)

    value = building.value(record, columns.label)
    label = choice_position(value, len(choices), building.names, record.place, building.is_test)
    return ChoiceExample(id_, context, choices, label)


def _tag_example(record: Record, id_: str, building: Building) -> TagExample:
    words = words_of(record, building.columns.words or 0)
    found = building.value(record, building.columns.tags)
    if building.is_test and not found:
        return TagExample(id_, words, None)

    tags = tags_of(found, record.place)
    if len(tags) != len(words):
        raise DataError(
            f"{record.place}: {counted(len(tags), 'tag')} for {counted(len(words), 'word')}. Each word needs one tag."
        )

    ids = [class_id(tag, building.names, record.place, is_test=False) for tag in tags]
    return TagExample(id_, words, tuple(id_ for id_ in ids if id_ is not None))


def tags_of(found: Any, place: str) -> list[Any]:
    """Return the tags of a sentence. Raises DataError if they are absent or not a list."""
    if found is None:
        raise DataError(f"{place}: the tags are missing. Expected one for each word.")
    if not isinstance(found, list):
        raise DataError(f"{place}: the tags are {found!r:.60}, expected a list with one for each word.")
    return found


BUILDERS: dict[str, Callable[[Record, str, Building], Example]] = {
    "sentence": _text_example,
    "pair": _text_example,
    "choice": _choice_example,
    "tags": _tag_example,
}
