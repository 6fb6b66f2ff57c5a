"""Builds the examples of a set from the records of its files, for each kind of task."""

from __future__ import annotations

from typing import Any

from schemas.errors import DataError
from schemas.terminal import counted
from trainer.finetune.examples import Answer, ChoiceExample, Example, SpanExample, TagExample, TextExample
from trainer.finetune.files.labels import choice_position, class_id, name_of, number
from trainer.finetune.files.records import BadRowError, Record, check_unicode
from trainer.finetune.files.sets import ExampleSet
from trainer.finetune.task import TRAIN, Column, Columns, Task, label_name


class ExampleBuilder:
    """Builds the examples of one set of a task."""

    def __init__(self, task: Task, example_set: ExampleSet, names: dict[str, int]):
        """names: the id of each label name. For the kind choice, the position of each name of a choice.

        Empty if labels are numbers. with_empty_answers: the place of each answer that was left out as empty.
        """
        self.task = task
        self.data = task.data
        self.columns = example_set.columns
        self.is_train = example_set.name == TRAIN
        self.is_test = example_set.is_test
        self.names = names
        self.skipped_labels: set[str] = set()
        self.with_empty_answers: list[str] = []

        # Every line of a test set needs a prediction, so bad rows are kept there, with empty texts.
        self.keeps_bad_rows = self.is_test and task.data.bad_rows == "drop"

    def example(self, record: Record, id_: str) -> Example:
        """Return the example of a record. Raises DataError, or BadRowError if `bad_rows` may drop it."""
        if record.fault and not self.keeps_bad_rows:
            raise BadRowError(f"{record.place}: {record.fault}.")
        builders = {"choice": self._choice_example, "tags": self._tag_example, "span": self._span_example}
        return builders.get(self.task.kind, self._text_example)(record, id_)

    def has_skipped_label(self, record: Record) -> bool:
        """Return whether the label of a record is one of data.skip_labels, of which "-1" means none as well."""
        if not self.data.skip_labels:
            return False
        label = name_of(value_of(record, self.columns.label), record.place) or "-1"
        if label in self.data.skip_labels:
            self.skipped_labels.add(label)
        return label in self.skipped_labels

    # ---- Texts with a label ----

    def _text_example(self, record: Record, id_: str) -> TextExample:
        text = self._text(record, self.columns.text, "the text")
        text_pair = None
        if self.task.kind == "pair":
            text_pair = self._text(record, self.columns.text_pair, "the second text")

        value = value_of(record, self.columns.label)
        if self.task.is_regression:
            return TextExample(id_, text, text_pair, number(value, record.place, self.is_test))

        # Examples with a label to skip are dropped from the other sets. In test sets they count as unlabeled.
        if self.has_skipped_label(record):
            value = None
        return TextExample(id_, text, text_pair, class_id(value, self.names, record.place, self.is_test))

    def _choice_example(self, record: Record, id_: str) -> ChoiceExample:
        context = self._text(record, self.columns.context, "the context")
        prefix = self._text_or_empty(record, self.columns.prefix)

        names = columns_of(self.columns.choices)
        values = [value_of(record, name) for name in names] if len(names) > 1 else value_of(record, names[0])
        if not isinstance(values, list) or len(values) < 2:
            raise DataError(f"{record.place}: the choices are {values!r:.60}, expected a list of two texts or more.")
        if self.names and len(values) > len(self.names):
            labels = f"{len(self.names)}: {', '.join(self.names)}"
            raise DataError(f"{record.place}: {len(values)} choices, but data.labels names {labels}. Name all of them.")

        choices = []
        for position, value in enumerate(values):
            choice = self._as_text(value, names[position] if len(names) > 1 else names[0], record.place)
            if not choice.strip() and not self.keeps_bad_rows:
                raise BadRowError(f"{record.place}: a choice is empty.")
            choices.append(f"{prefix} {choice}".strip() if prefix else choice)

        value = value_of(record, self.columns.label)
        label = choice_position(value, len(choices), self.names, record.place, self.is_test)
        return ChoiceExample(id_, context, tuple(choices), label)

    def _text(self, record: Record, columns: Columns | None, what: str) -> str:
        """Return the text of one column, or of several joined with spaces. Raises BadRowError if it is empty."""
        text = self._text_or_empty(record, columns)
        if not text.strip() and not self.keeps_bad_rows:
            raise BadRowError(f"{record.place}: {what} is empty. Expected text in {columns!r}.")
        return text

    def _text_or_empty(self, record: Record, columns: Columns | None) -> str:
        parts = [self._as_text(value_of(record, column), column, record.place) for column in columns_of(columns)]
        return " ".join(part for part in parts if part)

    def _as_text(self, value: Any, column: Column, place: str) -> str:
        """Return the value of a column as text: a list of texts is joined, and an absent value is empty."""
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = " ".join(value)

        if value is None or value != value:
            return ""
        if isinstance(value, int | float):
            value = label_name(value)
        if not isinstance(value, str):
            raise DataError(f"{place}: {column!r} is {value!r:.60}, expected text.")

        check_unicode(value, place)
        return self.data.replace.get(str(column), {}).get(value, value)

    # ---- Words with tags ----

    def _tag_example(self, record: Record, id_: str) -> TagExample:
        words = words_of(record, self.columns.words)
        if self.is_test and not value_of(record, self.columns.tags):
            return TagExample(id_, words, None)

        tags = tags_of(record, self.columns.tags)
        if len(tags) != len(words):
            raise DataError(
                f"{record.place}: {counted(len(tags), 'tag')} for {counted(len(words), 'word')}. Each word needs one "
                "tag."
            )

        ids = [class_id(tag, self.names, record.place, is_test=False) for tag in tags]
        return TagExample(id_, words, tuple(id_ for id_ in ids if id_ is not None))

    # ---- Questions ----

    def _span_example(self, record: Record, id_: str) -> SpanExample:
        place = record.place
        context = self._text(record, "context", "the context")
        question = self._text(record, "question", "the question")

        is_impossible = record.values.get("is_impossible", False)
        if not isinstance(is_impossible, bool):
            raise DataError(f"{place}: is_impossible is {is_impossible!r}, expected true or false.")

        found = record.values.get("answers") or []
        if not isinstance(found, list):
            raise DataError(f"{place}: answers is {found!r:.60}, expected a list.")
        if is_impossible and found:
            raise DataError(f"{place}: the question is_impossible, but it has {counted(len(found), 'answer')}.")

        answers = () if self.is_test and are_placeholders(found) else self._answers(found, context, place)
        if not answers and not is_impossible and not self.is_test:
            raise DataError(f"{place}: the answers are missing. Expected one, or is_impossible = true.")
        return SpanExample(id_, question, context, answers, is_impossible)

    def _answers(self, found: list[Any], context: str, place: str) -> tuple[Answer, ...]:
        filled = [answer for answer in found if not is_empty(answer)]
        if filled:
            self.with_empty_answers += [place] * (len(found) - len(filled))
        answers = [self._answer(answer, context, place) for answer in filled or found]
        if not self.is_train:
            # The metrics compare texts, so an answer counts even if it does not occur in the context.
            return tuple(answers)

        placed = [answer for answer in answers if answer.start >= 0]
        if answers and not placed:
            raise BadRowError(f'{place}: the answer "{answers[0].text:.60}" is nowhere in the context.')
        return tuple(placed)

    def _answer(self, found: Any, context: str, place: str) -> Answer:
        """Return an answer. Its start is -1 if it may be anywhere and is nowhere in the context."""
        text = found.get("text") if isinstance(found, dict) else None
        start = found.get("answer_start") if isinstance(found, dict) else None
        if not isinstance(text, str) or not isinstance(start, int) or isinstance(start, bool):
            raise DataError(
                f"{place}: expected an answer as an object with text (a string) and answer_start (a whole number), "
                f"found {found!r:.60}."
            )
        if not text.strip():
            # No test set can leave it out, so data.bad_rows would not help.
            raise (DataError if self.is_test else BadRowError)(
                f"{place}: the answer's text is empty. Questions without answers have is_impossible = true."
            )

        if start >= 0 and context.startswith(text, start):
            return Answer(text, start)
        if not self.data.find_answers and not self.keeps_bad_rows:
            raise BadRowError(misplaced(text, start, context, place))

        starts = [offset for offset in range(len(context)) if context.startswith(text, offset)]
        return Answer(text, min(starts, key=lambda offset: abs(offset - start), default=-1))


def is_empty(answer: Any) -> bool:
    """Return whether an answer has a text, and it is blank."""
    text = answer.get("text") if isinstance(answer, dict) else None
    return isinstance(text, str) and not text.strip()


def are_placeholders(answers: list[Any]) -> bool:
    """Return whether no answer has a start in the context, as in CMRC 2018's public test file."""
    starts = [answer.get("answer_start") if isinstance(answer, dict) else None for answer in answers]
    return all(start is None or (isinstance(start, int) and start < 0) for start in starts)


def misplaced(text: str, start: int, context: str, place: str) -> str:
    """Return the message for an answer that is not at the position that the file gives."""
    if text not in context:
        return f'{place}: the answer "{text:.60}" is nowhere in the context.'

    there = context[max(start, 0) : max(start, 0) + len(text)]
    return (
        f'{place}: the answer is "{text:.60}", but the context of {len(context)} characters has "{there:.60}" at '
        f"{start}. data.find_answers = true moves such answers to their text."
    )


def value_of(record: Record, column: Column | None) -> Any:
    """Return the value of a column, None if it is absent, or NaN, which pandas writes for an absent value."""
    value = None if column is None else record.values.get(column)
    return None if value != value else value


def columns_of(columns: Columns | None) -> list[Column]:
    if columns is None:
        return []
    return columns if isinstance(columns, list) else [columns]


def words_of(record: Record, column: Column | None) -> tuple[str, ...]:
    """Return the words of a sentence.

    Raises BadRowError for a sentence without words, and DataError for a word that is blank or not text.
    """
    words = value_of(record, column)
    if not isinstance(words, list):
        raise DataError(f"{record.place}: {column!r} is {words!r:.60}, expected a list of words.")
    if not words:
        raise BadRowError(f"{record.place}: the sentence has no words.")

    for position, word in enumerate(words, start=1):
        if not isinstance(word, str) or not word.strip():
            raise DataError(f"{record.place}: word {position} is {word!r:.60}, expected text that is not blank.")
        check_unicode(word, record.place)
    return tuple(words)


def tags_of(record: Record, column: Column | None) -> list[Any]:
    """Return the tags of a sentence. Raises DataError if they are absent or not a list."""
    tags = value_of(record, column)
    if tags is None:
        raise DataError(f"{record.place}: the tags are missing. Expected one for each word.")
    if not isinstance(tags, list):
        raise DataError(f"{record.place}: the tags are {tags!r:.60}, expected a list with one for each word.")
    return tags
