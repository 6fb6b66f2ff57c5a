"""Counts bytes that are not in the encoding of their file, and refuses files that have too many.

A few damaged bytes are removed and reported. Many of them mean that the file is in another encoding, and so do some
that are letters in another encoding; the error says which one is likely. Files are cut into ranges, so each worker
reports the ranges that it read, and a file's reports are added up once all are there. Workers refuse a file if one
range alone has too many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.commit.reports import Report
from pipeline.readers.encodings import UTF8, is_in_other_encoding, is_western
from pipeline.readers.file_encoding import likely_encoding
from pipeline.readers.inputs import COMPRESSED_WEIGHT, FileRange
from pipeline.readers.record import MAX_UNDECODABLE_RATIO, MIN_LETTERS, MIN_PLACES, Record, Rejected, place_in_words
from schemas.errors import DataError

RATIO_OF_OTHER = MAX_UNDECODABLE_RATIO / 20
"""Undecodable share from which a file is refused if its bytes are letters in another encoding, of which books in
English have few."""

OWN_ENCODING = "as each page says"
"""Written for files of pages in several encodings."""

LISTED_FILES = 100  # in the manifest
_SAMPLE_BYTES = 1 << 14  # the encoding is guessed from this many bytes


@dataclass
class UndecodableBytes:
    """Counts what could not be decoded in the records of one range.

    count: undecodable places so far.
    first_offset: offset of the first one.
    size: bytes of the records so far.
    sample: what the first of these records have around it.
    is_found: whether the file's encoding was found, with --encoding auto.
    has_utf8: whether a record has characters outside of ASCII.

    `max_ratio` limits the undecodable share of the whole file: of its size if that is known, else of the records that
    were read.
    """

    file_range: FileRange
    max_ratio: float
    count: int = 0
    first_offset: int = 0
    size: int = 0
    sample: bytes = b""
    is_found: bool = False
    has_utf8: bool = False

    def add(self, record: Record | Rejected) -> None:
        """Count a record."""
        self.size += record.size
        text = record.text if isinstance(record, Record) else ""
        if record.undecodable is None:
            self.has_utf8 |= not text.isascii()
            return
        self.has_utf8 |= not text.replace("\ufffd", "").isascii()

        if self.count == 0:
            self.first_offset = record.undecodable.first_offset
        self.count += record.undecodable.count
        if len(self.sample) < _SAMPLE_BYTES:
            self.sample += record.undecodable.sample + b"\n"

    def check(self) -> Report:
        """Return what `survey_corpus` needs to add up the ranges of a file.

        Raises DataError if this range alone has more than the whole file may have.
        """
        file_range = self.file_range
        encoding = file_range.encoding if file_range.reader.gets == "text" else UTF8
        may_be_other = file_range.reader.gets == "text" and encoding == UTF8
        # A part of a file does not show whether the others have UTF-8.
        is_whole = not file_range.is_cut and file_range.start == 0 and file_range.end >= file_range.size
        is_all_western = may_be_other and is_whole and not self.has_utf8 and is_western(self.sample)
        is_guessed = may_be_other and (self.count >= MIN_PLACES or is_all_western)

        report: Report = {
            "path": file_range.display_path,
            "encoding": OWN_ENCODING if file_range.reader.gets == "plain" else encoding,
            "is_other": is_guessed and is_in_other_encoding(self.sample),
            "is_western": is_all_western and self.count >= MIN_LETTERS,
            "likely": likely_encoding(self.sample) if is_guessed else "",
            "count": self.count,
            "worst_count": self.count,  # that of the range that was guessed from, also after ranges are added up
            "first_place": self.first_offset,
            "size": self._file_bytes(),
        }
        if self.is_found:
            report["is_found"] = True
        place = file_range.place(self.first_offset)
        report |= {name: place[name] for name in ("unit", "compressed_start") if name in place}
        refuse_undecodable([report], self.max_ratio)
        return report

    def _file_bytes(self) -> int:
        """Return the plain bytes of the whole file; an estimate for Parquet, Arrow and cut compressed files."""
        if self.file_range.is_cut or self.file_range.reader.gets == "stored":
            return max(self.size, COMPRESSED_WEIGHT * self.file_range.size)
        return self.size if self.file_range.is_whole_file else self.file_range.size


def refuse_undecodable(reports: Iterable[Report], max_ratio: float, corpus_size: int | None = None) -> None:
    """Raise DataError for the first file, by name, with more than `max_ratio` undecodable bytes or in another encoding.

    A `max_ratio` above the default allows other encodings, too, whose bytes are then removed. Files with fewer than
    MIN_PLACES pass, unless all files together have too many for a corpus of `corpus_size` characters.
    """
    files = reports_by_file(reports)
    for file in files:
        if file.get("is_western") and max_ratio <= MAX_UNDECODABLE_RATIO:
            raise _too_many_error(file, max_ratio)
        is_other = file["is_other"] and max_ratio <= MAX_UNDECODABLE_RATIO
        allowed = min(max_ratio, RATIO_OF_OTHER) if is_other else max_ratio
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
    """Return one report per file, sorted by path, from reports on ranges or on sums of them, in any order."""
    by_path: dict[str, list[Report]] = {}
    for report in reports:
        by_path.setdefault(report["path"], []).append(report)
    return [_add_reports(listed) for _, listed in sorted(by_path.items())]


def _add_reports(reports: list[Report]) -> Report:
    """Return the report on a file; the guess is that of the range with the most undecodable bytes."""
    worst = max(reports, key=lambda report: (report["is_other"], report["worst_count"], report["likely"]))
    first = min(reports, key=lambda report: (report.get("compressed_start", 0), report["first_place"]))
    file = {name: value for name, value in worst.items() if name != "compressed_start"}
    file |= {name: first[name] for name in ("first_place", "compressed_start") if name in first}
    return file | {
        "count": sum(report["count"] for report in reports),
        "size": max(report["size"] for report in reports),
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
    likely = file["likely"]
    if file["encoding"] == OWN_ENCODING:
        advice = "Leave it out with --exclude, or raise --max_undecodable_ratio"
    elif file.get("unit") == "row":
        advice = "The texts of Parquet and Arrow files must be UTF-8: repair the file"
    elif file.get("is_found"):
        guess = f" (it may be {likely} in part)" if likely else ""
        advice = f"--encoding auto found no encoding that fits all of it{guess}: convert or repair the file"
    elif likely:
        advice = (
            f"It may be {likely}: give --encoding {likely} to read it, or --encoding auto to read each file in the "
            "encoding that its bytes show, and look at the result with `inspect`"
        )
    else:
        advice = "Its encoding is unknown: name it with --encoding, or repair the file"

    if not advice.startswith("Leave it out"):
        advice += ", or leave it out with --exclude"
    name = "in the encodings that its pages name" if file["encoding"] == OWN_ENCODING else file["encoding"].upper()
    place = place_in_words(file["first_place"], file)
    limit = f"; --max_undecodable_ratio is {max_ratio:.2%}"
    if file.get("is_western") and not _has_too_many(file["count"], file["size"], max_ratio):
        limit = ", and all are letters or signs in cp1252, none UTF-8"
    # "At least", because it may be one range of the file that has too many.
    return DataError(
        f"{file['path']} is not {name}: at least {file['count']:,} of about {file['size']:,} bytes "
        f"cannot be decoded, the first at {place}{limit}. "
        f"{advice.removesuffix('.')}."
    )
