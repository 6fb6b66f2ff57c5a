"""Turns the values of an example's columns into texts, choices and words."""

from __future__ import annotations

from typing import Any

from schemas.errors import DataError
from trainer.finetune.files.records import BadRowError, Record
from trainer.finetune.task import Column, Columns, label_name


class TextReader:
    """Reads the texts of examples.

    replace: by column name, the values to replace and their replacements. empty_allowed: whether a text may be empty.
    """

    def __init__(self, replace: dict[str, dict[str, str]], empty_allowed: bool):
        self.replace = replace
        self.empty_allowed = empty_allowed

    def text(self, record: Record, columns: Columns | None, what: str) -> str:
        """Return the text of one column, or of several joined with spaces. Raises BadRowError if it is empty."""
        text = self.text_or_empty(record, columns)
        if not text.strip() and not self.empty_allowed:
            raise BadRowError(f"{record.place}: {what} is empty. Expected text in {columns!r}.")
        return text

    def text_or_empty(self, record: Record, columns: Columns | None) -> str:
        """Return the text of one column, or of several joined with spaces. Raises DataError if it is not text."""
        parts = [self._part(record, column) for column in columns_of(columns)]
        return " ".join(part for part in parts if part)

    def _part(self, record: Record, column: Column) -> str:
        value = record.values.get(column)
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = " ".join(value)

        if value is None:
            return ""
        if isinstance(value, int | float):
            value = label_name(value)
        if not isinstance(value, str):
            raise DataError(f"{record.place}: {column!r} is {value!r:.60}, expected text.")

        check_unicode(value, record.place)
        return self.replace.get(str(column), {}).get(value, value)

    def choices(self, record: Record, columns: Columns | None) -> tuple[str, ...]:
        """Return the choices of an example, without a prefix.

        Raises DataError for fewer than two and for a choice that is not text, and BadRowError for an empty choice.
        """
        names = columns_of(columns)
        values = record.values.get(names[0]) if len(names) == 1 else [record.values.get(name) for name in names]
        if not isinstance(values, list) or len(values) < 2:
            raise DataError(f"{record.place}: the choices are {values!r:.60}, expected a list of two texts or more.")

        texts = [self._choice(record, value) for value in values]
        return tuple(texts)

    def _choice(self, record: Record, value: Any) -> str:
        if value is not None and not isinstance(value, str):
            raise DataError(f"{record.place}: the choice {value!r:.60} is not text.")

        value = value or ""
        if not value.strip() and not self.empty_allowed:
            raise BadRowError(f"{record.place}: a choice is empty.")

        check_unicode(value, record.place)
        return value


def words_of(record: Record, column: Column) -> tuple[str, ...]:
    """Return the words of a sentence.

    Raises BadRowError for a sentence without words, and DataError for an empty word and for values that are not text.
    """
    words = record.values.get(column)
    if not isinstance(words, list):
        raise DataError(f"{record.place}: {column!r} is {words!r:.60}, expected a list of words.")
    if not words:
        raise BadRowError(f"{record.place}: the sentence has no words.")

    for position, word in enumerate(words):
        if not isinstance(word, str):
            raise DataError(f"{record.place}: word {position} is {word!r:.60}, expected text.")
        if not word.strip():
            raise DataError(f"{record.place}: word {position} is empty, so that nothing could carry its tag.")
        check_unicode(word, record.place)
    return tuple(words)


def check_unicode(text: str, place: str) -> None:
    """Raise DataError for a text with a lone surrogate, which JSON can express but tokenizers reject."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = ascii(text[error.start])
        raise DataError(f"{place}: {character} at character {error.start} is not a Unicode character.") from error


def columns_of(columns: Columns | None) -> list[Column]:
    """Return the columns that a key of [data.columns] names."""
    if columns is None:
        return []
    return columns if isinstance(columns, list) else [columns]
