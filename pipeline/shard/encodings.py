"""Character encodings of text files: what `--encoding` may name, how such a file is read, and which one would fit.

Everything behind this module sees UTF-8. What cannot be decoded stays undecodable there, as the byte 0xFF, so that one
rule counts it in every encoding.
"""

from __future__ import annotations

import codecs
import io
from encodings.aliases import aliases
from functools import cache
from typing import IO, Any

from schemas.errors import UsageError, nearest_name

UTF8 = "utf-8"
_ASCII = bytes(range(128))
_REPLACEMENT = "\ufffd".encode()
_UNDECODABLE = b"\xff"  # no UTF-8 text holds this byte
_NOT_FOR_FILES = ("idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape", "mbcs", "oem")

_ENOUGH_BYTES = 16  # of what is to be UTF-16, that UTF-8 can be told from it
_ENOUGH_CHARACTERS = 4  # outside of ASCII

_BYTE_ORDER_MARKS = (
    # UTF-32's little-endian mark begins with UTF-16's, so it comes first.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def canonical_encoding(name: str) -> str:
    """Return Python's own name of an encoding. Example: `"Latin-1"` -> `"iso8859-1"`.

    Raises UsageError, with the nearest known name, for one that Python does not have or that is not of text.
    """
    try:
        codec = codecs.lookup(name)
        "x".encode(name)  # fails for codecs that are not of text, such as zip
    except (LookupError, ValueError, AssertionError) as error:
        known = {*aliases, *aliases.values()}
        hint = nearest_name(name.lower().replace("-", "_"), known)
        raise UsageError(
            f"--encoding {name!r} is not an encoding that Python knows.{hint} Examples: utf-8, cp1252, gb18030."
        ) from error

    if codec.name in _NOT_FOR_FILES:
        raise UsageError(f"--encoding {name!r} is not an encoding of text files. Examples: utf-8, cp1252, gb18030.")
    return UTF8 if codec.name == "utf-8-sig" else codec.name


@cache
def is_line_safe(encoding: str) -> bool:
    """Return whether the byte 0x0A always ends a line, so that a file can be cut at it.

    True where ASCII bytes outside of a character mean themselves: no multi-byte encoding of that kind in Python has
    control bytes inside of a character. False for UTF-16, UTF-32, UTF-7, ISO 2022 and EBCDIC.
    """
    if encoding.startswith("iso2022"):  # shifts between character sets and remembers the last
        return False
    return _ASCII.decode(encoding, errors="replace") == _ASCII.decode("ascii")


def to_utf8(data: bytes, encoding: str) -> bytes:
    """Return text of a line-safe encoding as UTF-8, with 0xFF for each thing that cannot be decoded."""
    if encoding == UTF8 or data.isascii():
        return data
    return _marked(data.decode(encoding, errors="replace"))


def _marked(text: str) -> bytes:
    return text.encode(errors="replace").replace(_REPLACEMENT, _UNDECODABLE)


def looks_like_utf8(head: bytes, encoding: str) -> bool:
    """Return whether the beginning of a file is UTF-8, although another encoding was named.

    Bytes that are valid UTF-8 outside of ASCII are hardly anything else; short texts of two-byte encodings may be, so
    a few characters prove nothing. UTF-16 and UTF-32 of any text are no valid UTF-8, or hold NULs.
    """
    try:
        text = codecs.getincrementaldecoder(UTF8)().decode(head)  # a character may be cut at the end
    except UnicodeDecodeError:
        return False
    if encoding.startswith(("utf-16", "utf-32")):
        return len(head) >= _ENOUGH_BYTES and 0 not in head
    return sum(character > "\x7f" for character in text) >= _ENOUGH_CHARACTERS


class Transcoded(io.RawIOBase):
    """A file of any encoding, readable as UTF-8 from its beginning to its end."""

    def __init__(self, file: IO[bytes], encoding: str):
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._ended = False
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        while not self._ready and not self._ended:
            block = self._file.read(1 << 16)
            self._ended = not block
            self._ready = _marked(self._decoder.decode(block, final=self._ended))

        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def wide_encoding(head: bytes) -> str | None:
    """Return the UTF-16 or UTF-32 that the first bytes of a file are in, by byte order mark or by their NULs."""
    for mark, name in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return name

    quarter = len(head) // 4
    if quarter < 2:
        return None

    # The share of NULs at each of four positions. Western text in UTF-16 has them in every other place.
    nuls = [head[i : 4 * quarter : 4].count(0) / quarter for i in range(4)]
    for name, pattern in (("utf-32-le", "0111"), ("utf-32-be", "1110"), ("utf-16-le", "0101"), ("utf-16-be", "1010")):
        if all(share > 0.4 if expected == "1" else share < 0.05 for share, expected in zip(nuls, pattern, strict=True)):
            return name
    return None
