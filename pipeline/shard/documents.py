"""Turns records of a split into documents: cleans them, splits them into sentences, and collects them into runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pipeline.commit.reports import Report
from pipeline.shard.cleaning import clean, drop_long_words
from pipeline.shard.copies import Dedup
from pipeline.shard.inputs import Piece, Split, with_format
from pipeline.shard.limits import MAX_RATIO, MAX_RECORD, MAX_UNDECODABLE_RATIO, Limits
from pipeline.shard.records import Record, Rejected, TextLayout, read_records
from pipeline.shard.sentence_column import SentenceColumn
from pipeline.shard.sentences import Splitter, split_sentences
from pipeline.shard.undecodable import UndecodableBytes
from schemas.randomness import key

RUN_CHARACTERS = 32 << 20
"""Characters of text in one run. With its sorted copy and its file, a worker holds about four times as much."""

MAX_EXCERPTS = 10_000
"""Maximum rejected records per run with an excerpt, of about 1 KB each; all are counted. With a wrong --text_key every
record of a large file is rejected, and no document ever fills the run."""

HARMLESS_REASONS = ("blank line",)
"""Reasons of rejected records that do not count as bad."""

# A document of MANY_LINES lines without a blank line may be that many documents. MANY_LONG_LINES are enough if every
# line has LONG_LINE characters or more, because wrapped text has shorter lines.
MANY_LINES = 1000
MANY_LONG_LINES = 100
LONG_LINE = 100


@dataclass(frozen=True)
class ReadOptions:
    """How records become documents: the part of the job's options that workers need."""

    text_key: str
    text_layout: TextLayout
    language: str
    sentence_splitter: Splitter
    dedup: Dedup
    seed: int
    max_undecodable_ratio: float = MAX_UNDECODABLE_RATIO
    max_document_bytes: int = MAX_RECORD
    max_decompression_ratio: int = MAX_RATIO

    @property
    def limits(self) -> Limits:
        return Limits(self.max_document_bytes, self.max_decompression_ratio)


@dataclass
class RunBuffer:
    """Documents in memory that become one run, column by column, and counts of what was dropped and changed.

    characters, text_bytes: of all sentences.
    ledger: number of dropped records by (reason, source).
    cleaning: number of changes by each cleaning rule.
    rejected: number of rejected records, without harmless ones.
    excerpts: entries of OUTPUT/rejected/, for the first MAX_EXCERPTS of them.
    undecodable: one report for each piece with undecodable bytes.
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
    undecodable: list[Report] = field(default_factory=list)
    unbroken: list[Report] = field(default_factory=list)

    def add(self, record: Record, reading: ReadOptions) -> None:
        """Clean a document, split it and keep its sentences. If there are none, count it in the ledger."""
        text = clean(record.text, self.cleaning)
        sentences = split_sentences(text, reading.language, reading.sentence_splitter, self.cleaning)
        sentences = drop_long_words(sentences, self.cleaning)
        if not sentences:
            self.ledger["empty document", record.source] += 1
            return

        # The id is that of the cleaned text, so that copies that differ in spaces or line breaks are duplicates too.
        joined = " ".join(sentences)
        encoded = joined.encode()
        self.ids.append(_id_of_text(encoded))
        self.sources.append(record.source)

        # The spaces that join sentences belong to none of them.
        spaces = len(sentences) - 1
        text_bytes = len(encoded) - spaces
        self.sentences.append(sentences, text_bytes)
        self.characters += len(joined) - spaces
        self.text_bytes += text_bytes

    def note_unbroken(self, record: Record, piece: Piece) -> None:
        """Record a plain-text document with many lines but no blank one: its lines may be documents themselves."""
        if piece.format == "text" and _may_be_many_documents(record):
            self.unbroken.append(piece.place(record.position) | {"lines": record.line_count})

    def reject(self, record: Rejected, piece: Piece) -> None:
        """Count a rejected record in the ledger, and keep an excerpt unless it is harmless or there are too many."""
        self.ledger[record.reason, record.source] += record.count
        if record.reason in HARMLESS_REASONS:
            return

        self.rejected += 1
        if len(self.excerpts) == MAX_EXCERPTS:
            return

        entry = {
            "reason": record.reason,
            "source": record.source,
            **piece.place(record.position),
            "shown": record.excerpt,
        }
        if record.keys:
            entry["keys"] = list(record.keys)
        self.excerpts.append(entry)


def _may_be_many_documents(record: Record) -> bool:
    if record.line_count >= MANY_LINES:
        return True
    return record.line_count > MANY_LONG_LINES and min(map(len, record.text.splitlines())) >= LONG_LINE


def document_id(sentences: list[str]) -> int:
    """Return the 64-bit id of a document, a hash of its text alone.

    It does not depend on the file, the position or the split into sentences, so equal ids mean equal text.
    """
    return _id_of_text(" ".join(sentences).encode())


def _id_of_text(encoded: bytes) -> int:
    return key("document", encoded)  # BLAKE2b; expect one collision in 6 billion documents


def read_documents(split: Split, reading: ReadOptions) -> Iterator[RunBuffer]:
    """Yield the documents of a split in buffers of about RUN_CHARACTERS.

    There is always a last buffer, even without documents, because its ledger counts too.
    """
    documents = RunBuffer()
    for piece in split.pieces:
        piece = with_format(piece)
        undecodable = UndecodableBytes(piece, reading.max_undecodable_ratio, reading.max_decompression_ratio)

        for record in read_records(piece, reading.text_key, reading.text_layout, reading.limits):
            undecodable.add(record)

            if isinstance(record, Rejected):
                documents.reject(record, piece)
            else:
                documents.add(record, reading)
                if reading.text_layout == "blank_line":
                    documents.note_unbroken(record, piece)

            # Checked after a document is added, so a run exceeds the limit by at most one document.
            if documents.characters >= RUN_CHARACTERS:
                yield documents
                documents = RunBuffer()

        # A piece's report goes to the run that contains the end of the piece.
        if undecodable.count:
            documents.undecodable.append(undecodable.check())

    yield documents
