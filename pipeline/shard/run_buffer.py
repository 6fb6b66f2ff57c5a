"""Reads a split: its records become documents, which take their steps (documents.py), and those that stay fill runs.

Whatever is left out is counted, and bad records are kept as excerpts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from pipeline.commit.reports import Report
from pipeline.readers.formats import ForeignFileError
from pipeline.readers.inputs import FileRange, Split
from pipeline.readers.members import readable_ranges
from pipeline.readers.record import EXCERPT_CHARACTERS, Record, Rejected
from pipeline.readers.table import read_records
from pipeline.readers.undecodable import UndecodableBytes
from pipeline.shard.documents import STEPS, Document, Drop, ReadOptions
from pipeline.shard.text_layout import count_piece
from schemas.randomness import key
from schemas.shards import TEXT_SCHEMA

RUN_CHARACTERS = 32 << 20
"""Characters of text in one run. With its sorted copy and its file, a worker holds about five times as much."""

MAX_EXCERPTS = 10_000
"""Maximum rejected records per run with an excerpt, of about 1 KB each; all are counted. With a wrong --text_key every
record of a large file is rejected, and no document ever fills the run."""

BEYOND_SHARE = "beyond the share of its corpus"  # reason of the ledger

FOLDER = "folder"
"""Source, in the ledger, of files that a folder holds and that are not text."""

# A document of MANY_LINES lines without a blank line may be that many documents. More than MANY_LONG_LINES suffice if
# every line has LONG_LINE characters or more, because wrapped text has shorter lines.
MANY_LINES = 1000
MANY_LONG_LINES = 100
LONG_LINE = 100

RUN_HOSTS = 1 << 18
"""Maximum hosts of one run, of about 200 bytes each. Runs of ordinary pages have 10,000 documents."""

CHUNK_BYTES = 1 << 20
"""Bytes of sentences that wait as Python strings. So few stay in the processor's cache, and their memory is reused."""

_ITERATED_ROWS = 256  # rows that become Python strings at once


class SentenceColumn:
    """An append-only list of documents, each a list of sentences, in half the memory of Python strings."""

    def __init__(self) -> None:
        self._chunks: list[pa.ListArray] = []
        self._pending: list[list[str]] = []
        self._pending_bytes = 0

    def append(self, sentences: list[str], text_bytes: int) -> None:
        """Add a document whose sentences have `text_bytes` bytes of UTF-8."""
        self._pending.append(sentences)
        self._pending_bytes += text_bytes
        if self._pending_bytes >= CHUNK_BYTES:
            self._close_chunk()

    def to_arrow(self) -> pa.ListArray:
        """Return the column: (documents,) list<string>."""
        self._close_chunk()
        whole = pa.concat_arrays(self._chunks)
        self._chunks = [whole]  # releases the parts
        pa.default_memory_pool().release_unused()
        return whole

    def __iter__(self) -> Iterator[list[str]]:
        for chunk in self._chunks:
            for start in range(0, len(chunk), _ITERATED_ROWS):
                yield from chunk.slice(start, _ITERATED_ROWS).to_pylist()
        yield from self._pending

    def _close_chunk(self) -> None:
        self._chunks.append(pa.array(self._pending, TEXT_SCHEMA.field("sentences").type))
        self._pending = []
        self._pending_bytes = 0


@dataclass
class RunBuffer:
    """Documents in memory that become one run, column by column, and counts of what was dropped and changed.

    languages, confidences: of each document, with --language auto.
    characters, text_bytes: of all sentences.
    ledger: number of dropped records by (reason, source).
    cleaning: number of changes by each cleaning rule.
    dropped: number of documents that a step dropped, or that are beyond a share.
    rejected: number of rejected records, without harmless ones, and `bad` of them by (reason, source).
    excerpts: entries of OUTPUT/rejected/, for the first MAX_EXCERPTS of them.
    listed: entries of OUTPUT/rejected/ for what is no bad record: the first MAX_EXCERPTS files of folders that are not
    text, and documents whose step says so.
    undecodable: one report for each range with undecodable bytes.
    encodings: with --encoding auto, the number of files that were read in each, and the first one; see `add_encodings`.
    unbroken: documents with many lines and no blank line; see `note_unbroken`.
    pieces: of plain text that blank lines cut; see `paragraphs_among`.
    hosts: number of kept documents by the host of their URL, copies among them.
    """

    ids: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    sentences: SentenceColumn = field(default_factory=SentenceColumn)
    languages: list[str] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    characters: int = 0
    text_bytes: int = 0
    ledger: Counter[tuple[str, str]] = field(default_factory=Counter)
    cleaning: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    rejected: int = 0
    bad: Counter[tuple[str, str]] = field(default_factory=Counter)
    excerpts: list[Report] = field(default_factory=list)
    listed: list[Report] = field(default_factory=list)
    undecodable: list[Report] = field(default_factory=list)
    encodings: dict[str, Report] = field(default_factory=dict)
    unbroken: list[Report] = field(default_factory=list)
    pieces: Counter[str] = field(default_factory=Counter)
    hosts: Counter[str] = field(default_factory=Counter)

    def add(self, record: Record, file_range: FileRange, reading: ReadOptions) -> None:
        """Take a document through all steps and keep its sentences. If a step drops it, count it in the ledger."""
        source = file_range.corpus or record.source
        document = Document(record.text, source, self.cleaning, reading.language)
        for step in STEPS:
            done = step(document, reading)
            if isinstance(done, Drop):
                self.ledger[done.reason, source] += 1
                self.dropped += 1
                if done.is_listed:
                    place = file_range.place(record.position)
                    self._list(done.reason, source, place, record.text[:EXCERPT_CHARACTERS])
                return
            document = done

        # The id is that of the cleaned text, so that copies that differ in spaces or line breaks are duplicates too.
        sentences = document.sentences
        joined = " ".join(sentences)
        encoded = joined.encode()
        number = document_id(encoded)
        if reading.share < 1 and not is_in_share(number, reading.share, reading.seed):
            self.ledger[BEYOND_SHARE, source] += 1
            self.dropped += 1
            return
        self.ids.append(number)
        self.sources.append(source)
        if record.host:
            self.hosts[record.host] += 1
        if reading.has_languages:
            self.languages.append(document.language)
            self.confidences.append(document.confidence)

        # The spaces that join sentences belong to none of them.
        spaces = len(sentences) - 1
        text_bytes = len(encoded) - spaces
        self.sentences.append(sentences, text_bytes)
        self.characters += len(joined) - spaces
        self.text_bytes += text_bytes

    def begin(self, file_range: FileRange, reading: ReadOptions) -> None:
        """Count a file, with the range at its beginning: its encoding if that was found, and if blank lines cut it."""
        if file_range.start > 0:
            return
        if reading.finds_encodings and file_range.reader.gets == "text":
            found = {file_range.encoding: {"files": 1, "first": file_range.display_path}}
            self.encodings = add_encodings([self.encodings, found])
        if is_cut_at_blank_lines(file_range, reading):
            self.pieces["files"] += 1

    def note_unbroken(self, record: Record, file_range: FileRange) -> None:
        """Record a plain-text document with many lines but no blank one: its lines may be documents themselves."""
        if _may_be_many_documents(record):
            self.unbroken.append(file_range.place(record.position) | {"lines": record.line_count})

    def reject(self, record: Rejected, file_range: FileRange) -> None:
        """Count a rejected record in the ledger, and keep an excerpt unless it is harmless or there are too many."""
        source = file_range.corpus or record.source
        self.ledger[record.reason, source] += record.count
        if record.reason in file_range.reader.harmless:
            return

        self.rejected += 1
        self.bad[record.reason, source] += 1
        if len(self.excerpts) == MAX_EXCERPTS:
            return

        entry = {
            "reason": record.reason,
            "source": source,
            **file_range.place(record.position),
            "shown": record.excerpt,
        }
        if record.keys:
            entry["keys"] = list(record.keys)
        self.excerpts.append(entry)

    def leave_out(self, file_range: FileRange, error: ForeignFileError) -> None:
        """Count a file of a folder that is not text in the ledger, and keep why. It is no bad record."""
        reason = f"file that looks like {error.kind}"
        source = file_range.corpus or FOLDER
        self.ledger[reason, source] += 1
        self._list(reason, source, file_range.place(0), str(error))

    def _list(self, reason: str, source: str, place: Report, shown: str) -> None:
        if len(self.listed) < MAX_EXCERPTS:
            self.listed.append({"reason": reason, "source": source, **place, "shown": shown})


def add_encodings(tables: Iterable[dict[str, Report]]) -> dict[str, Report]:
    """Add up {encoding: {"files": their number, "first": the first one by path}}. The result is sorted by encoding."""
    added: dict[str, Report] = {}
    for table in tables:
        for encoding, report in table.items():
            known = added.get(encoding, {"files": 0, "first": report["first"]})
            first = min(known["first"], report["first"])
            added[encoding] = {"files": known["files"] + report["files"], "first": first}
    return dict(sorted(added.items()))


def is_cut_at_blank_lines(file_range: FileRange, reading: ReadOptions) -> bool:
    return file_range.format == "text" and reading.text_layout == "blank_line"


def _may_be_many_documents(record: Record) -> bool:
    if record.line_count >= MANY_LINES:
        return True
    return record.line_count > MANY_LONG_LINES and min(map(len, record.text.splitlines())) >= LONG_LINE


def is_in_share(document: int, share: float, seed: int) -> bool:
    """Return whether a document is among a random `share` of all ids. A larger share has all of a smaller one."""
    return key("share", seed, document) < int(share * 2.0**64)


def document_id(text: bytes) -> int:
    """Return the 64-bit id of a document, a hash of the UTF-8 of its sentences with spaces between.

    It does not depend on the file, the position or the split into sentences, so equal ids mean equal text.
    """
    return key("document", text)  # BLAKE2b; expect one collision in 6 billion documents


def read_split(split: Split, reading: ReadOptions) -> Iterator[RunBuffer]:
    """Yield the documents of a split in buffers of about RUN_CHARACTERS.

    There is always a last buffer, even without documents, because its ledger counts too.
    """
    documents = RunBuffer()
    ranges = (readable_ranges(one, reading.of_corpora.get(one.corpus, reading)) for one in split.ranges)
    for file_range, problem in chain.from_iterable(ranges):
        if isinstance(problem, Rejected):
            documents.reject(problem, file_range)
            continue
        if problem is not None:
            documents.leave_out(file_range, problem)
            continue

        options = reading.of_corpora.get(file_range.corpus, reading)
        documents.begin(file_range, options)
        undecodable = UndecodableBytes(file_range, options.max_undecodable_ratio, is_found=options.finds_encodings)
        for record in read_records(file_range, options):
            undecodable.add(record)
            if isinstance(record, Rejected):
                documents.reject(record, file_range)
            else:
                documents.add(record, file_range, options)
                if is_cut_at_blank_lines(file_range, options):
                    documents.note_unbroken(record, file_range)
                    count_piece(documents.pieces, record)

            # Checked after a document is added, so a run exceeds the limit by at most one document.
            if documents.characters >= RUN_CHARACTERS or len(documents.hosts) >= RUN_HOSTS:
                yield documents
                documents = RunBuffer()

        # A range's report goes to the run that contains the end of the range.
        if undecodable.count:
            documents.undecodable.append(undecodable.check())

    yield documents
