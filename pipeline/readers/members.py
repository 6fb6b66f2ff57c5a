"""From a range of the input to what is read of it: itself, or the members of the archive that it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.readers.archives import ARCHIVE_ERRORS, MAX_MEMBER_BYTES, NESTED, Member
from pipeline.readers.formats import ForeignFileError
from pipeline.readers.inputs import FileRange, with_format
from pipeline.readers.open import DECOMPRESSION_ERRORS, compression_of, open_plain, refuse_bomb
from pipeline.readers.ranges import HeldFile, open_range
from pipeline.readers.record import RecordOptions, Rejected
from pipeline.readers.table import check_unchanged, cut_off
from schemas import storage
from schemas.errors import DataError

SOURCE = "archive"
"""Source, in the ledger, of members that are not read."""


@dataclass(frozen=True, slots=True)
class MemberRange(FileRange):
    """A whole member of an archive, in memory. Its path is the archive's with the member's name behind."""

    data: bytes = b""

    @property
    def file(self) -> HeldFile:
        return HeldFile.of(self.path, self.data)


def readable_ranges(
    file_range: FileRange, options: RecordOptions
) -> Iterator[tuple[FileRange, Rejected | ForeignFileError | None]]:
    """Yield the range with its format, or the members of the archive that it is, each with what keeps it from being
    read.

    Raises ForeignFileError for a file that is not text, unless only its folder was named, and DataError as
    `with_format` and `ranges_in` do.
    """
    try:
        file_range = with_format(file_range)
    except ForeignFileError as error:
        if not file_range.in_folder:
            raise
        if file_range.start == 0:
            yield file_range, error
        return

    if file_range.reader.members is not None:
        yield from ranges_in(file_range, options)
    else:
        yield file_range, None


def ranges_in(
    archive: FileRange, options: RecordOptions
) -> Iterator[tuple[FileRange, Rejected | ForeignFileError | None]]:
    """Yield the members of an archive, each with None, or with the reason why it is not read.

    Raises DataError if the archive cannot be read to its end, has changed, or has a text above MAX_MEMBER_BYTES.
    """
    read_members = archive.reader.members
    assert read_members is not None
    if archive.start > 0:  # it was cut before its format was known
        return

    shown = archive.display_path
    max_ratio = options.max_decompression_ratio
    plain_bytes = 0
    try:
        with open_plain(open_range(archive.file), shown, compression_of(archive.path), max_ratio) as file:
            for member in read_members(file):
                plain_bytes += len(member.data)
                refuse_bomb(shown, plain_bytes, archive.size, max_ratio)
                yield _member_range(archive, member)
    except (*DECOMPRESSION_ERRORS, *ARCHIVE_ERRORS) as error:
        raise cut_off(archive, error) from error
    check_unchanged(archive)


def _member_range(archive: FileRange, member: Member) -> tuple[FileRange, Rejected | ForeignFileError | None]:
    name = storage.printable(member.name)
    size = len(member.data)
    found: FileRange = MemberRange(
        path=f"{archive.path}/{name}",
        start=0,
        end=size,
        size=size,
        weight=size,
        version="",
        format="auto",
        compression=compression_of(name),
        path_as_written=f"{archive.display_path}/{name}",
        encoding=archive.encoding,
        in_folder=True,
        corpus=archive.corpus,
        data=member.data,
    )
    if member.reason:
        return found, Rejected(member.reason, SOURCE, 0)
    if member.kind:
        return found, ForeignFileError(f"{found.display_path} is {member.kind}, not a file.", member.kind)

    try:
        found = with_format(found)
    except ForeignFileError as error:
        return found, error
    if found.reader.members is not None:
        return found, Rejected(NESTED, SOURCE, 0)
    if member.size > MAX_MEMBER_BYTES:
        raise DataError(
            f"{found.display_path} has {member.size >> 20:,} MB, and members of archives are read up to "
            f"{MAX_MEMBER_BYTES >> 20} MB. Unpack the archive, and give the folder as --input."
        )
    try:
        found.reader.check_file(found.file, found.display_path)
    except ModuleNotFoundError as error:
        raise DataError(
            f"{found.display_path} needs the package {error.name}, which is not installed. It comes with the extra "
            '"corpora": pip install "clozeline[corpora]"'
        ) from error
    return found, None
