"""Bytes that are not in a file's encoding: how many may be, and the error that names the encoding that would fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.runtime.counters import Report
from pipeline.shard.decompression import UNREADABLE, open_plain
from pipeline.shard.encoding_guess import fitting_encodings
from pipeline.shard.encodings import UTF8
from pipeline.shard.inputs import Piece
from pipeline.shard.limits import MAX_RATIO
from pipeline.shard.record import Record, Rejected
from schemas.errors import DataError

MIN_PLACES = 10  # fewer are removed and reported, so that one bad byte of a small file does not fail a job
SHOWN_FILES = 100  # in the manifest
_SAMPLE = 1 << 16  # bytes in which the encoding is looked for


@dataclass
class UndecodableBytes:
    """What was not decodable in the records of one piece so far.

    The share is of the bytes of the whole file: its size where that is known, else the records that were read.
    """

    piece: Piece
    max_ratio: float
    max_growth: int = MAX_RATIO
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
        if self.count >= MIN_PLACES and self.count > self.max_ratio * self._largest_size():
            self.check()

    def _largest_size(self) -> int:
        """Return the bytes that the plain file has at most; a compressed one may be good behind a bad beginning."""
        return max(self.size, self.piece.size * (self.max_growth if self.piece.is_whole_file else 1))

    def check(self) -> Report:
        """Return the report, or raise DataError when this piece alone has more than the whole file may have."""
        report = self.report()
        refuse_undecodable([report], self.max_ratio)
        return report

    def report(self) -> Report:
        """Return what `survey` needs to add up the pieces of a file.

        Of the pieces of a file with too much at least one has too much itself, so that one looks for the encoding.
        """
        plain_bytes = self.size if self.piece.is_whole_file else self.piece.end - self.piece.start
        is_suspect = self.count > self.max_ratio * plain_bytes and self.piece.encoding == UTF8
        return {
            "path": self.piece.shown_path,
            "encoding": self.piece.encoding,
            "fitting": list(fitting_encodings(_sample(self.piece, self.first_place))) if is_suspect else [],
            "count": self.count,
            "first_place": self.first_place,
            "size": self.size if self.piece.is_whole_file else self.piece.size,
        }


def refuse_undecodable(reports: Iterable[Report], max_ratio: float, corpus_size: int | None = None) -> None:
    """Raise DataError for the first file, by name, of whose bytes more than `max_ratio` cannot be decoded.

    Files with less than MIN_PLACES are let pass, unless all of them together have too much of `corpus_size` characters.
    """
    files = by_file(reports)
    for file in files:
        if file["count"] >= MIN_PLACES and file["count"] > max_ratio * max(1, file["size"]):
            raise _error(file, max_ratio)

    count = sum(file["count"] for file in files)
    if corpus_size is not None and count >= MIN_PLACES and count > max_ratio * max(1, corpus_size):
        raise _error(max(files, key=lambda file: file["count"] / max(1, file["size"])), max_ratio)


def by_file(reports: Iterable[Report]) -> list[Report]:
    """Return one report a file, by path, out of those of its pieces."""
    by_path: dict[str, list[Report]] = {}
    for report in reports:
        by_path.setdefault(report["path"], []).append(report)
    return [_merged(pieces) for _, pieces in sorted(by_path.items())]


def _merged(pieces: list[Report]) -> Report:
    worst = max(pieces, key=lambda piece: (bool(piece["fitting"]), piece["count"]))
    return worst | {
        "count": sum(piece["count"] for piece in pieces),
        "first_place": min(piece["first_place"] for piece in pieces),
    }


def undecodable_statistics(reports: Iterable[Report]) -> Report | None:
    """Return what the manifest says: the count in all, and the SHOWN_FILES files with the most, by path."""
    files = by_file(reports)
    if not files:
        return None

    most = sorted(files, key=lambda file: (-file["count"], file["path"]))[:SHOWN_FILES]
    kept = ("path", "encoding", "count", "first_place", "size")
    return {
        "count": sum(file["count"] for file in files),
        "files": len(files),
        "most": [{name: file[name] for name in kept} for file in sorted(most, key=lambda file: file["path"])],
    }


def _error(file: Report, max_ratio: float) -> DataError:
    if file["fitting"]:
        advice = f"It looks like {' or '.join(file['fitting'])}: give --encoding {file['fitting'][0]} to read it"
        if len(file["fitting"]) > 1:
            advice += f", or --encoding {file['fitting'][1]}"
    else:
        advice = "No encoding that was tried fits: name the right one with --encoding, or repair the file"
    return DataError(
        f"{file['path']} is not {file['encoding'].upper()}: {file['count']:,} of about {file['size']:,} bytes cannot "
        f"be decoded, the first at byte {file['first_place']:,}, and --max_undecodable_ratio allows {max_ratio:.2%}. "
        f"{advice}."
    )


def _sample(piece: Piece, place: int) -> bytes:
    """Return the bytes of the plain file around a place, from an even place on."""
    start = max(0, place - _SAMPLE // 8) & ~3
    try:
        with open_plain(piece.path, piece.compression) as file:
            skipped = 0
            while skipped < start and (block := file.read(min(1 << 20, start - skipped))):
                skipped += len(block)
            return file.read(_SAMPLE)
    except UNREADABLE:
        return b""
