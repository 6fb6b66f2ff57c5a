"""Turns the labels of a file into ids or numbers, and raises an error for values that are neither."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from schemas.errors import DataError, UsageError, nearest_name
from trainer.finetune.files.records import check_unicode, listed
from trainer.finetune.task import label_name
from trainer.logs import logger

PLACEHOLDERS = {"", "-1", "none", "null", "nan", "?", "-", "hidden", "unknown"}
"""Values that test files contain in place of labels, in lower case. A value that is a label of the task is a label."""

MOST_DISTINCT = 100
"""If a training file has more distinct labels than this, the column probably does not hold labels."""


def name_of(value: Any, place: str) -> str | None:
    """Return a label's value in a file as its name, None if it is absent. Raises DataError for lists, objects, bytes.

    NaN stands for a missing value in JSON that pandas or Python wrote.
    """
    if value is None or value != value:
        return None
    if isinstance(value, list | dict | bytes):
        several = " Tasks with several labels for an example are not supported." if isinstance(value, list) else ""
        raise DataError(f"{place}: the label is {value!r:.60}, expected text, a number or true/false.{several}")
    name = label_name(value).strip()
    check_unicode(name, place)
    return name or None


def class_id(value: Any, names: dict[str, int], place: str, is_test: bool) -> int | None:
    """Return the id of a label. Raises DataError for an unknown or missing label.

    In a test file a missing label or a placeholder has the id None.
    """
    name = name_of(value, place)
    if name in names:
        return names[name]
    if is_test and (name or "").lower() in PLACEHOLDERS:
        return None

    known = tuple(names)
    if name is None:
        raise _missing_label(place, f"one of {listed(known)}" if known else "the label's name")
    if are_fractions((*known, name)):
        raise DataError(
            f'{place}: unknown label "{name}". Each different label of a training example is a class, here '
            f'{listed(known)}. To predict a number instead, set data.labels = "number".'
        )
    raise DataError(
        f'{place}: unknown label "{name}". Expected one of {listed(known)}.{nearest_name(name, known)} If it is right, '
        "list all in data.labels."
    )


def _missing_label(place: str, expected: str) -> DataError:
    return DataError(f"{place}: the label is missing. Expected {expected}. Add it, or remove the example.")


def are_fractions(labels: Sequence[str]) -> bool:
    """Return whether labels are numbers that are not all whole, so that they may be values rather than classes."""
    if not all(map(is_number, labels)):
        return False
    return any(math.isfinite(float(label)) and not float(label).is_integer() for label in labels)


def is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def number(value: Any, place: str, is_test: bool) -> float | None:
    """Return the label of a regression, None if it is missing or a placeholder in a test file.

    In a test file -1 is kept, since it may be a value. Raises DataError for anything but a finite number.
    """
    name = name_of(value, place)
    if is_test and (name or "").lower() in PLACEHOLDERS - {"-1"}:
        return None
    if name is None:
        raise _missing_label(place, 'a number, as data.labels is "number"')

    try:
        found = float(name)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise DataError(
            f'{place}: the label "{name}" is not a finite number, but data.labels is "number". Write a number, '
            "such as 2.5, or leave data.labels out if the labels are names."
        )
    return found


def choice_position(value: Any, count: int, names: dict[str, int], place: str, is_test: bool) -> int | None:
    """Return the position, from 0, of the choice that a label names, None if it is missing in a test file.

    count: the number of choices. names: the position of each name; if empty, the label itself is a position.
    Raises DataError for any other label.
    """
    name = name_of(value, place)
    if names:
        position = class_id(value, names, place, is_test)
    elif is_test and (name or "").lower() in PLACEHOLDERS:
        position = None
    elif name is None:
        raise _missing_label(place, "which choice is right, from 0")
    elif name.removeprefix("-").isdecimal():
        position = int(name)
    else:
        raise DataError(
            f'{place}: the label "{name}" is not the position of a choice. Expected a number from 0, or set '
            "data.labels to the names of the choices in order."
        )

    if position is not None and not 0 <= position < count:
        numbers = json.dumps([str(number) for number in range(1, count + 1)])
        advice = f" If positions count from 1, set data.labels = {numbers}." if position == count and not names else ""
        expected = listed(tuple(names)[:count]) if names else f"0 to {count - 1}"
        raise DataError(f"{place}: the label {name} is out of range: there are {count} choices, {expected}.{advice}")
    return position


def infer_names(found: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct labels of a training file, sorted as numbers if all are whole numbers, otherwise as text.

    found: the label of each example, or the tag of each word.
    """
    names = sorted(set(found))
    return tuple(sorted(names, key=int)) if all(name.isdecimal() for name in names) else tuple(names)


def warn_of_case(names: Sequence[str]) -> None:
    """Log a warning that names the first two labels that differ in case alone, if there are any."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            what = "differ only in case, and are different classes. Write them alike if they are one."
            logger.warning('The labels "%s" and "%s" %s', other, name, what)
            return


def check_names(names: Sequence[str], found: int, path: str, keys: str) -> None:
    """Check the names that `infer_names` returned for `found` labels. keys: those of the task file to correct.

    Raises DataError for fewer than two, and UsageError if there are so many that the column probably holds no labels.
    """
    if len(names) < 2:
        shown = f'only "{names[0]}"' if names else "none"
        raise DataError(f"{path}: expected two different labels or more, found {shown}. Check {keys}.")
    if len(names) > MOST_DISTINCT and len(names) > found / 2:
        raise UsageError(
            f"{path}: {len(names):,} different labels in {found:,} examples. Check data.columns; if the label is "
            'a number to predict, set data.labels = "number".'
        )
