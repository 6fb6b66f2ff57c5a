"""The members of archives (zip, tar) in order, without unpacking: each is read as a file with its name would be.

A member is held in memory while it is read, so its size has a limit; of larger ones only the beginning is read, which
shows whether they are text. What has a name with a part that begins with a dot is skipped, as in folders.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from pipeline.readers.office import MAX_DIRECTORY_BYTES, is_encrypted
from pipeline.readers.open import LimitedReads

MAX_MEMBER_BYTES = 256 << 20
_PADDING_BYTES = 1 << 16  # read at once of what follows the end of a tar archive

MAX_NAME = 1000  # characters of a member's name in messages

ENCRYPTED_MEMBER = "member of an archive that is encrypted"
UNKNOWN_METHOD = "member of an archive with an unknown compression"
NESTED = "archive in an archive"

_LONG_HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
_ENTRY = b"PK\x03\x04"  # begins an entry of a zip file

# Those of POSIX and GNU; of zip, an archive without an entry, or one whose first entry is none of an office document,
# a book or a JAR.
BEGINS_TAR = re.compile(rb"(?s:.{257})ustar")
_OFFICE_NAMES = rb"\[Content_Types\]\.xml|_rels/|docProps/|word/|xl/|ppt/|mimetype|META-INF/"
BEGINS_ZIP = re.compile(rb"PK\x05\x06|PK\x03\x04(?!(?s:.{26})(?:%b))" % _OFFICE_NAMES)


class Member(NamedTuple):
    """A file in an archive.

    data: its bytes, at most MAX_MEMBER_BYTES, and none if there is a `reason` why it is not read.
    size: bytes that it has.
    kind: what it is if it is no file.
    """

    name: str
    size: int
    data: bytes = b""
    reason: str = ""
    kind: str = ""


def zip_members(file: IO[bytes]) -> Iterator[Member]:
    """Yield the members of a zip file. Raises the exceptions of zipfile, and OSError for a large directory."""
    reads: Any = LimitedReads(file, MAX_DIRECTORY_BYTES, _too_long_header)
    with zipfile.ZipFile(reads) as archive:
        entries = archive.infolist()
        file.seek(0)
        if entries and file.read(4) == _ENTRY and min(entry.header_offset for entry in entries) > 0:
            raise zipfile.BadZipFile("another archive stands before it in the file")
        for entry in entries:
            if entry.is_dir() or _is_hidden(entry.filename):
                continue
            name = entry.filename[:MAX_NAME]
            if is_encrypted(entry):
                yield Member(name, entry.file_size, reason=ENCRYPTED_MEMBER)
                continue

            try:
                with archive.open(entry) as opened:
                    data = opened.read(MAX_MEMBER_BYTES)
            except NotImplementedError:
                yield Member(name, entry.file_size, reason=UNKNOWN_METHOD)
                continue
            yield Member(name, max(entry.file_size, len(data)), data)


def tar_members(file: IO[bytes]) -> Iterator[Member]:
    """Yield the members of a tar archive, which is read once from beginning to end.

    Raises TarError for damage and for data after its end, OSError for a header above MAX_DIRECTORY_BYTES, and EOFError
    if it has no end.
    """
    with tarfile.open(fileobj=file, mode="r|", tarinfo=_Entry, errors="surrogateescape") as archive:
        while (entry := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # it remembers all
            if entry.isdir() or _is_hidden(entry.name):
                continue
            name = entry.name[:MAX_NAME]
            if not entry.isfile():
                yield Member(name, 0, kind="a link or a device")
                continue

            opened = archive.extractfile(entry)
            assert opened is not None
            yield Member(name, entry.size, opened.read(min(entry.size, MAX_MEMBER_BYTES)))

        while rest := archive.fileobj.read(_PADDING_BYTES):  # type: ignore[union-attr]
            if rest.strip(b"\0"):
                raise tarfile.ReadError("more follows after its end, such as a second archive")


class _Entry(tarfile.TarInfo):
    """An entry of a tar archive. tarfile itself takes damage after the first one for the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Entry:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise EOFError(f"it has no mark of its end ({error})") from error

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Entry:
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in _LONG_HEADERS and entry.size > MAX_DIRECTORY_BYTES:
            raise _too_long_header(entry.size)
        return entry


def _too_long_header(size: int) -> OSError:
    limit = MAX_DIRECTORY_BYTES >> 20
    return OSError(f"a header or directory of {size >> 20} MB is above the limit of {limit} MB")


def _is_hidden(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return any(part.startswith(".") and part not in (".", "..") for part in parts)


ARCHIVE_ERRORS = (tarfile.TarError, zipfile.BadZipFile, RecursionError, NotImplementedError)
"""Exceptions for damage, in addition to those of open.py."""
