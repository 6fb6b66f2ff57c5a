"""What the readers of files share: the text of a file, the record of an example, and errors about columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas import storage
from schemas.errors import DataError, nearest_name
from trainer.finetune.task import Column, ColumnsSection

Wanted = Mapping[Column, bool]
"""The columns to read from a file, and whether the file must have them."""

COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"(\xb5/\xfd", b"PK\x03\x04")
"""The first bytes of files that gzip, bzip2, xz, zstd and zip have compressed."""

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


def read_text(path: str) -> str:
    """Return the text of a UTF-8 file, without a byte order mark. Line endings stay as they are.

    path: a local path or a URL. Raises DataError for a missing file and for bytes that are not UTF-8.
    """
    content = storage.read(path)
    if content.startswith(COMPRESSED):
        raise DataError(f"{path} is compressed. Files of tasks are read as they are; decompress it.")

    try:
        # utf-8-sig removes the byte order mark that Microsoft's programs put at the start of a file.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path} line {line}: byte 0x{content[error.start]:02x} is not UTF-8. Convert the file, for example with "
            "iconv."
        ) from error


def split_lines(text: str) -> list[str]:
    """Return the lines of a text without their line endings, and without empty lines at the end of the text.

    str.splitlines would also split at characters such as U+2028 and U+0085, which occur inside published sentences.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def missing_column(place: str, column: Column, existing: list[str], advice: str = "") -> DataError:
    """Return the error for a column that a file does not have. It lists the columns that the file has.

    advice: a last sentence, after a space.
    """
    hint = nearest_name(str(column), existing)
    what_exists = f"the columns are: {listed(existing)}" if existing else "there are no columns"
    role = column if column in ColumnsSection.model_fields else "text"
    return DataError(
        f"{place}: there is no column {column!r}; {what_exists}.{hint} Set data.columns to the file's names, as in "
        f'columns = {{ {role} = "NAME" }}.{advice}'
    )


def listed(names: Sequence[str]) -> str:
    """Return names joined by commas, at most the first SHOWN_NAMES of them."""
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def check_unicode(text: str, place: str) -> None:
    """Raise DataError for a text with a lone surrogate, which JSON can express but tokenizers reject."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = ascii(text[error.start])
        raise DataError(f"{place}: {character} at character {error.start} is not a Unicode character.") from error
