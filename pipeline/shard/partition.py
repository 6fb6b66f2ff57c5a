"""The first half of the shuffle: one split of the input becomes sorted run files.

Bulk bytes never pass through Beam: workers write runs, Beam carries their reports, and `gather` reads from every run
the part that belongs to its shard. A run is an Arrow file with exactly one record batch a bucket, so the part is found
in the file's own footer. Memory is bounded by RUN_CHARACTERS of text, however large the split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.runtime.bucket_files import encode_buckets
from pipeline.runtime.counters import Report
from pipeline.runtime.staging import Staging
from pipeline.shard.cleaning import clean, drop_long_words
from pipeline.shard.inputs import Piece, Split
from pipeline.shard.limits import MAX_RATIO, MAX_RECORD, MAX_UNDECODABLE_RATIO, Limits
from pipeline.shard.near_duplicates import encode_signatures
from pipeline.shard.records import Record, Rejected, TextLayout, read_records
from pipeline.shard.sentences import Splitter, split_sentences
from pipeline.shard.undecodable import UndecodableBytes
from schemas.randomness import key, mix
from schemas.shards import TEXT

MAX_SHARDS = 1024  # when the number of shards is ours to choose; a power of two, as is the choice
RUN_CHARACTERS = 32 << 20  # with its Arrow form a worker holds about five times as much
HARMLESS = ("blank line",)  # reasons for a rejection that do not make a corpus bad
MANY_LINES = 1000  # a document with so many lines and none of them blank may be as many documents;
MANY_LONG_LINES = 100  # fewer are enough where every line is longer than those of wrapped text
LONG_LINE = 100  # characters


@dataclass(frozen=True)
class ReadOptions:
    """How records become documents; the part of the job's options that workers need."""

    text_key: str
    text_layout: TextLayout
    language: str
    sentence_splitter: Splitter
    near_duplicates: bool
    seed: int
    max_undecodable_ratio: float = MAX_UNDECODABLE_RATIO
    max_document_bytes: int = MAX_RECORD
    max_decompression_ratio: int = MAX_RATIO

    @property
    def limits(self) -> Limits:
        return Limits(self.max_document_bytes, self.max_decompression_ratio)


@dataclass
class Documents:
    """Documents held in memory, column by column, and what was dropped and changed on the way to them."""

    ids: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    sentences: list[list[str]] = field(default_factory=list)
    characters: int = 0
    text_bytes: int = 0
    ledger: Counter[tuple[str, str]] = field(default_factory=Counter)
    cleaning: Counter[str] = field(default_factory=Counter)
    rejected: list[Report] = field(default_factory=list)
    undecodable: list[Report] = field(default_factory=list)
    unbroken: list[Report] = field(default_factory=list)

    def add(self, record: Record, reading: ReadOptions) -> None:
        """Clean, split and keep one document, or note that it holds nothing."""
        text = clean(record.text, self.cleaning)
        sentences = split_sentences(text, reading.language, reading.sentence_splitter)
        sentences = drop_long_words(sentences, self.cleaning)
        if not sentences:
            self.ledger["empty document", record.source] += 1
            return
        self.ids.append(document_id(sentences))
        self.sources.append(record.source)
        self.sentences.append(sentences)
        self.characters += sum(map(len, sentences))
        self.text_bytes += sum(len(sentence.encode()) for sentence in sentences)

    def note_unbroken(self, record: Record, piece: Piece) -> None:
        """Remember a document of many lines in plain text, where a blank line should end it."""
        if piece.format == "text" and _may_be_many(record):
            self.unbroken.append({"path": piece.shown_path, "place": record.place, "lines": record.lines})

    def reject(self, record: Rejected, piece: Piece) -> None:
        self.ledger[record.reason, record.source] += record.count
        if record.reason not in HARMLESS:
            entry = {"reason": record.reason, "source": record.source, "path": piece.shown_path, "place": record.place}
            self.rejected.append(entry | {"shown": record.shown})


def _may_be_many(record: Record) -> bool:
    """Return whether the lines of a document may be documents themselves."""
    if record.lines >= MANY_LINES:
        return True
    return record.lines > MANY_LONG_LINES and min(map(len, record.text.splitlines())) >= LONG_LINE


def document_id(sentences: list[str]) -> int:
    """A document's name, from its text alone: neither its file, its place in it nor how it was split into sentences."""
    return key("document", " ".join(sentences))


def placements(documents: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Where documents stand in the shuffled corpus: a bijection of their ids, another for each seed."""
    return mix(documents ^ np.uint64(key("placement", seed)))


def write_runs(split: Split, reading: ReadOptions, num_shards: int | None, staging: Staging) -> list[Report]:
    """Write one split's runs and return their reports; what an earlier attempt finished is not made again."""
    done = staging.report(report_name(split))
    if done is not None:
        return done["runs"]
    reports = []
    for documents in documents_of(split, reading):
        name = f"run-{split.index:06d}-{len(reports):04d}"
        staging.put(f"{name}.arrow", encode_run(documents, reading.seed, num_shards or MAX_SHARDS))
        if reading.near_duplicates:
            for suffix, data in encode_signatures(documents.ids, documents.sentences).items():
                staging.put(f"{name}.{suffix}", data)
        if documents.rejected:
            staging.put(f"{name}.rejected.jsonl", b"".join(orjson.dumps(r) + b"\n" for r in documents.rejected))
        reports.append(report_of(name, documents))
    staging.keep_report(report_name(split), {"runs": reports})
    return reports


def report_name(split: Split) -> str:
    return f"split-{split.index:06d}"


def report_of(name: str, documents: Documents) -> Report:
    """What Beam carries of a run."""
    return {
        "run": name,
        "documents": len(documents.ids),
        "characters": documents.characters,
        "text_bytes": documents.text_bytes,
        "ledger": [[*entry, count] for entry, count in sorted(documents.ledger.items())],
        "cleaning": dict(sorted(documents.cleaning.items())),
        "rejected": len(documents.rejected),
        "first_rejected": documents.rejected[0] if documents.rejected else None,
        "undecodable": documents.undecodable,
        "unbroken": len(documents.unbroken),
        "first_unbroken": documents.unbroken[0] if documents.unbroken else None,
    }


def documents_of(split: Split, reading: ReadOptions) -> Iterator[Documents]:
    """The split's documents, RUN_CHARACTERS at a time; at least one lot, for its ledger."""
    documents = Documents()
    for piece in split.pieces:
        undecodable = UndecodableBytes(piece, reading.max_undecodable_ratio, reading.max_decompression_ratio)

        for record in read_records(piece, reading.text_key, reading.text_layout, reading.limits):
            undecodable.add(record)
            if isinstance(record, Rejected):
                documents.reject(record, piece)
            else:
                documents.add(record, reading)
                if reading.text_layout == "blank_line":
                    documents.note_unbroken(record, piece)

            if documents.characters >= RUN_CHARACTERS:
                yield documents
                documents = Documents()

        if undecodable.count:
            documents.undecodable.append(undecodable.check())
    yield documents


def encode_run(documents: Documents, seed: int, buckets: int) -> bytes:
    """The documents by placement, one record batch for each bucket of placements."""
    ids = np.array(documents.ids, dtype=np.uint64)
    columns = [pa.array(ids), pa.array(documents.sources, pa.string()), pa.array(documents.sentences, TEXT.types[2])]
    return encode_buckets(pa.record_batch(columns, schema=TEXT), placements(ids, seed), buckets)
