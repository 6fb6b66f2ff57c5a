"""What a sample of files says of all of them: documents, bytes of text, languages, and records that are bad."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.readers.columnar import parquet_rows
from pipeline.readers.formats import E_MAIL, ForeignFileError, advice_on
from pipeline.readers.inputs import FileRange, Split
from pipeline.readers.open import DECOMPRESSION_ERRORS
from pipeline.readers.record import MAX_UNDECODABLE_RATIO, Record, RecordOptions, Rejected, place_in_words
from pipeline.readers.sampling import PLACES, is_bad, sample
from pipeline.readers.table import cut_off, remedy_of
from pipeline.readers.undecodable import UndecodableBytes
from pipeline.shard.detection import detect_language, is_installed, shares_of_scripts
from schemas.errors import DataError

SAMPLE = 400
"""Documents of each format that are read."""

SLOW = {"html": 50, "warc": 50, "pdf": 50}
"""The same of formats of which a core reads some 15 a second."""

MAX_WITHOUT_TEXT = 2000  # records without one between them that is read, in a file
MAX_BAD = 0.01
"""Share of bad records above which `shard` refuses the input by default."""


_TAG = r"(?i)</?(?:p|br|div|span|li|h[1-6]|em|strong|pre|code|blockquote)\b[^<>]*>|</a>|&(?:lt|gt|amp|quot|nbsp|#\d+);"
_HEADERS = rf"(?i)\A(?:{E_MAIL.beginning.decode()})"
_TRAITS = {
    'hold HTML, which is read as it is: docs/input.md, "HTML in texts", has lines that remove it': re.compile(_TAG),
    f"begin with headers, which are read, too{advice_on(E_MAIL.name)}": re.compile(_HEADERS),
}
"""What is said of the texts in records and tables if this share of them is so:"""
_MANY = 0.25
_SEARCHED = 100_000  # characters of a text, for these


@dataclass
class Sampled:
    """Sums over sampled documents. by_language, by_script: bytes of text. empty: records whose key has none. traits:
    those with text by _TRAITS.

    all_documents, all_bytes: of text in all of their files, about. bad: the records that are none. bad_files: a
    sentence on the first of them in each file, by path.
    """

    documents: int = 0
    text_bytes: int = 0
    by_language: Counter[str] = field(default_factory=Counter)
    by_script: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    empty: int = 0
    traits: Counter[str] = field(default_factory=Counter)
    all_documents: float = 0
    all_bytes: float = 0
    bad: int = 0
    bad_files: dict[str, str] = field(default_factory=dict)


@dataclass
class _OfFile:
    """Sums over the sampled records of a file. record_bytes: what all of them take in it."""

    records: int = 0
    documents: int = 0
    text_bytes: int = 0
    record_bytes: int = 0

    def add(self, record: Record | Rejected | ForeignFileError) -> None:
        self.records += 1
        self.documents += isinstance(record, Record) and not is_empty(record)
        self.record_bytes += 0 if isinstance(record, ForeignFileError) else record.size


def sampled_from(ranges: list[FileRange], options: RecordOptions, faults: dict[str, str]) -> Sampled:
    """Read a sample of these files. faults: gets a sentence for each of them that cannot be read, by path."""
    sums = Sampled()
    count = SLOW.get(ranges[0].format, SAMPLE)
    finds_languages = is_installed()
    read: dict[tuple[str, str], UndecodableBytes] = {}
    files: dict[str, _OfFile] = defaultdict(_OfFile)
    for record, file_range, file in records_of(ranges, options, count, faults):
        files[file].add(record)
        if not isinstance(record, ForeignFileError):
            new = UndecodableBytes(file_range, MAX_UNDECODABLE_RATIO, is_found=True)
            read.setdefault((file, file_range.path), new).add(record)
        has_key = "text_key" in file_range.reader.flags
        if isinstance(record, Record) and has_key and is_empty(record):
            sums.empty += 1
        elif isinstance(record, Record):
            size = len(record.text.encode(errors="replace"))
            sums.documents += 1
            sums.text_bytes += size
            files[file].text_bytes += size
            for script, share in shares_of_scripts(record.text).items():
                sums.by_script[script] += share * size
            if has_key:
                sums.traits.update(told for told, sign in _TRAITS.items() if sign.search(record.text, 0, _SEARCHED))
            if finds_languages:
                sums.by_language[detect_language(record.text)[0]] += size
        elif isinstance(record, Rejected) and is_bad(record, file_range):
            sums.bad += 1
            sums.bad_files.setdefault(file_range.path, _describe(record, file_range, options.text_key))

    _estimate(sums, ranges, files, count)
    for (file, _), undecodable in read.items():
        try:
            undecodable.check()
        except DataError as error:
            faults.setdefault(file, str(error))
    return sums


def _estimate(sums: Sampled, ranges: list[FileRange], files: dict[str, _OfFile], count: int) -> None:
    """Set what all of these files hold, about; at least what was read, as how much files shrank is not known."""
    if ranges[0].format == "parquet":
        scale = parquet_rows(ranges, PLACES) / max(1, sums.documents + sums.empty + sums.bad)
        sums.all_documents, sums.all_bytes = scale * sums.documents, scale * sums.text_bytes
        return

    # File by file: some have little text among other records, and some many short texts.
    opened = ranges[:: max(1, len(ranges) // count)]
    for one in opened:
        found, scale = files[one.path], 1.0
        if found.records >= count // len(ranges):  # there may be more
            scale = max(scale, _stored(one) / max(found.record_bytes, found.text_bytes / 10, 1))
        sums.all_documents += scale * found.documents
        sums.all_bytes += scale * found.text_bytes
    others = sum(map(_stored, ranges)) / max(1, sum(map(_stored, opened)))
    sums.all_documents *= others
    sums.all_bytes *= others


def _stored(file_range: FileRange) -> int:
    return file_range.weight if file_range.compression else file_range.size


def bad_records(sampled: Collection[Sampled]) -> dict[str, str]:
    """Return a sentence on the first bad record of each file, by path, if more than MAX_BAD of all are bad, about."""
    bad = records = 0.0
    for one in sampled:
        read = one.documents + one.empty + one.bad
        is_sample = one.text_bytes > 0 and read > SAMPLE // 2  # of fewer, these are most or all
        scale = one.all_bytes / one.text_bytes if is_sample else 1
        bad += scale * one.bad
        records += scale * read
    if bad <= MAX_BAD * records:
        return {}
    return {path: sentence for one in sampled for path, sentence in one.bad_files.items()}


def traits_of(sampled: Collection[Sampled], text_key: str) -> Iterator[str]:
    """Yield a sentence on records without text, and on texts of which many hold something else than prose."""
    documents = sum(one.documents for one in sampled)
    if empty := sum(one.empty for one in sampled):
        yield f"{empty:,} of {empty + documents:,} sampled records are left out: {text_key} is null or empty in them."
    for told, count in sum((one.traits for one in sampled), Counter[str]()).items():
        if count >= _MANY * documents:
            yield f"{count / documents:.0%} of the sampled texts {told}."


def is_empty(record: Record) -> bool:
    return not record.text.strip()


def is_one_document(file_range: FileRange) -> bool:
    return file_range.reader.gets == "plain" and file_range.reader.cuts == "whole"


def _describe(record: Rejected, file_range: FileRange, text_key: str) -> str:
    if is_one_document(file_range):
        return f"{file_range.display_path}: {record.reason}. Repair the file, or leave it out with --exclude."
    place = place_in_words(record.position, file_range.place(record.position))
    found = f"{record.reason}, at {place} of {file_range.display_path}. {remedy_of(record.reason)}".rstrip()
    if record.keys:
        both = f"{text_key}|{record.keys[0]}"
        found += f" It has strings under {', '.join(record.keys)}, which --text_key {shlex.quote(both)} reads."
    return f"More bad records than --max_bad_ratio {MAX_BAD}: {found}"


def records_of(
    ranges: list[FileRange], options: RecordOptions, count: int, faults: dict[str, str]
) -> Iterator[tuple[Record | Rejected | ForeignFileError, FileRange, str]]:
    """Yield about `count` records with their range, which may be a member of an archive, and the path of their file."""
    each = max(1, count // len(ranges))
    for file_range in ranges[:: max(1, len(ranges) // count)]:
        without_text = 0
        try:
            for record, one in sample([Split(0, (file_range,))], each, options):
                yield record, one, file_range.path
                without_text = without_text + 1 if isinstance(record, Rejected) else 0
                if without_text > MAX_WITHOUT_TEXT:
                    break
        except (DataError, pa.ArrowException, *DECOMPRESSION_ERRORS) as error:
            found = error if isinstance(error, DataError) else cut_off(file_range, error)
            faults.setdefault(file_range.path, str(found))
