"""Bytes that are not in a file's encoding: how many may be, and the error that names the encoding that would fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.reports import Report
from pipeline.shard.decompression import UNREADABLE, compression_of, open_plain
from pipeline.shard.encoding_guess import guess_encoding
from pipeline.shard.encodings import UTF8
from pipeline.shard.inputs import Piece
from pipeline.shard.record import Record, Rejected
from schemas.errors import DataError

ENOUGH_TO_TELL = 16 << 20  # bytes of a compressed file, after which it may be refused before its end
_SAMPLE = 1 << 16  # bytes in which the encoding is looked for


@dataclass
class UndecodableBytes:
    """What was not decodable in the records of one piece so far.

    The share is of the bytes of the whole file: its size where that is known, else the records that were read.
    """

    piece: Piece
    max_ratio: float
    count: int = 0
    first_place: int = 0
    size: int = 0

    def add(self, record: Record | Rejected) -> None:
        """Count what a record has. Raises DataError as soon as the file is certain to have too much."""
        self.size += record.size
        if record.undecodable is None:
            return

        if self.count == 0:
            self.first_place = record.undecodable.place
        self.count += record.undecodable.count
        if self.size >= ENOUGH_TO_TELL:
            self.check()

    def check(self) -> None:
        """Raise DataError when this piece alone has more than the whole file may have."""
        refuse_undecodable([self.report()], self.max_ratio)

    def report(self) -> Report:
        """What `survey` needs to add up the pieces of a file."""
        return {
            "path": self.piece.path,
            "encoding": self.piece.encoding,
            "count": self.count,
            "first_place": self.first_place,
            "size": self.size if self.piece.is_whole_file else self.piece.size,
        }


def refuse_undecodable(reports: Iterable[Report], max_ratio: float) -> None:
    """Raise DataError for the first file, by name, of whose bytes more than `max_ratio` cannot be decoded."""
    by_path: dict[str, list[Report]] = {}
    for report in reports:
        by_path.setdefault(report["path"], []).append(report)

    for path, pieces in sorted(by_path.items()):
        count = sum(piece["count"] for piece in pieces)
        if count > max_ratio * max(1, pieces[0]["size"]):
            first_place = min(piece["first_place"] for piece in pieces)
            raise _error(path, pieces[0], count, first_place, max_ratio)


def _error(path: str, piece: Report, count: int, first_place: int, max_ratio: float) -> DataError:
    fitting = guess_encoding(_sample(path, first_place)) if piece["encoding"] == UTF8 else None
    if fitting is not None:
        advice = f"It looks like {fitting}: give --encoding {fitting} to read it"
    else:
        advice = "No encoding that was tried fits: name its own with --encoding, or repair the file"
    return DataError(
        f"{path} is not {piece['encoding'].upper()}: {count:,} of about {piece['size']:,} bytes cannot be decoded, the "
        f"first at byte {first_place:,}, and --max_undecodable_ratio allows {max_ratio:.2%}. {advice}."
    )


def _sample(path: str, place: int) -> bytes:
    """Return the bytes of the plain file around a place, from an even place on."""
    start = max(0, place - _SAMPLE // 8) & ~3
    try:
        with open_plain(path, compression_of(path)) as file:
            skipped = 0
            while skipped < start and (block := file.read(min(1 << 20, start - skipped))):
                skipped += len(block)
            return file.read(_SAMPLE)
    except UNREADABLE:
        return b""
