"""What the readers of rows return: the values of one example by column, and their place in a file for messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.errors import DataError, nearest_name
from trainer.finetune.task import Column

SHOWN_NAMES = 12
"""How many names of columns or labels a message lists."""


class BadRowError(DataError):
    """An example that `bad_rows = "drop"` leaves out of training and dev sets."""


@dataclass(frozen=True)
class Record:
    """One example as its file has it.

    place: the path and the line, for messages. values: by the task's columns; an absent column has no value.
    fault: what is wrong with the whole line, None if nothing is.
    """

    place: str
    values: dict[Column, Any]
    fault: str | None = None


@dataclass(frozen=True)
class WantedColumns:
    """The columns of a file that a task needs, and those that it reads if they are there."""

    required: tuple[Column, ...]
    optional: tuple[Column, ...] = ()

    @property
    def all(self) -> tuple[Column, ...]:
        return self.required + self.optional


def missing_column(place: str, column: Column, existing: list[str]) -> DataError:
    """Return the error for a column that a file does not have, with the names that it has."""
    hint = nearest_name(str(column), existing)
    return DataError(
        f"{place}: there is no column {column!r} among {listed(existing)}.{hint} Set data.columns to the file's names."
    )


def listed(names: list[str] | tuple[str, ...]) -> str:
    """Return names with commas, the first ones only where there are many."""
    shown = ", ".join(names[:SHOWN_NAMES])
    more = len(names) - SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
