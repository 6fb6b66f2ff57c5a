"""A sample of the input: the first records of evenly spaced pieces of its files.

Files are cut into about PLACES pieces of equal size or more, as far as their formats can be cut; a file that cannot is
one piece, or a few if it is large. PLACES of these are read, each up to its share of the sample. If they have too few
records, so are others, or more of them, until the sample or the input is complete. So a sample that is larger than the
input is all of it, each record once.

The rule depends on the files and on the size of the sample alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from pipeline.readers.encodings import is_line_safe
from pipeline.readers.formats import ForeignFileError
from pipeline.readers.inputs import FileRange, Split
from pipeline.readers.members import readable_ranges
from pipeline.readers.record import Record, RecordOptions, Rejected
from pipeline.readers.table import read_records

PLACES = 64
"""Pieces that are read at first. Opening one takes a store about a tenth of a second."""


def sample(
    splits: Sequence[Split], count: int, options: RecordOptions
) -> Iterator[tuple[Record | Rejected | ForeignFileError, FileRange]]:
    """Yield `count` records, or all if there are fewer, each with the range that it is from.

    Rejected records count too, except harmless ones (see `Reader`), such as blank lines, which are yielded as well. So
    is the error of a file of a folder that is not text. Raises DataError as `with_format` and `read_records` do.
    """
    ranges = [file_range for split in splits for file_range in split.ranges]
    piece_size = max(1, sum(file_range.weight for file_range in ranges) // PLACES)
    pieces = [piece for file_range in ranges for piece in _cut(file_range, piece_size, options)]
    positions = dict.fromkeys(range(len(pieces)), 0)  # records read of each piece that may have more
    missing = count

    while missing and positions:
        chosen = _evenly_spaced(list(positions), min(PLACES, missing))
        for place, number in enumerate(chosen):
            wanted = -(-missing // (len(chosen) - place))  # rounded up
            if not wanted:
                break

            missing -= wanted
            for record, file_range in islice(_records(pieces[number], options), positions[number], None):
                yield record, file_range
                positions[number] += 1
                wanted -= isinstance(record, Record) or is_bad(record, file_range)
                if not wanted:
                    break
            else:
                del positions[number]
            missing += wanted


def is_bad(record: Rejected | ForeignFileError, file_range: FileRange) -> bool:
    """Return whether a record counts as bad, and is not left out by a rule of its format."""
    return isinstance(record, Rejected) and record.reason not in file_range.reader.harmless


def _records(
    piece: FileRange, options: RecordOptions
) -> Iterator[tuple[Record | Rejected | ForeignFileError, FileRange]]:
    """Yield the records of a piece: of all files in it, if it is an archive."""
    for file_range, problem in readable_ranges(piece, options):
        if problem is not None:
            yield problem, file_range
            continue
        for record in read_records(file_range, options):
            yield record, file_range


def _evenly_spaced(numbers: list[int], count: int) -> list[int]:
    """Return `count` of the numbers, or all if there are fewer, each from the middle of its part of the list."""
    count = min(count, len(numbers))
    return [numbers[(2 * place + 1) * len(numbers) // (2 * count)] for place in range(count)]


def _cut(file_range: FileRange, size: int, options: RecordOptions) -> list[FileRange]:
    """Return the pieces of a range that have about this size, if records begin anywhere in it."""
    is_known = file_range.format != "auto" and file_range.compression is None
    is_record = file_range.format == "text" and options.text_layout == "file"
    if not is_known or is_record or file_range.reader.cuts != "anywhere" or not is_line_safe(file_range.encoding):
        return [file_range]

    start, length = file_range.start, file_range.end - file_range.start
    count = max(1, min(length, file_range.weight // size))
    edges = [start + length * number // count for number in range(count + 1)]
    return [replace(file_range, start=edges[i], end=edges[i + 1]) for i in range(count)]
