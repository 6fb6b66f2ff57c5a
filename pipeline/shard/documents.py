"""Turns records of a split into documents: each takes the steps of STEPS, and those that stay are collected into runs.

A new filter is a function here, such as `without_sentences`, and a row of STEPS. Whatever it drops is in the ledger by
its reason. If it has a flag, that is a field of ShardJob and of ReadOptions, handed on in pipeline/jobs/shard.py, so
that a job with another value is another job (ShardJob is in pipeline/options.py). If not, raise PIECES_VERSION in
pipeline/commit/staging.py, so that no job continues with runs that were made without it.

Copies within a run are dropped next, in write_runs.py; all others, near-duplicates and held-out documents in
write_shard.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa

from pipeline.commit.reports import Report
from pipeline.filters.measures import Measured
from pipeline.filters.rules import RULES, Thresholds
from pipeline.readers.formats import ForeignFileError
from pipeline.readers.inputs import FileRange, Split, with_format
from pipeline.readers.record import MAX_UNDECODABLE_RATIO, Record, RecordOptions, Rejected
from pipeline.readers.table import read_records
from pipeline.readers.undecodable import UndecodableBytes
from pipeline.shard.cleaning import clean, drop_long_words
from pipeline.shard.copies import Dedup
from pipeline.shard.sentences import Splitter, lines_of, sentences_of
from schemas.randomness import key
from schemas.shards import TEXT_SCHEMA

RUN_CHARACTERS = 32 << 20
"""Characters of text in one run. With its sorted copy and its file, a worker holds about five times as much."""

MAX_EXCERPTS = 10_000
"""Maximum rejected records per run with an excerpt, of about 1 KB each; all are counted. With a wrong --text_key every
record of a large file is rejected, and no document ever fills the run."""

FOLDER = "folder"
"""Source, in the ledger, of files that a folder holds and that are not text."""

# A document of MANY_LINES lines without a blank line may be that many documents. More than MANY_LONG_LINES suffice if
# every line has LONG_LINE characters or more, because wrapped text has shorter lines.
MANY_LINES = 1000
MANY_LONG_LINES = 100
LONG_LINE = 100

CHUNK_BYTES = 1 << 20
"""Bytes of sentences that wait as Python strings. So few stay in the processor's cache, and their memory is reused."""

_ITERATED_ROWS = 256  # rows that become Python strings at once


# ---- Steps ----


@dataclass(slots=True)
class Document:
    """A document on its way from its record to a run.

    source: as in `Record`. changes: the run's counts of changes by their names, to which a step adds.
    blocks: the lines of each part of the text between blank lines, once a step has found them. sentences: likewise.
    """

    text: str
    source: str
    changes: Counter[str]
    blocks: list[list[str]] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Drop:
    """What a step returns instead of a document that is left out. reason: that of the ledger."""

    reason: str


Step = Callable[["Document", "ReadOptions"], "Document | Drop"]
"""Changes a document and returns it, or drops it."""


def clean_text(document: Document, options: ReadOptions) -> Document:
    """Make the text plain by the rules of cleaning.py."""
    document.text = clean(document.text, document.changes)
    return document


def find_lines(document: Document, options: ReadOptions) -> Document:
    """Join the wrapped lines of the text. Without --filters, which judge its blocks, the whole text is one block."""
    blocks = document.text.split("\n\n") if options.filters else [document.text]
    document.blocks = [lines_of(block, options.sentence_splitter, document.changes) for block in blocks]
    if options.filters:
        document.blocks = [list(filter(None, map(str.strip, block))) for block in document.blocks]
    return document


def filter_lines(document: Document, options: ReadOptions) -> Document | Drop:
    """Remove the lines that fail a rule of --filters, and count them by the rule that they failed first.

    Drops a document of which no line is left, by the set whose rule removed the last one. A document that was empty
    before stays for a later step.
    """
    if not any(document.blocks) or not options.filters:
        return document
    rules = [(name, RULES[name], options.filters[name]) for name in _rules("line", options)]
    edits = [rule.edit for _, rule, _ in rules if rule.edit]
    last_set = ""
    for block in document.blocks:
        for edit in edits:
            block[:] = map(edit, block)

        kept = []
        for line in block:
            broken = (name for name, rule, threshold in rules if rule.fails(rule.measure(line), threshold))
            failed = next(broken, None)
            if failed is None:
                kept.append(line)
            else:
                document.changes[f"lines removed ({failed})"] += 1
                last_set = RULES[failed].set
        block[:] = kept
    return document if any(document.blocks) else Drop(f"{last_set} filter: no line left")


def filter_text(document: Document, options: ReadOptions) -> Document | Drop:
    """Drop a document whose text fails a rule of --filters."""
    blocks = list(filter(None, document.blocks))
    return _judged(document, Measured(blocks), "text", options) if options.filters and blocks else document


def split_text(document: Document, options: ReadOptions) -> Document:
    """Split the lines into sentences, without words that are encoded files."""
    lines = list(chain.from_iterable(document.blocks))
    sentences = sentences_of(lines, options.language, options.sentence_splitter)
    document.sentences = drop_long_words(sentences, document.changes)
    return document


def without_sentences(document: Document, options: ReadOptions) -> Document | Drop:
    """Drop a document without sentences."""
    return document if document.sentences else Drop("empty document")


def filter_sentences(document: Document, options: ReadOptions) -> Document | Drop:
    """Drop a document whose sentences fail a rule of --filters."""
    return _judged(document, document.sentences, "sentences", options) if options.filters else document


def _judged(document: Document, measured: Any, judges: str, options: ReadOptions) -> Document | Drop:
    """Return the document, or a Drop that names the first rule that it fails.

    measured: what rules that judge `judges` measure.
    """
    for name in _rules(judges, options):
        rule = RULES[name]
        if rule.fails(rule.measure(measured), options.filters[name]):
            return Drop(f"{rule.set} filter: {name}")
    return document


def _rules(judges: str, options: ReadOptions) -> list[str]:
    return [name for name in options.filters if RULES[name].judges == judges]


STEPS: tuple[Step, ...] = (
    clean_text,
    find_lines,
    filter_lines,
    filter_text,
    split_text,
    without_sentences,
    filter_sentences,
)
"""What is done to each document, in this order."""


@dataclass(frozen=True)
class ReadOptions(RecordOptions):
    """How files become documents: the part of the job's options that workers need."""

    language: str
    sentence_splitter: Splitter
    dedup: Dedup
    seed: int
    _: KW_ONLY
    max_undecodable_ratio: float = MAX_UNDECODABLE_RATIO
    filters: Thresholds = field(default_factory=dict)
    steps: tuple[Step, ...] = STEPS


# ---- Runs ----


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
        """Yield the sentences of each document."""
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

    characters, text_bytes: of all sentences.
    ledger: number of dropped records by (reason, source).
    cleaning: number of changes by each cleaning rule.
    rejected: number of rejected records, without harmless ones.
    excerpts: entries of OUTPUT/rejected/, for the first MAX_EXCERPTS of them.
    files: entries of OUTPUT/rejected/ for the first MAX_EXCERPTS files of folders that are not text.
    undecodable: one report for each range with undecodable bytes.
    unbroken: documents with many lines and no blank line; see `note_unbroken`.
    """

    ids: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    sentences: SentenceColumn = field(default_factory=SentenceColumn)
    characters: int = 0
    text_bytes: int = 0
    ledger: Counter[tuple[str, str]] = field(default_factory=Counter)
    cleaning: Counter[str] = field(default_factory=Counter)
    rejected: int = 0
    excerpts: list[Report] = field(default_factory=list)
    files: list[Report] = field(default_factory=list)
    undecodable: list[Report] = field(default_factory=list)
    unbroken: list[Report] = field(default_factory=list)

    def add(self, record: Record, reading: ReadOptions) -> None:
        """Take a document through all steps and keep its sentences. If a step drops it, count it in the ledger."""
        document: Document | Drop = Document(record.text, record.source, self.cleaning)
        for step in reading.steps:
            document = step(document, reading)
            if isinstance(document, Drop):
                self.ledger[document.reason, record.source] += 1
                return

        # The id is that of the cleaned text, so that copies that differ in spaces or line breaks are duplicates too.
        sentences = document.sentences
        joined = " ".join(sentences)
        encoded = joined.encode()
        self.ids.append(document_id(encoded))
        self.sources.append(record.source)

        # The spaces that join sentences belong to none of them.
        spaces = len(sentences) - 1
        text_bytes = len(encoded) - spaces
        self.sentences.append(sentences, text_bytes)
        self.characters += len(joined) - spaces
        self.text_bytes += text_bytes

    def note_unbroken(self, record: Record, file_range: FileRange) -> None:
        """Record a plain-text document with many lines but no blank one: its lines may be documents themselves."""
        if file_range.format == "text" and _may_be_many_documents(record):
            self.unbroken.append(file_range.place(record.position) | {"lines": record.line_count})

    def reject(self, record: Rejected, file_range: FileRange) -> None:
        """Count a rejected record in the ledger, and keep an excerpt unless it is harmless or there are too many."""
        self.ledger[record.reason, record.source] += record.count
        if record.reason in file_range.reader.harmless:
            return

        self.rejected += 1
        if len(self.excerpts) == MAX_EXCERPTS:
            return

        entry = {
            "reason": record.reason,
            "source": record.source,
            **file_range.place(record.position),
            "shown": record.excerpt,
        }
        if record.keys:
            entry["keys"] = list(record.keys)
        self.excerpts.append(entry)

    def leave_out(self, file_range: FileRange, error: ForeignFileError) -> None:
        """Count a file of a folder that is not text in the ledger, and keep why. It is no bad record."""
        reason = f"file that looks like {error.kind}"
        self.ledger[reason, FOLDER] += 1
        if len(self.files) < MAX_EXCERPTS:
            self.files.append({"reason": reason, "source": FOLDER, **file_range.place(0), "shown": str(error)})


def _may_be_many_documents(record: Record) -> bool:
    if record.line_count >= MANY_LINES:
        return True
    return record.line_count > MANY_LONG_LINES and min(map(len, record.text.splitlines())) >= LONG_LINE


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
    for file_range in split.ranges:
        try:
            file_range = with_format(file_range)
        except ForeignFileError as error:
            if not file_range.in_folder:
                raise
            if file_range.start == 0:
                documents.leave_out(file_range, error)
            continue
        undecodable = UndecodableBytes(file_range, reading.max_undecodable_ratio, reading.max_decompression_ratio)

        for record in read_records(file_range, reading):
            undecodable.add(record)

            if isinstance(record, Rejected):
                documents.reject(record, file_range)
            else:
                documents.add(record, reading)
                if reading.text_layout == "blank_line":
                    documents.note_unbroken(record, file_range)

            # Checked after a document is added, so a run exceeds the limit by at most one document.
            if documents.characters >= RUN_CHARACTERS:
                yield documents
                documents = RunBuffer()

        # A range's report goes to the run that contains the end of the range.
        if undecodable.count:
            documents.undecodable.append(undecodable.check())

    yield documents
