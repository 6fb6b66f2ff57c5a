"""The rows that file readers return: the values of one example by column, and its place in the file for messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.errors import DataError, nearest_name
from trainer.finetune.task import Column, ColumnsSection

SHOWN_NAMES = 12
"""The maximum number of column or label names in a message."""


class BadRowError(DataError):
    """An example that `bad_rows = "drop"` leaves out of training and dev sets."""


@dataclass(frozen=True)
class Record:
    """One example as it is in its file.

    place: the path and the line, for messages. values: the file's values by column of the task; a column that the file
    lacks is absent. fault: what is wrong with the line as a whole, None if it is valid.
    """

    place: str
    values: dict[Column, Any]
    fault: str | None = None


@dataclass(frozen=True)
class WantedColumns:
    """The columns of a file that a task needs, and those that it reads if they exist."""

    required: tuple[Column, ...]
    optional: tuple[Column, ...] = ()

    @property
    def all(self) -> tuple[Column, ...]:
        return self.required + self.optional


def missing_column(place: str, column: Column, existing: list[str]) -> DataError:
    """Return the error for a column that a file does not have. It lists the columns that the file has."""
    hint = nearest_name(str(column), existing)
    what_exists = f"the columns are: {listed(existing)}" if existing else "there are no columns"
    role = column if column in ColumnsSection.model_fields else "text"
    return DataError(
        f"{place}: there is no column {column!r}; {what_exists}.{hint} Set data.columns to the file's names, as in "
        f'columns = {{ {role} = "NAME" }}.'
    )


def missing_value(place: str, column: Column) -> DataError:
    """Return the error for a row without a column that rows before it have."""
    return DataError(
        f"{place}: the column {column!r} is missing here, and the rows before have it. Add it, or remove the row."
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun. Example: `counted(1, "tag")` -> `"1 tag"`, and 2 gives "2 tags"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: list[str] | tuple[str, ...]) -> str:
    """Return names joined by commas, at most the first SHOWN_NAMES of them."""
    shown = ", ".join(names[:SHOWN_NAMES])
    more = len(names) - SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
