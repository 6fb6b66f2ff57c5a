"""The table of input formats, and the reading of one range of a file.

A new format takes three steps:

    1. A function in a module of this folder, from an open stream to the records of a range: like `json_records` if
       files can be cut, like `pdf_records` if not.
    2. A row of READERS: what the function gets, how files are cut and recognized. What a row claims by a suffix or by
       `begins` is not refused as another kind of file, even if `formats.BINARY_KINDS` lists it. So if files of the
       format begin like one of `formats.BINARY_KINDS`, as office documents do like zip, `begins` has to tell them
       apart.
    3. Its name in `record.Format`, which makes it a value of --format.

If files that were read before now make other records, raise PIECES_VERSION in pipeline/commit/staging.py, so that no
job continues with runs that were made without the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import IO, TYPE_CHECKING, Literal, NamedTuple

from pipeline.readers.archives import BEGINS_TAR, BEGINS_ZIP, Member, tar_members, zip_members
from pipeline.readers.columnar import (
    BEGINS_ARROW,
    BEGINS_PARQUET,
    arrow_records,
    open_arrow,
    open_parquet,
    parquet_records,
)
from pipeline.readers.csv_rows import UNCLOSED, csv_records
from pipeline.readers.cut_files import open_cut
from pipeline.readers.encodings import is_line_safe
from pipeline.readers.html_pages import BEGINS_HTML, HTML_RULES, html_records
from pipeline.readers.json_values import BEGINS_JSON, JSON_RULES, value_records
from pipeline.readers.jsonl import ENDS_EARLY, NO_OBJECT, begins_json_lines, json_records
from pipeline.readers.listing import InputFile, is_unchanged
from pipeline.readers.mediawiki import BEGINS_DUMP, LEFT_OUT, NOT_ALONE, page_records
from pipeline.readers.office import BEGINS_DOCX, BEGINS_EPUB, BEGINS_ODT, OFFICE_RULES, office_records
from pipeline.readers.open import DECOMPRESSION_ERRORS, Stream, open_text
from pipeline.readers.pdf import BEGINS_PDF, PDF_RULES, pdf_records
from pipeline.readers.ranges import HeldFile, open_range
from pipeline.readers.record import BLANK_LINE, Format, Record, RecordOptions, Rejected
from pipeline.readers.text import text_records
from pipeline.readers.warc import BEGINS_WARC, WEB_RULES, check_warc, warc_records
from pipeline.readers.wikiextractor import BEGINS_ARTICLES, wiki_records
from schemas.errors import DataError

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange


class Reader(NamedTuple):
    """How files of one format are recognized, cut and read.

    records: yields the records that begin in the range, from its stream (see `Stream`), which is open already. It gets
        the range to say where something is, and to know whether it begins the file.
    cuts: where large files are cut into ranges. "anywhere": at any byte of a plain file, and at frames of a compressed
        one, or at row groups. "frames": only at frames, because a record begins with one. "whole": nowhere.
    suffixes: of names that stand for the format.
    begins: whether a file without such a name is of this format, given its first bytes, for text as UTF-8; any value
        that is true or false, such as a match.
    gets: what `records` reads.
        "text": plain bytes in --encoding, whose lines come as UTF-8 from `lines_of_range`. `begins` gets UTF-8.
        "plain": plain bytes as they are, whatever --encoding is, of text that says in which encoding it is, or of no
        text at all.
        "members": an archive, which `ranges_in` reads in place of `read_records`. --encoding is that of its members.
        "stored": the file as it is, which must not be compressed. Positions of records count rows, and not bytes.
    harmless: reasons of rejected records that do not count as bad: they say what a record is, not that it is damaged.
    flags: the names of the flags of `shard` that only some formats use, this one among them.
    package: which reads the format, if it may not be installed.
    check: raises DataError if an open file with this name is damaged, and ModuleNotFoundError if its content needs a
        package that is missing.
    members: yields the files in an archive; `records` is None then.
    has_urls: whether records have the host of their URL.
    """

    records: Callable[[Stream, FileRange, RecordOptions], Iterator[Record | Rejected]] | None
    cuts: Literal["anywhere", "frames", "whole"] = "anywhere"
    suffixes: tuple[str, ...] = ()
    begins: Callable[[bytes], object] | None = None
    gets: Literal["text", "plain", "stored", "members"] = "text"
    harmless: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    package: str = ""
    check: Callable[[IO[bytes], str], object] | None = None
    members: Callable[[IO[bytes]], Iterator[Member]] | None = None
    has_urls: bool = False

    @property
    def uses_encoding(self) -> bool:
        """Whether --encoding is that of the file, or of files in it."""
        return self.gets in ("text", "members")

    @property
    def can_be_checked(self) -> bool:
        return self.check is not None or self.package != ""

    def check_file(self, file: InputFile, shown: str) -> None:
        """Raise what `check` does, and ModuleNotFoundError if the package is missing."""
        if self.package:
            import_module(self.package)
        if self.check is not None:
            with open_range(file) as opened:
                self.check(opened, shown)


READERS: dict[Format, Reader] = {
    "jsonl": Reader(
        json_records,
        suffixes=(".jsonc", ".jsonl", ".json", ".ndjson"),
        begins=begins_json_lines,
        harmless=(BLANK_LINE,),
        flags=("text_key", "encoding"),
    ),
    # The names of both end in .json: formats.py tells which one a file is.
    "json": Reader(
        value_records, cuts="whole", begins=BEGINS_JSON.match, harmless=JSON_RULES, flags=("text_key", "encoding")
    ),
    "parquet": Reader(
        parquet_records,
        suffixes=(".parquet", ".pq"),
        begins=BEGINS_PARQUET.match,
        gets="stored",
        flags=("text_key",),
        check=open_parquet,
    ),
    "arrow": Reader(
        arrow_records,
        cuts="whole",
        suffixes=(".arrow", ".feather"),
        begins=BEGINS_ARROW.match,
        gets="stored",
        flags=("text_key",),
        check=open_arrow,
    ),
    # Recognized last of all, in formats.py: other kinds of files have lines of as many fields too.
    "csv": Reader(
        csv_records,
        cuts="whole",
        suffixes=(".csv", ".tsv", ".tab"),
        harmless=(BLANK_LINE,),
        flags=("text_key", "encoding"),
    ),
    "wikiextractor": Reader(wiki_records, begins=BEGINS_ARTICLES.match, flags=("encoding",)),
    "mediawiki": Reader(page_records, begins=BEGINS_DUMP.match, harmless=LEFT_OUT, flags=("encoding",)),
    "warc": Reader(
        warc_records,
        cuts="frames",
        suffixes=(".warc", ".wet"),
        begins=BEGINS_WARC.match,
        gets="plain",
        harmless=WEB_RULES,
        check=check_warc,
        has_urls=True,
    ),
    "html": Reader(
        html_records,
        cuts="whole",
        suffixes=(".html", ".htm", ".xhtml"),
        begins=BEGINS_HTML.match,
        gets="plain",
        harmless=HTML_RULES,
        package="trafilatura",
    ),
    "docx": Reader(office_records, "whole", (".docx",), BEGINS_DOCX.match, "plain", OFFICE_RULES, package="lxml"),
    "odt": Reader(office_records, "whole", (".odt",), BEGINS_ODT.match, "plain", OFFICE_RULES, package="lxml"),
    "epub": Reader(office_records, "whole", (".epub",), BEGINS_EPUB.match, "plain", OFFICE_RULES, package="lxml"),
    "pdf": Reader(pdf_records, "whole", (".pdf",), BEGINS_PDF.match, "plain", PDF_RULES, package="pypdf"),
    "zip": Reader(None, "whole", (".zip",), BEGINS_ZIP.match, "members", flags=("encoding",), members=zip_members),
    "tar": Reader(None, "whole", (".tar",), BEGINS_TAR.match, "members", flags=("encoding",), members=tar_members),
    # The last: whatever is none of the others.
    "text": Reader(text_records, flags=("text_layout", "encoding")),
}


def read_records(file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield the records that begin in the range, whose format must be known (see `inputs.with_format`).

    Raises DataError if the file cannot be read to its end, or has changed since the job began.
    """
    reader = file_range.reader
    assert file_range.format != "auto" and reader.records is not None
    is_whole = reader.cuts == "whole" or not is_line_safe(file_range.encoding)
    if is_whole or (reader.cuts == "frames" and not file_range.is_cut):
        # The file may have been cut before its format or its encoding was known.
        if file_range.start > 0:
            return
        file_range = replace(file_range, end=file_range.size)

    try:
        stream = open_stream(file_range, reader, options)
        with stream.file:
            yield from reader.records(stream, file_range, options)
    except DECOMPRESSION_ERRORS as error:
        raise cut_off(file_range, error) from error

    check_unchanged(file_range)


def check_unchanged(file_range: FileRange) -> None:
    """Raise DataError if a file has changed since it was listed. Takes a request, and none for what is in memory."""
    is_held = isinstance(file_range.file, HeldFile)
    if not is_held and not is_unchanged(file_range.path, file_range.version):
        raise DataError(
            f"{file_range.display_path} changed while it was read. Run the job again once nothing writes to its inputs."
        )


def cut_off(file_range: FileRange, error: Exception) -> DataError:
    """Return the error for a file that ends early, or is damaged otherwise."""
    return DataError(
        f"{file_range.display_path} cannot be read to its end ({error}). "
        "It may be truncated or damaged: copy it again, or leave it out."
    )


def open_stream(file_range: FileRange, reader: Reader, options: RecordOptions) -> Stream:
    """Open a range for its reader. Reading raises the exceptions in DECOMPRESSION_ERRORS for a damaged file."""
    if reader.gets == "stored":
        return Stream(open_range(file_range.file))
    if file_range.is_cut:
        return open_cut(file_range, options.max_decompression_ratio)

    start = max(0, file_range.start - 1)
    file = open_range(file_range.file, start, file_range.end)
    if not file_range.is_whole_file:
        return Stream(file, start, file_range.end - 1)
    return Stream(
        open_text(
            file, file_range.display_path, file_range.compression, file_range.encoding, options.max_decompression_ratio
        )
    )


_ONE_OBJECT_PER_LINE = (
    "JSON lines have one object per line. --format json reads arrays, and objects over several lines."
)

_REMEDIES = {
    NOT_ALONE: "A dump has each tag on a line of its own, as xmllint --format FILE writes it.",
    NO_OBJECT: _ONE_OBJECT_PER_LINE,
    UNCLOSED: "Double the quotes within fields, or write the table as JSON lines or Parquet.",
}


def remedy_of(reason: str, shown: str = "") -> str:
    """Return a sentence on what to do about records that are bad for this reason; empty if nothing is known.

    shown: the beginning of one of them. It tells JSON over several lines from a line that was cut off.
    """
    if reason == ENDS_EARLY and (shown.startswith("[") or shown.strip() == "{"):
        return _ONE_OBJECT_PER_LINE
    if reason.startswith("value is not JSON"):
        return "Repair the file there, or leave it out with --exclude."
    if reason.startswith("record above"):
        return "--max_document_bytes allows longer documents; --text_layout line makes each line a document."
    return _REMEDIES.get(reason, "")
