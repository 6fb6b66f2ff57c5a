"""Character encodings of text files: which ones `--encoding` may name, and how such files are read.

Everything after this module sees UTF-8. Bytes that cannot be decoded become the byte 0xFF, which is not valid in UTF-8
either, so the same rule counts undecodable bytes in every encoding.
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
_UNDECODABLE = b"\xff"  # not in any UTF-8 text
_READ_BYTES = 1 << 16

# Python encodings that are not for files, or depend on the machine.
_NOT_FOR_FILES = ("idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape", "mbcs", "oem")

# Minimum evidence before a file counts as UTF-8 although another encoding was named.
_MIN_BYTES = 16  # against UTF-16 and UTF-32
_MIN_FOREIGN_CHARACTERS = 4  # outside of ASCII, against any other encoding

_BYTE_ORDER_MARKS = (
    # The little-endian mark of UTF-32 begins with that of UTF-16, so it comes first.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

# Which of four consecutive bytes are NUL (True) in Western text of each encoding.
_NUL_PATTERNS = (
    ("utf-32-le", (False, True, True, True)),
    ("utf-32-be", (True, True, True, False)),
    ("utf-16-le", (False, True, False, True)),
    ("utf-16-be", (True, False, True, False)),
)
_MANY_NULS = 0.4  # minimum NUL share where the pattern has one; characters outside of Latin-1 have fewer
_FEW_NULS = 0.05  # maximum NUL share elsewhere


def canonical_encoding(name: str) -> str:
    """Return Python's own name of an encoding. Example: `"Latin-1"` -> `"iso8859-1"`.

    Raises UsageError, with the nearest known name, for an encoding that Python lacks or that is not for text.
    """
    try:
        codec = codecs.lookup(name)
        "x".encode(name)  # fails for codecs that are not for text, such as zip
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
    """Return whether the byte 0x0A always ends a line, so that a file can be cut there.

    True if each ASCII byte by itself stands for its ASCII character: Python's multi-byte encodings of that kind never
    use control bytes inside of a character. False for UTF-16, UTF-32, UTF-7, ISO 2022 and EBCDIC.
    """
    if encoding.startswith("iso2022"):  # switches between character sets, so a reader must know the last switch
        return False
    return _ASCII.decode(encoding, errors="replace") == _ASCII.decode("ascii")


def to_utf8(data: bytes, encoding: str) -> bytes:
    """Return text of a line-safe encoding as UTF-8, with 0xFF for everything that cannot be decoded."""
    if encoding == UTF8 or data.isascii():
        return data
    return _encode_marked(data.decode(encoding, errors="replace"))


def _encode_marked(text: str) -> bytes:
    """Encode text as UTF-8, with the byte 0xFF in place of every U+FFFD."""
    return text.encode(errors="replace").replace(_REPLACEMENT, _UNDECODABLE)


def looks_like_utf8(head: bytes, encoding: str) -> bool:
    """Return whether the beginning of a file is UTF-8, although `encoding` was named.

    Valid UTF-8 outside of ASCII is hardly ever anything else. But short texts in two-byte encodings may be valid UTF-8,
    so a few characters prove nothing. Texts in UTF-16 and UTF-32 are not valid UTF-8, or contain NULs.
    """
    try:
        text = codecs.getincrementaldecoder(UTF8)().decode(head)  # allows a character that is cut at the end
    except UnicodeDecodeError:
        return False

    if encoding.startswith(("utf-16", "utf-32")):
        return len(head) >= _MIN_BYTES and 0 not in head
    foreign_characters = sum(character > "\x7f" for character in text)
    return foreign_characters >= _MIN_FOREIGN_CHARACTERS


class Transcoded(io.RawIOBase):
    """A file in any encoding, readable as UTF-8 from its beginning to its end."""

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
            block = self._file.read(_READ_BYTES)
            self._ended = not block
            self._ready = _encode_marked(self._decoder.decode(block, final=self._ended))

        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def wide_encoding(head: bytes) -> str | None:
    """Return the UTF-16 or UTF-32 encoding that a file's first bytes show, by a byte order mark or NULs, or None."""
    for mark, name in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return name

    groups_of_four = len(head) // 4
    if groups_of_four < 2:
        return None

    nul_shares = [head[i : 4 * groups_of_four : 4].count(0) / groups_of_four for i in range(4)]
    for name, pattern in _NUL_PATTERNS:
        if _fits_pattern(nul_shares, pattern):
            return name
    return None


def _fits_pattern(nul_shares: list[float], pattern: tuple[bool, ...]) -> bool:
    for share, has_nul in zip(nul_shares, pattern, strict=True):
        fits = share > _MANY_NULS if has_nul else share < _FEW_NULS
        if not fits:
            return False
    return True
