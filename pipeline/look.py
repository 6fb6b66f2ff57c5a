"""Looks at a folder before anything is made of it: kinds, encodings and copies of files, keys of texts, languages.

Up to MAX_OPENED files are opened, and SAMPLE documents are read, so this takes seconds for any folder. The amounts are
estimates; `shard` says what became of every file.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

import pyarrow as pa

from pipeline.readers.encodings import AUTO, UTF8
from pipeline.readers.formats import ForeignFileError, advice_on, named_format
from pipeline.readers.inputs import FileRange, Split, ranges_of, with_format
from pipeline.readers.listing import InputFile, list_inputs
from pipeline.readers.open import DECOMPRESSION_ERRORS
from pipeline.readers.record import Record, RecordOptions, TextLayout
from pipeline.readers.sampling import sample
from pipeline.shard.detection import detect_language, model_hash
from pipeline.text_keys import ROWS_OF, head_lines, text_key
from schemas import storage
from schemas.errors import DataError, UsageError
from schemas.terminal import counted

MAX_OPENED = 1000
"""Files that are opened, and that are compared. Of further ones, their names alone tell what they are."""

END_BYTES = 64 << 10  # at both ends of files of equal size, which are compared first
MAX_COMPARED_BYTES = 256 << 20  # of files that are read whole, because their ends agree

SAMPLE = 400
"""Documents that are read."""

MAX_BOOK_BYTES = 8 << 20  # of a text file that is one document
PARAGRAPH_BYTES = 500
"""Blank lines that divide plain text into smaller pieces than this, on average, divide paragraphs, not documents."""

LINE_BYTES = 200
"""Lines without a blank one between them that are longer than this, on average, are documents, not paragraphs."""
FEW_FILES = 30
LARGE_FILE = 2 << 20
"""Up to this many text files, or above this mean size in bytes, a file is probably not one document."""


@dataclass(frozen=True)
class Kind:
    """Files of one kind. name: their format, or what they are if they are left out."""

    name: str
    is_read: bool
    files: int
    bytes: int


@dataclass(frozen=True)
class Look:
    """What a folder holds.

    text_key: of records and tables, as a flag of `shard`. text_layout: what separates documents in plain text.
    text_bytes, documents: estimates. languages: the share of the sampled text in each, most first; empty if the
    identifier is not installed. encodings: files of text that are not UTF-8, by their encoding. copies: files with the
    same bytes as another one. are_all_copies: False if there were too many files or bytes to compare. ranges: the files
    that are read.
    """

    kinds: list[Kind]
    text_key: str
    text_layout: TextLayout
    text_bytes: int
    documents: int
    languages: dict[str, float]
    encodings: dict[str, int]
    copies: int
    are_all_copies: bool = True
    ranges: list[FileRange] = field(default_factory=list)


@dataclass
class _Sampled:
    """Sums over sampled documents. record_bytes: what they take in their files. by_language: bytes of text."""

    documents: int = 0
    text_bytes: int = 0
    record_bytes: int = 0
    by_language: Counter[str] = field(default_factory=Counter)


def look_at(folder: str) -> Look:
    """Look at a folder, a file or a pattern. Raises UsageError if it holds no text."""
    try:
        files = list_inputs(folder).files
    except UsageError as error:
        raise UsageError(str(error).removeprefix("--input ")) from error
    found = [_found(file, is_opened=number < MAX_OPENED) for number, file in enumerate(files)]
    kinds = _kinds(files, found)
    readable = [one for one in found if isinstance(one, FileRange)]
    if not readable:
        raise _no_text(folder, kinds)

    options = RecordOptions(_text_keys(readable), _text_layout(readable))
    by_format: dict[str, list[FileRange]] = {}
    for file_range in readable:
        by_format.setdefault(file_range.format, []).append(file_range)

    # Each format by itself, because the share of text in a file differs most between formats.
    sampled = {name: _sampled(ranges, options) for name, ranges in by_format.items()}
    text_bytes = sum(_estimated_bytes(by_format[name], one) for name, one in sampled.items())
    documents = sum(one.documents for one in sampled.values())
    if text_bytes == 0:
        raise _no_text(folder, kinds)
    copies, are_all_copies = _copies([one.file for one in readable])
    mean_bytes = sum(one.text_bytes for one in sampled.values()) / max(documents, 1)
    return Look(
        kinds,
        options.text_key,
        options.text_layout,
        text_bytes,
        documents=round(text_bytes / max(mean_bytes, 1)),
        languages=_shares(sum((one.by_language for one in sampled.values()), Counter())),
        encodings=dict(Counter(one.encoding for one in readable if one.encoding not in (UTF8, AUTO)).most_common()),
        copies=copies,
        are_all_copies=are_all_copies,
        ranges=readable,
    )


def documents_of(look: Look, count: int) -> Iterator[Record]:
    """Yield about `count` documents of what was looked at, from places all over it."""
    yield from islice(_records(look.ranges, RecordOptions(look.text_key, look.text_layout), count), count)


def look_lines(folder: str, look: Look) -> Iterator[str]:
    """Yield lines for the terminal: kinds of files, read and left out, and the text in them."""
    files = sum(kind.files for kind in look.kinds)
    size = megabytes(sum(kind.bytes for kind in look.kinds))
    yield f"{storage.printable(folder)}: {counted(files, 'file')}, {size}"
    for title, is_read in (("read", True), ("left out", False)):
        for kind in look.kinds:
            if kind.is_read == is_read:
                yield f"  {title:<9} {kind.files:>7,} x {megabytes(kind.bytes):>11}  {kind.name}{advice_on(kind.name)}"
    languages = ", ".join(f"{code} {share:.0%}" for code, share in look.languages.items() if share >= 0.005)
    documents = counted(look.documents, "document")
    yield f"About {megabytes(look.text_bytes)} of text in {documents}; languages: {languages or '?'}."
    if look.encodings:
        yield f"Not UTF-8: {', '.join(f'{files:,} x {name}' for name, files in look.encodings.items())}."
    if look.copies:
        least = "" if look.are_all_copies else "at least "
        yield f"Copies: {least}{look.copies:,} of the files have the same bytes as another one."


def megabytes(size: int) -> str:
    """Return a size in bytes as people read it."""
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size:,} bytes"


def _no_text(folder: str, kinds: list[Kind]) -> UsageError:
    found = ", ".join(
        f"{kind.files:,} x {kind.name}{' without text' if kind.is_read else advice_on(kind.name)}" for kind in kinds
    )
    return UsageError(f"{storage.printable(folder)} holds no text that can be read: {found}.")


def _found(file: InputFile, is_opened: bool) -> FileRange | str:
    """Return the whole file as a range with its format, or what it is if it is left out."""
    named = None if is_opened else named_format(file.path)
    file_range = next(ranges_of(file, named or "auto", AUTO))
    file_range = replace(file_range, end=file.size, in_folder=True)
    try:
        return with_format(file_range) if is_opened else file_range
    except ForeignFileError as error:
        return error.kind
    except DataError as error:
        return str(error)


def _kinds(files: list[InputFile], found: list[FileRange | str]) -> list[Kind]:
    """Return the kinds of files: those that are read first, and of these the largest."""
    counts: Counter[tuple[str, bool]] = Counter()
    sizes: Counter[tuple[str, bool]] = Counter()
    for file, one in zip(files, found, strict=True):
        kind = (one.format.replace("auto", "not opened"), True) if isinstance(one, FileRange) else (one, False)
        counts[kind] += 1
        sizes[kind] += file.size
    order = sorted(counts, key=lambda kind: (not kind[1], -sizes[kind], kind[0]))
    return [Kind(*kind, counts[kind], sizes[kind]) for kind in order]


def _copies(files: list[InputFile]) -> tuple[int, bool]:
    """Return how many files have the bytes of another one, and whether all were compared.

    Only files of equal size are read, at first their ends, and none of a store.
    """
    sizes = Counter(file.size for file in files)
    alike = [file for file in files if file.size and sizes[file.size] > 1 and storage.is_local(file.path)]
    by_ends: dict[tuple[int, bytes], list[InputFile]] = defaultdict(list)
    for file in alike[:MAX_OPENED]:
        with suppress(OSError):  # `shard` says what is wrong
            by_ends[file.size, _hash_of_ends(file)].append(file)

    copies, are_all, left = 0, len(alike) <= MAX_OPENED, MAX_COMPARED_BYTES
    for (size, _), group in sorted(by_ends.items(), key=lambda item: item[0]):
        if len(group) == 1:
            continue
        if size <= 2 * END_BYTES:
            copies += len(group) - 1
            continue
        compared = group[: left // size] if left >= 2 * size else []
        left -= size * len(compared)
        are_all = are_all and len(compared) == len(group)
        with suppress(OSError):
            copies += len(compared) - len({_hash(file.path) for file in compared})
    return copies, are_all


def _hash_of_ends(file: InputFile) -> bytes:
    with open(file.path, "rb") as opened:
        ends = opened.read(END_BYTES)
        opened.seek(max(END_BYTES, file.size - END_BYTES))
        return hashlib.blake2b(ends + opened.read(END_BYTES)).digest()


def _hash(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _text_keys(ranges: list[FileRange]) -> str:
    """Return the keys of all texts as alternatives: "text" first, then those of most files."""
    files: Counter[str] = Counter()
    for file_range in ranges:
        if file_range.format in ROWS_OF:
            with suppress(DataError, csv.Error, pa.ArrowException, *DECOMPRESSION_ERRORS):  # `shard` says what is wrong
                files[text_key(file_range)] += 1
    return "|".join(sorted(files, key=lambda key: (key != "text", -files[key], key))) or "text"


def _text_layout(ranges: list[FileRange]) -> TextLayout:
    """Return "file" if plain text looks like books: blank lines divide it into paragraphs. "line": see LINE_BYTES."""
    texts = [one for one in ranges if one.format == "text"]
    if not texts:
        return "blank_line"
    are_parts = len(texts) <= FEW_FILES or sum(one.size for one in texts) > LARGE_FILE * len(texts)
    if are_parts and all(map(_has_a_document_in_each_line, texts[:FEW_FILES])):
        return "line"
    if max(one.size for one in texts) > MAX_BOOK_BYTES:
        return "blank_line"
    sampled = _sampled(texts, RecordOptions("text", "blank_line"))
    is_divided = sampled.text_bytes < PARAGRAPH_BYTES * sampled.documents
    return "file" if is_divided and sampled.documents > len(texts) else "blank_line"


def _has_a_document_in_each_line(file_range: FileRange) -> bool:
    with suppress(DataError, *DECOMPRESSION_ERRORS):
        lines = head_lines(file_range)
        return len(lines) > 1 and all(map(str.strip, lines)) and len("".join(lines).encode()) > LINE_BYTES * len(lines)
    return False


def _sampled(ranges: list[FileRange], options: RecordOptions) -> _Sampled:
    """Read a sample of these files. Those that cannot be read count nothing here: `shard` reports them."""
    sums = _Sampled()
    finds_languages = _has_identifier()
    for record in _records(ranges, options):
        size = len(record.text.encode(errors="replace"))
        sums.documents += 1
        sums.text_bytes += size
        sums.record_bytes += record.size
        if finds_languages:
            sums.by_language[detect_language(record.text)[0]] += size
    return sums


def _records(ranges: list[FileRange], options: RecordOptions, count: int = SAMPLE) -> Iterator[Record]:
    each = max(1, count // len(ranges))
    for file_range in ranges[:: max(1, len(ranges) // count)]:
        try:
            for record, _ in sample([Split(0, (file_range,))], each, options):
                if isinstance(record, Record):
                    yield record
        except (DataError, pa.ArrowException, *DECOMPRESSION_ERRORS):
            continue


def _has_identifier() -> bool:
    try:
        return bool(model_hash())
    except UsageError:
        return False


def _estimated_bytes(ranges: list[FileRange], sampled: _Sampled) -> int:
    stored = sum(one.weight if one.compression else one.size for one in ranges)
    share = sampled.text_bytes / sampled.record_bytes if sampled.record_bytes else 1
    return int(stored * min(share, 10))


def _shares(by_language: Counter[str]) -> dict[str, float]:
    total = by_language.total()
    return {code: size / total for code, size in by_language.most_common()} if total else {}
