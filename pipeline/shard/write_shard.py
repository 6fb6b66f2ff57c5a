"""Write shards, the second half of the shuffle: sorts the documents of one shard and drops duplicates.

A shard is a range of placements (see write_runs.py), and an exchange brings its documents together from all runs. The
shard, about --shard_megabytes of text unless --num_shards makes it larger, is held in memory: n documents cost O(n log
n). No worker needs another worker's shard, so all shards can be written at once. With --holdout, held-out documents are
set aside here (holdout.py).

Documents with equal text have equal ids and thus equal placements, so they meet in the same shard; see copies.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.commit.reports import Report, add_histograms, total
from pipeline.commit.staging import Staging
from pipeline.shard import survey
from pipeline.shard.copies import COPIES, Dedup, content_keys, drop_copies, dropped_by_source
from pipeline.shard.holdout import HELD_OUT, is_held_out, write_held_out
from pipeline.shard.write_runs import placements
from schemas import shards

LedgerEntries = list[tuple[str, str, int]]
"""(reason, source, count) of dropped documents."""

DROPPED_SCHEMA = pa.schema([("document", pa.uint64())])
"""The ids of near-duplicates to drop. They travel to their shard in the same exchange as the documents."""


@dataclass(frozen=True)
class ShardOptions:
    """What decides the documents of a shard and their order, besides the runs.

    dedup: whether documents with equal text are dropped. seed: determines the order, and which documents are held out.
    holdout: the share of documents that go to the held-out folder instead; None for no such folder.
    drop_repeats: how many sentences in a row have to be repeated to be removed (repeats.py); None to remove none.
    """

    dedup: Dedup
    seed: int
    holdout: float | None = None
    drop_repeats: int | None = None


def write_shard(
    name: str, read_tables: Callable[[], list[pa.Table]], options: ShardOptions, staging: Staging
) -> Report:
    """Write the text shard `name` into staging and return its report.

    `read_tables` returns its documents, in the columns of `run_schema`, and with `dedup` "minhash" also the ids to drop
    (DROPPED_SCHEMA). A shard that an earlier attempt finished is not made again. Raises DataError if the shard has more
    text than an Arrow column can hold.
    """
    finished = staging.report(name)
    if finished is not None:
        return finished

    table, documents, report = collect_documents(name, read_tables, options, staging)
    data, encoded = encode_text_shard(name, table, documents["row"].to_numpy())
    return staging.keep(name, data, {**encoded, **report})


def collect_documents(
    name: str, read_tables: Callable[[], list[pa.Table]], options: ShardOptions, staging: Staging
) -> tuple[pa.Table, pa.Table, Report]:
    """Return the rows of a shard, its documents, and what its report says about them.

    The rows are a table with one chunk. The documents are those that stay, in order, as `sort_documents` returns them.
    Writes the held-out documents into staging. Arguments and errors are those of `write_shard`.
    """
    table, *drops = read_tables()
    table, ledger = _without_copies(table, options.dedup)

    if text_bytes(table) > survey.MAX_SHARD_BYTES:
        raise survey.too_large_shard(name, text_bytes(table))
    table = table.combine_chunks()
    pa.default_memory_pool().release_unused()  # frees the chunks, which are as large as the shard

    documents, dropped = _drop_near_duplicates(sort_documents(table, options.seed), drops)
    ledger += dropped

    # After all duplicates are dropped, so that the document that stays decides for its copies.
    held_out: Report = {}
    if options.holdout is not None:
        is_chosen = is_held_out(documents["document"].to_numpy(), options.holdout, options.seed)
        rows = table.take(documents["row"].filter(pa.array(is_chosen)))
        written = write_held_out(name, rows, options.seed, staging)
        held_out["held_out"] = written | {"text_bytes": text_bytes(rows)}
        documents, dropped = drop_documents(documents, is_chosen, HELD_OUT)
        ledger += dropped

    return table, documents, {"ledger": ledger, **count_documents(table, documents), **held_out}


def count_documents(table: pa.Table, documents: pa.Table) -> Report:
    """Return the number of documents by source and by language. They are `row`s of the table."""
    has_languages = "language" in table.column_names
    return {
        "sources": count_values(documents["source"]),
        "languages": count_values(table["language"].take(documents["row"])) if has_languages else {},
    }


def _without_copies(table: pa.Table, dedup: Dedup) -> tuple[pa.Table, LedgerEntries]:
    """Return the documents without copies of equal text, and the ledger entries of the copies.

    This comes before the shard's size is checked: copies from many runs may be more than a shard holds.
    """
    if dedup == "none":
        return table, []

    table = drop_copies(table)
    ledger = [("duplicate document", source, count) for source, count in dropped_by_source(table).items()]
    return table.drop_columns([COPIES.name]), ledger


def _drop_near_duplicates(documents: pa.Table, drops: list[pa.Table]) -> tuple[pa.Table, LedgerEntries]:
    """Return the documents except those that `drops` (DROPPED_SCHEMA) name, and the ledger entries of the latter."""
    ledger: LedgerEntries = []
    for drop in drops:
        is_near_duplicate = np.isin(documents["document"].to_numpy(), drop["document"].to_numpy())
        documents, dropped = drop_documents(documents, is_near_duplicate, "near-duplicate document")
        ledger += dropped
    return documents, ledger


def sort_documents(table: pa.Table, seed: int) -> pa.Table:
    """Return a table of document, source and row (the document's row in `table`), in the shard's order.

    Documents are sorted by placement, source and content. This order is total, so the result does not depend on the
    order of arrival: documents of one placement have the same text, but may come from different sources or have been
    split into different sentences. Two rows that are equal in all three keys are equal in every column.

    The sentences stay where they are until the shard is written, so that there are never two copies of all text.
    """
    sort_keys = pa.table(
        {
            "placement": placements(table["document"].to_numpy(), seed),
            "source": table["source"],
            "content": content_keys(table),
        }
    )
    order = [("placement", "ascending"), ("source", "ascending"), ("content", "ascending")]
    rows = pc.sort_indices(sort_keys, order)  # type: ignore[attr-defined]
    return table.select(["document", "source"]).take(rows).append_column("row", rows)


def drop_documents(table: pa.Table, is_dropped: np.ndarray, reason: str) -> tuple[pa.Table, LedgerEntries]:
    """Return the documents that stay, and the ledger entries of the others."""
    counts = Counter(table["source"].filter(pa.array(is_dropped)).to_pylist())
    entries = [(reason, source, count) for source, count in sorted(counts.items())]
    return table.filter(pa.array(~is_dropped)), entries


def encode_text_shard(name: str, table: pa.Table, rows: np.ndarray) -> tuple[bytes, Report]:
    """Return these rows of a table, in this order, as `encode_text_batches` does. Copies one batch at a time."""
    return encode_text_batches(name, table.schema, shards.taken_batches(table, rows))


def encode_text_batches(name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> tuple[bytes, Report]:
    """Return batches, cut as `ShardEncoder` needs them, as a shard, and its part of the report.

    The part has the shard's entry in the manifest, and its lengths (`length_statistics`).
    """
    encoder = shards.ShardEncoder(schema)
    lengths: list[Report] = []
    for batch in batches:
        encoder.add(batch)
        lengths.append(length_statistics(batch))

    data, entry = encoder.finish(name)
    return data, {"shard": entry, **add_lengths(lengths)}


def count_values(column: pa.ChunkedArray) -> dict[str, int]:
    """Return how often each value occurs, sorted by value."""
    return dict(sorted(Counter(column.to_pylist()).items()))


def length_statistics(table: pa.Table | pa.RecordBatch) -> Report:
    """Return the number of sentences, their bytes, and histograms of lengths by powers of two."""
    sentences_per_document = pc.list_value_length(table["sentences"]).to_numpy()  # type: ignore[attr-defined]
    sentences = pc.list_flatten(table["sentences"])  # type: ignore[attr-defined]
    characters_per_sentence = pc.utf8_length(sentences).to_numpy()  # type: ignore[attr-defined]
    return {
        "sentences": int(sentences_per_document.sum()),
        "text_bytes": text_bytes(table),
        "sentences_per_document": log2_histogram(sentences_per_document),
        "characters_per_sentence": log2_histogram(characters_per_sentence),
    }


def add_lengths(parts: list[Report]) -> Report:
    """Add up the `length_statistics` of batches or shards."""
    return {
        "sentences": total(parts, "sentences"),
        "text_bytes": total(parts, "text_bytes"),
        "sentences_per_document": add_histograms(parts, "sentences_per_document"),
        "characters_per_sentence": add_histograms(parts, "characters_per_sentence"),
    }


def text_bytes(table: pa.Table | pa.RecordBatch) -> int:
    """Return the UTF-8 bytes of all sentences."""
    sentences = pc.list_flatten(table["sentences"])  # type: ignore[attr-defined]
    lengths = pc.binary_length(sentences)  # type: ignore[attr-defined]
    return int(pc.sum(lengths).as_py() or 0)  # type: ignore[attr-defined]  # the sum of no rows is null


def log2_histogram(values: np.ndarray) -> list[int]:
    """Return counts by powers of two: item i is the number of values in [2**i, 2**(i+1)). Zeros are not counted."""
    if len(values) == 0:
        return []
    exponents = np.log2(values[values > 0]).astype(int)
    return np.bincount(exponents).tolist()
