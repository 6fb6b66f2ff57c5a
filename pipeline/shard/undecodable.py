"""Counts bytes that are not in the encoding of their file, and refuses files that have too many.

A few damaged bytes are removed and reported. Many of them mean that the file is in another encoding, and so do some
where another encoding fits; the error names it. Files are cut into pieces, so each worker reports the pieces that it
read, and a file's reports are added up once all are there. Workers refuse a file early if one piece alone has too many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.commit.reports import Report
from pipeline.shard.cut_files import open_cut
from pipeline.shard.decompression import DECOMPRESSION_ERRORS, open_plain
from pipeline.shard.encoding_guess import fitting_encodings
from pipeline.shard.encodings import UTF8
from pipeline.shard.inputs import COMPRESSED_WEIGHT, Piece
from pipeline.shard.limits import MAX_RATIO, MAX_UNDECODABLE_RATIO
from pipeline.shard.record import Record, Rejected, place_in_words
from schemas.errors import DataError

MIN_PLACES = 10
"""Minimum undecodable places for a file to be refused. A single bad byte in a small file does not fail a job."""

RATIO_OF_OTHER = MAX_UNDECODABLE_RATIO / 20
"""Undecodable share from which a file is refused if another encoding fits: books may have few letters beyond ASCII."""

LISTED_FILES = 100  # in the manifest
_SAMPLE_BYTES = 1 << 16  # the encoding is guessed from this many bytes
_SKIP_BYTES = 1 << 20  # read at once while skipping to the sample


@dataclass
class UndecodableBytes:
    """Counts what could not be decoded in the records of one piece.

    count: undecodable places so far.
    first_offset: offset of the first one.
    size: bytes of the records so far.

    `max_ratio` limits the undecodable share of the whole file: of its size if that is known, else of the records that
    were read.
    """

    piece: Piece
    max_ratio: float
    max_growth: int = MAX_RATIO
    count: int = 0
    first_offset: int = 0
    size: int = 0

    def add(self, record: Record | Rejected) -> None:
        """Count a record. Raises DataError as soon as the file is certain to have too many undecodable bytes."""
        self.size += record.size
        if record.undecodable is None:
            return

        if self.count == 0:
            self.first_offset = record.undecodable.first_offset
        self.count += record.undecodable.count

        if self.count >= MIN_PLACES and self.count > self.max_ratio * self._max_file_bytes():
            self.check()

    def _max_file_bytes(self) -> int:
        """Return the maximum plain bytes of the file: a compressed one may still have a long, valid rest."""
        growth = self.max_growth if self._is_size_unknown() else 1
        return max(self.size, self.piece.size * growth)

    def check(self) -> Report:
        """Return the report, or raise DataError if this piece alone has more than the whole file may have."""
        report = self.report()
        refuse_undecodable([report], self.max_ratio)
        return report

    def report(self) -> Report:
        """Return what `plan_shards` needs to add up the pieces of a file.

        Only a piece with many undecodable bytes guesses the encoding, because that reads part of the file again.
        """
        piece = self.piece
        encoding = UTF8 if self._is_parquet() else piece.encoding
        fitting: list[str] = []
        if self.count >= MIN_PLACES and encoding == UTF8 and not self._is_parquet():
            fitting = list(fitting_encodings(_sample(piece, self.first_offset)))

        report: Report = {
            "path": piece.display_path,
            "encoding": encoding,
            "fitting": fitting,
            "count": self.count,
            "worst_count": self.count,  # the count of the piece that guessed `fitting`, also after pieces are added up
            "first_place": self.first_offset,
            "size": self._file_bytes(),
        }
        place = piece.place(self.first_offset)
        return report | {name: place[name] for name in ("unit", "compressed_start") if name in place}

    def _is_parquet(self) -> bool:
        return self.piece.format == "parquet"

    def _is_size_unknown(self) -> bool:
        return self.piece.is_whole_file or self.piece.is_cut or self._is_parquet()

    def _file_bytes(self) -> int:
        """Return the plain bytes of the whole file; an estimate for Parquet and cut compressed files."""
        if self.piece.is_cut or self._is_parquet():
            return max(self.size, COMPRESSED_WEIGHT * self.piece.size)
        return self.size if self.piece.is_whole_file else self.piece.size


def refuse_undecodable(reports: Iterable[Report], max_ratio: float, corpus_size: int | None = None) -> None:
    """Raise DataError for the first file, by name, with more than `max_ratio` undecodable bytes or in another encoding.

    A `max_ratio` above the default allows other encodings, too, whose bytes are then removed. Files with fewer than
    MIN_PLACES pass, unless all files together have too many for a corpus of `corpus_size` characters.
    """
    files = reports_by_file(reports)
    for file in files:
        is_in_other = file["fitting"] and max_ratio <= MAX_UNDECODABLE_RATIO
        allowed = min(max_ratio, RATIO_OF_OTHER) if is_in_other else max_ratio
        if _has_too_many(file["count"], file["size"], allowed):
            raise _too_many_error(file, max_ratio)

    if corpus_size is None:
        return
    if _has_too_many(sum(file["count"] for file in files), corpus_size, max_ratio):
        worst = max(files, key=lambda file: file["count"] / max(1, file["size"]))
        raise _too_many_error(worst, max_ratio)


def _has_too_many(count: int, size: int, max_ratio: float) -> bool:
    return count >= MIN_PLACES and count > max_ratio * max(1, size)


def reports_by_file(reports: Iterable[Report]) -> list[Report]:
    """Return one report per file, sorted by path, from reports on pieces or on sums of them, in any order."""
    by_path: dict[str, list[Report]] = {}
    for report in reports:
        by_path.setdefault(report["path"], []).append(report)
    return [_add_pieces(pieces) for _, pieces in sorted(by_path.items())]


def _add_pieces(pieces: list[Report]) -> Report:
    """Return the report on a file; its `fitting` is the guess of the piece with the most undecodable bytes."""
    worst = max(pieces, key=lambda piece: (bool(piece["fitting"]), piece["worst_count"], piece["fitting"]))
    first = min(pieces, key=lambda piece: (piece.get("compressed_start", 0), piece["first_place"]))
    file = {name: value for name, value in worst.items() if name != "compressed_start"}
    file |= {name: first[name] for name in ("first_place", "compressed_start") if name in first}
    return file | {
        "count": sum(piece["count"] for piece in pieces),
        "size": max(piece["size"] for piece in pieces),
    }


def undecodable_statistics(reports: Iterable[Report]) -> Report | None:
    """Return the manifest's statistics: totals, and the LISTED_FILES files with the most, sorted by path."""
    files = reports_by_file(reports)
    if not files:
        return None

    worst = sorted(files, key=lambda file: (-file["count"], file["path"]))[:LISTED_FILES]
    worst_by_path = sorted(worst, key=lambda file: file["path"])
    listed_fields = ("path", "encoding", "count", "first_place", "unit", "compressed_start", "size")
    return {
        "count": sum(file["count"] for file in files),
        "files": len(files),
        "most": [{name: file[name] for name in listed_fields if name in file} for file in worst_by_path],
    }


def _too_many_error(file: Report, max_ratio: float) -> DataError:
    fitting = file["fitting"]
    if fitting:
        advice = f"The file looks like {' or '.join(fitting)}: give --encoding {fitting[0]} to read it"
        if len(fitting) > 1:
            advice += f", or --encoding {fitting[1]}"
    elif file.get("unit") == "row":
        advice = "The texts of Parquet must be UTF-8: repair the file"
    else:
        advice = "No encoding that was tried fits: name the right one with --encoding, or repair the file"

    place = place_in_words(file["first_place"], file)
    # "At least", because reading stops as soon as there are too many.
    return DataError(
        f"{file['path']} is not {file['encoding'].upper()}: at least {file['count']:,} of about {file['size']:,} bytes "
        f"cannot be decoded, the first at {place}; --max_undecodable_ratio is {max_ratio:.2%}. "
        f"{advice}."
    )


def _sample(piece: Piece, offset: int) -> bytes:
    """Return the bytes of the plain file around an offset; empty if they cannot be read.

    The sample begins at a multiple of four, so that it does not cut a character of UTF-16 or UTF-32.
    """
    start = max(0, offset - _SAMPLE_BYTES // 8) & ~3
    try:
        with open_cut(piece, MAX_RATIO) if piece.is_cut else open_plain(piece.path, piece.compression) as file:
            skipped = 0
            while skipped < start:
                block = file.read(min(_SKIP_BYTES, start - skipped))
                if not block:
                    break
                skipped += len(block)
            return file.read(_SAMPLE_BYTES)
    except DECOMPRESSION_ERRORS:
        return b""
