"""Reads a whole file of a task as UTF-8 text, with or without a byte order mark and with any line endings."""

from __future__ import annotations

import codecs

from schemas import storage
from schemas.errors import DataError

OTHER_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""Byte order marks of encodings that are not supported."""


def read_text(path: str) -> str:
    """Return the text of a UTF-8 file, without a byte order mark. Line endings stay as they are.

    path: a local path or a URL. Raises DataError for a missing file and for bytes that are not UTF-8.
    """
    content = storage.read(path)
    if content.startswith(OTHER_MARKS):
        raise DataError(f"{path} is written in UTF-16 or UTF-32. Expected UTF-8; convert it, for example with iconv.")

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
