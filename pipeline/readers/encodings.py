"""Character encodings of text files: which ones `--encoding` may name, and how such files are read.

Everything after this module sees UTF-8. Bytes that cannot be decoded become the byte 0xFF, which is not valid in UTF-8
either, so the same rule counts undecodable bytes in every encoding.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterator
from encodings.aliases import aliases
from functools import cache
from typing import IO

from schemas.errors import DataError, UsageError, nearest_name

UTF8 = "utf-8"

AUTO = "auto"
"""The value of --encoding with which each file is read in the encoding that its bytes show."""

_ASCII = bytes(range(128))
_REPLACEMENT = "\ufffd".encode()
_UNDECODABLE = b"\xff"  # not in any UTF-8 text
_READ_BYTES = 1 << 16

# Python encodings that are not for files, or depend on the machine. Python's own names of some have "-" for "_".
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
_SOME_ASCII = 4  # minimum line ends, spaces and digits in UTF-16 of any language
_MAX_NO_TEXT = 0.01  # maximum share of other control characters, and of those without a meaning; binary data has more
_NO_TEXT_CATEGORIES = ("Cc", "Cs", "Co", "Cn")  # of Unicode: control, surrogate, private use, unassigned

# Encodings of ASCII bytes alone, and the sign that begins other letters in each.
_SEVEN_BIT = (
    ("iso2022_jp", b"\x1b$"),
    ("iso2022_jp_2", b"\x1b$"),
    ("iso2022_jp_ext", b"\x1b$"),
    ("iso2022_kr", b"\x1b$"),
    ("hz", b"~{"),
    ("utf-7", b"+"),
)
_SWITCH = re.compile(rb"\x1b\$[@AB()*+]")
ISO_2022 = "iso-2022"
_MIN_HIDDEN = 4  # letters; fewer may be chance
_ALPHABETS_END = "\u2c00"  # after punctuation, too
_MOST = 0.8

_CONTROL_BYTES = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_MANY_CONTROLS = 0.05  # of a head, with which it is no text in UTF-8
DAMAGED_UTF8 = 0.3  # undecodable share of the bytes outside of ASCII; below it, the text is damaged UTF-8
_QUOTES = "\u2018\u2019\u201c\u201d\u201e\u2013\u2014\u2026\xab\xbb"

# Characters of cp1252 as a text has them, and bytes that begin a character of UTF-8 whose rest was cut away.
_IN_WESTERN_TEXT = re.compile(
    rf"(?![\x00-\x7f\xb2\xb3\xb9])(?:[^\W\d_]|[{_QUOTES}\xa0\xa1\xa7\xa9\xae\xb0\xb7\xbf]|"
    r"[\xa3\xa5\u20ac](?= ?\d)|(?<=\d)\u20ac)"
)
_CUT_OFF = re.compile(rb"(?<![A-Z])(?:[\xc2\xc3](?![A-Z])|[\xc4-\xde](?![A-Za-z\x80-\xff]))|\xe2[\x80-\xbf]")
_OR_AUTO = ", or each file in the encoding that its bytes show with --encoding auto"  # what errors advise


def canonical_encoding(name: str) -> str:
    """Return Python's own name of an encoding. Example: `"Latin-1"` -> `"iso8859-1"`.

    Raises UsageError, with the nearest known name, for an encoding that Python lacks or that is not for text.
    """
    try:
        codec = codecs.lookup(name)
        "x".encode(name)  # fails for codecs that are not for text, such as zip
    except (LookupError, ValueError, AssertionError) as error:
        known = {*aliases, *aliases.values(), AUTO}
        hint = nearest_name(name.lower().replace("-", "_"), known)
        raise UsageError(
            f"--encoding {name!r} is not an encoding that Python knows.{hint} Examples: utf-8, cp1252, auto."
        ) from error

    if codec.name.replace("-", "_") in _NOT_FOR_FILES:
        raise UsageError(f"--encoding {name!r} is not an encoding of text files. Examples: utf-8, cp1252, gb18030.")
    return UTF8 if codec.name == "utf-8-sig" else codec.name


@cache
def is_line_safe(encoding: str) -> bool:
    """Return whether the byte 0x0A always ends a line, so that a file can be cut there.

    True if each ASCII byte by itself stands for its ASCII character: Python's multi-byte encodings of that kind never
    use control bytes inside of a character. False for UTF-16, UTF-32, UTF-7, ISO 2022 and EBCDIC. True for AUTO, so
    that files are cut before their encoding is known.
    """
    if encoding == AUTO:
        return True
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
    if not _is_utf8(head):
        return False
    if encoding.startswith(("utf-16", "utf-32")):
        return len(head) >= _MIN_BYTES and 0 not in head
    return sum(byte >= 0xC0 for byte in head) >= _MIN_FOREIGN_CHARACTERS  # the first bytes of characters


def utf8_chunks(file: IO[bytes], encoding: str) -> Iterator[bytes]:
    """Yield what a file has from here to its end as UTF-8, with 0xFF for everything that cannot be decoded."""
    blocks = iter(lambda: file.read(_READ_BYTES), b"")
    return map(_encode_marked, codecs.iterdecode(blocks, encoding, errors="replace"))


# ---- Which encoding is it? ----


def encoding_error(shown: str, head: bytes, encoding: str) -> DataError | None:
    """Return the error for a file whose first bytes show that it is in another encoding than `encoding`, or None."""
    found = wide_encoding(head, encoding) if is_line_safe(encoding) else None
    if encoding != UTF8 and looks_like_utf8(head, encoding):
        return DataError(
            f"{shown} is not {encoding.upper()}: it begins with {len(head):,} bytes of valid UTF-8. "
            f"Give --encoding utf-8 to read it{_OR_AUTO}."
        )

    if found is None and encoding == UTF8:
        found = seven_bit_encoding(head)
    if found == ISO_2022:
        return DataError(
            f"{shown} is in an ISO 2022 encoding, but UTF-8 was expected. Convert it, as in "
            f"iconv -f ISO-2022-CN -t UTF-8 {shown}."
        )
    if found is None:
        return None
    return DataError(
        f"{shown} is {found.upper()}, but {encoding.upper()} was expected. Read it with --encoding {found}{_OR_AUTO}."
    )


def encoding_of_head(head: bytes) -> str:
    """Return the encoding that a file's first bytes show by marks, NULs or switches; UTF-8 if they show none."""
    found = wide_encoding(head, UTF8) or seven_bit_encoding(head)
    return UTF8 if found is None or found == ISO_2022 else found


def wide_encoding(head: bytes, expected: str) -> str | None:
    """Return the UTF-16 or UTF-32 encoding that a file's first bytes show, by a byte order mark or NULs, or None.

    expected: UTF-8, the default, or the encoding that the user named. Against the latter, a few NULs prove nothing.
    """
    for mark, name in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return name

    groups_of_four = len(head) // 4
    if groups_of_four < 2 or 0 not in head:
        return None

    nul_shares = [head[i : 4 * groups_of_four : 4].count(0) / groups_of_four for i in range(4)]
    for name, pattern in _NUL_PATTERNS:
        shares = zip(nul_shares, pattern, strict=True)
        if all(share > _MANY_NULS if has_nul else share < _FEW_NULS for share, has_nul in shares):
            return name

    # In languages with other letters than Latin ones, NULs are few: those of spaces, digits and line ends.
    # The bytes of many letters are all below 0x80: those of Cyrillic, Arabic and Thai, with control bytes.
    is_plain = _is_utf8(head) and len(_CONTROL_BYTES.findall(head)) < _MANY_CONTROLS * len(head)
    if expected == UTF8 and not is_plain:
        for name in ("utf-16-le", "utf-16-be"):
            if _is_text(codecs.getincrementaldecoder(name)(errors="replace").decode(head)):
                return name
    return None


def _is_text(text: str) -> bool:
    """Return whether characters, decoded as UTF-16, are a text and not binary data."""
    no_text = sum(
        character == "\ufffd" or (unicodedata.category(character) in _NO_TEXT_CATEGORIES and character not in "\t\r\n")
        for character in text
    )
    return sum(map(text.count, "\n 0123456789")) >= _SOME_ASCII and no_text < _MAX_NO_TEXT * len(text)


def _is_utf8(head: bytes) -> bool:
    """Return whether the beginning of a file is valid UTF-8; a character may be cut at its end."""
    try:
        codecs.getincrementaldecoder(UTF8)().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def seven_bit_encoding(head: bytes) -> str | None:
    """Return the encoding that hides other letters in ASCII in which a file's first bytes are written, or None.

    It is ISO_2022 if the bytes switch between character sets, but in none of the encodings that Python has.
    """
    if not head.isascii():
        return None

    for encoding, sign in _SEVEN_BIT:
        if sign not in head:
            continue
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(head)  # allows a character that is cut at the end
        except UnicodeDecodeError:
            continue

        # Letters that chance decodes from ASCII in UTF-7 are mostly ideographs and Hangul, which follow the alphabets.
        hidden = [character for character in text if character > "\x7f"]
        alphabetic = sum(character < _ALPHABETS_END for character in hidden)
        if len(hidden) >= _MIN_HIDDEN and (encoding != "utf-7" or alphabetic >= _MOST * len(hidden)):
            return encoding
    return ISO_2022 if _SWITCH.search(head) else None


def is_in_other_encoding(sample: bytes) -> bool:
    """Return whether bytes that are not UTF-8 are Western text in another encoding: nearly all are letters or quotes.

    So few bytes of a book in English may be undecodable that their share alone does not tell.
    """
    western = sample.decode("cp1252", errors="replace")  # the encoding of most Western text
    foreign = [character for character in western if character > "\xa0"]
    plausible = sum(character.isalpha() or character in _QUOTES for character in foreign)
    return not is_damaged_utf8(sample) and plausible >= _MOST * len(foreign)


def is_western(sample: bytes) -> bool:
    """Return whether each byte outside of ASCII is in cp1252 what a text has at its place, and none is cut UTF-8."""
    foreign = sum(byte >= 0x80 for byte in sample)
    known = len(_IN_WESTERN_TEXT.findall(sample.decode("cp1252", errors="replace")))
    return known == foreign and 3 * foreign < len(sample) and _CUT_OFF.search(sample) is None


def is_damaged_utf8(sample: bytes) -> bool:
    """Return whether most of the bytes outside of ASCII are valid UTF-8, although some are not."""
    not_ascii = sum(byte >= 0x80 for byte in sample)
    return sample.decode(UTF8, errors="replace").count("\ufffd") < DAMAGED_UTF8 * not_ascii
