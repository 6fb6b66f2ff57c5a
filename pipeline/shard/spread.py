"""The first half of the shuffle: one split of the input becomes sorted run files on disk.

Bulk bytes never pass through Beam: workers write runs, Beam carries their reports, and `gather` reads from every run
the part that belongs to its shard. A run is an Arrow file with exactly one record batch a bucket, so the part is found
in the file's own footer. Memory is bounded by RUN_CHARACTERS of text, however large the split.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.shard.cleaning import clean
from pipeline.shard.inputs import Split
from pipeline.shard.records import Record, Rejected, TextLayout, read_records
from pipeline.shard.sentences import Splitter, split_sentences
from pipeline.staging import Staging
from schemas.randomness import key, mix

MAX_SHARDS = 1024  # when the number of shards is ours to choose; a power of two, as is the choice
RUN_CHARACTERS = 64 << 20  # with its sorted copy and its Arrow form a worker holds about four times as much
RUN = pa.schema([("document", pa.uint64()), ("source", pa.string()), ("sentences", pa.list_(pa.string()))])


@dataclass(frozen=True)
class Reading:
    """How records become documents; the part of the job's options that workers need."""

    text_key: str
    text_layout: TextLayout
    language: str
    sentence_splitter: Splitter
    seed: int


@dataclass
class Documents:
    """Documents held in memory, column by column, and what was dropped on the way to them."""

    ids: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    sentences: list[list[str]] = field(default_factory=list)
    characters: int = 0
    ledger: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, text: str, source: str, reading: Reading) -> None:
        """Clean, split and keep one document, or note why not."""
        cleaned, removed = clean(text)
        sentences = split_sentences(cleaned, reading.language, reading.sentence_splitter)
        if removed:
            self.ledger["characters removed by cleaning", source] += removed
        if not sentences:
            self.ledger["empty document", source] += 1
            return
        self.ids.append(document_id(sentences))
        self.sources.append(source)
        self.sentences.append(sentences)
        self.characters += sum(map(len, sentences))


def document_id(sentences: list[str]) -> int:
    """A document's name, from its text alone: neither its file, its place in it nor how it was split into sentences."""
    return key("document", " ".join(sentences))


def placements(documents: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Where documents stand in the shuffled corpus: a bijection of their ids, another for each seed."""
    return mix(documents ^ np.uint64(key("placement", seed)))


def spread(split: Split, reading: Reading, num_shards: int | None, staging: Staging) -> list[dict[str, Any]]:
    """Write one split's runs and return their reports; what an earlier attempt finished is not made again."""
    done = staging.report(f"split-{split.index:06d}")
    if done is not None:
        return done["runs"]
    reports = []
    for documents in documents_of(split, reading):
        name = f"run-{split.index:06d}-{len(reports):04d}.arrow"
        report = {
            "run": name,
            "documents": len(documents.ids),
            "characters": documents.characters,
            "ledger": [[*entry, count] for entry, count in sorted(documents.ledger.items())],
        }
        staging.keep(name, encode_run(documents, reading.seed, num_shards or MAX_SHARDS), report)
        reports.append(report)
    staging.keep(f"split-{split.index:06d}", b"", {"runs": reports})
    return reports


def documents_of(split: Split, reading: Reading) -> Iterator[Documents]:
    """The split's documents, RUN_CHARACTERS of text at a time; at least one lot, for its ledger."""
    documents = Documents()
    for record in read_records(split, reading.text_key, reading.text_layout):
        match record:
            case Record(text, source):
                documents.add(text, source, reading)
            case Rejected(reason, source):
                documents.ledger[reason, source] += 1
        if documents.characters >= RUN_CHARACTERS:
            yield documents
            documents = Documents()
    yield documents


def encode_run(documents: Documents, seed: int, buckets: int) -> bytes:
    """The documents sorted by placement, one record batch for each bucket of placements."""
    ids = np.array(documents.ids, dtype=np.uint64)
    placed = placements(ids, seed)
    order = np.argsort(placed, kind="stable")
    columns = [pa.array(ids), pa.array(documents.sources, pa.string()), pa.array(documents.sentences, RUN.types[2])]
    batch = pa.record_batch(columns, schema=RUN)
    # bucket b holds placements in [b, b + 1) * 2**64 / buckets
    lower = [-(-(b << 64) // buckets) for b in range(1, buckets)]
    cuts = [0, *np.searchsorted(placed[order], np.array(lower, dtype=np.uint64)).tolist(), len(ids)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, RUN, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for start, end in itertools.pairwise(cuts):
            # taken, not sliced: a slice of nested columns would be written with all of their values
            writer.write_batch(batch.take(pa.array(order[start:end])))
    return sink.getvalue().to_pybytes()
