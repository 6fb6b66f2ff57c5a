"""Shards with --drop_repeats: first drafts, and once all of these are there, shards without the repeated sentences.

    write_draft     collects the documents of a shard, as `write_shard` does, and writes them into staging as they are,
                    with a run of their spans
    exchange        finds spans that occurred in an earlier shard (pipeline/jobs/repeats.py)
    finish_shard    reads the draft, and writes the text shard without the sentences of repeated spans

A draft knows the spans that occurred earlier in its own shard, and sends each span once. So of a line that is on every
page, the exchange gets one row from each shard, however many pages there are.

A draft is read at once, like the documents of a shard before it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from pipeline.exchange.runs import RunIndex, encode_in_order, encode_run, read_buckets
from pipeline.shard.repeats import (
    PLACE_SCHEMA,
    SPAN_SCHEMA,
    Hashes,
    find_spans,
    hash_sentences,
    in_spans,
    left_in_documents,
    pack_places,
    positions_of,
    without_removed,
)
from pipeline.shard.write_shard import (
    ShardOptions,
    collect_documents,
    count_documents,
    drop_documents,
    encode_text_batches,
)
from schemas import shards
from schemas.errors import DataError
from schemas.ragged import Bools, Ints, offsets_of, take_ranges

ONLY_REPEATED = "only repeated sentences"
"""Reason in the ledger: no sentence of the document is left."""

REMOVED = "repeated sentences removed"
"""Name of the number of removed sentences among what was cleaned."""

SPAN_BUCKETS = 256
"""Number of ranges of hashes that the run of a draft's spans is cut into."""


def write_draft(
    name: str, read_tables: Callable[[], list[pa.Table]], options: ShardOptions, staging: Staging
) -> Report:
    """Write the draft of the text shard `name` into staging, and return what the exchange needs to know about it.

    That is {"shard": its number, "spans": their number, "index": of their run}. Arguments and errors are those of
    `write_shard`; `options.drop_repeats` is set. A draft that an earlier attempt finished is not made again.
    """
    finished = staging.report(_draft_name(name))
    if finished is not None:
        return finished["sent"]

    table, documents, counts = collect_documents(name, read_tables, options, staging)
    rows_D = documents["row"].to_numpy()
    batches = shards.taken_batches(table, rows_D)
    text = _put(f"{_draft_name(name)}.run", batches, table.schema, staging)

    spans_P, positions_P = find_spans(*_hashes_in_order(table, rows_D), options.drop_repeats or 1)
    distinct, first = np.unique(spans_P, return_index=True)
    shard, _ = shards.shard_place(name)
    places_P = pack_places(shard, positions_P)
    repeats = pa.record_batch([pa.array(np.delete(places_P, first))], schema=PLACE_SCHEMA)
    spans = pa.record_batch([pa.array(distinct), pa.array(places_P[first])], schema=SPAN_SCHEMA)

    data, index = encode_run(spans, distinct, SPAN_BUCKETS, f"{_draft_name(name)}.spans.run")
    staging.put(index.name, data)
    report = {
        "text": text,
        "repeats": _put(f"{_draft_name(name)}.repeats.run", [repeats], PLACE_SCHEMA, staging),
        "has_languages": "language" in table.column_names,
        "counts": counts,
        "sent": {"shard": shard, "spans": len(distinct), "index": index.to_row()},
    }
    return staging.keep_report(_draft_name(name), report)["sent"]


def finish_shard(name: str, read_tables: Callable[[], list[pa.Table]], drop_repeats: int, staging: Staging) -> Report:
    """Write the text shard `name` into staging, from its draft, and return its report.

    `read_tables` returns the places of its spans that occurred in an earlier shard (PLACE_SCHEMA). A shard that an
    earlier attempt finished is not made again. Raises StorageError or DataError if the draft is damaged or gone.
    """
    finished = staging.report_of_shard(name)
    if finished is not None:
        return finished

    draft = _report_of_draft(name, staging)
    schema = shards.text_schema(draft["has_languages"])
    table = _read(draft["text"], schema, staging).combine_chunks()
    (repeats,) = read_tables()
    repeats = pa.concat_tables([repeats, _read(draft["repeats"], PLACE_SCHEMA, staging)])

    lengths_D = _lengths(table)
    is_start_S = np.zeros(int(lengths_D.sum()), bool)
    is_start_S[positions_of(repeats["place"].to_numpy())] = True
    is_removed_S = in_spans(is_start_S, drop_repeats)

    documents = table.select(["document", "source"]).append_column("row", pa.array(np.arange(table.num_rows)))
    left_D = left_in_documents(is_removed_S, lengths_D)
    documents, dropped = drop_documents(documents, left_D == 0, ONLY_REPEATED)

    batches = _batches_without(is_removed_S, table, documents["row"].to_numpy())
    data, encoded = encode_text_batches(name, schema, batches)
    removed = int(is_removed_S.sum())
    counts = {
        **draft["counts"],
        **count_documents(table, documents),
        "ledger": draft["counts"]["ledger"] + dropped,
        "cleaning": {REMOVED: removed} if removed else {},
    }
    return staging.keep_shard(name, data, {**encoded, **counts})


# Documents in order


def _lengths(documents: pa.Table | pa.RecordBatch) -> Ints:
    """Return (D,) int64: the number of sentences of each document."""
    lengths = pc.list_value_length(documents["sentences"])  # type: ignore[attr-defined]
    return lengths.to_numpy().astype(np.int64)


def _hashes_in_order(table: pa.Table, rows_D: Ints) -> tuple[Hashes, Ints]:
    """Return the hashes of the sentences of these rows of a table, in this order, and each row's number of them."""
    sentences = pc.list_flatten(table["sentences"])  # type: ignore[attr-defined]
    hashes = np.concatenate([np.zeros(0, np.uint64), *map(hash_sentences, sentences.chunks)])
    lengths = _lengths(table)
    starts = offsets_of(lengths)[:-1]
    return take_ranges(hashes, starts[rows_D], lengths[rows_D]), lengths[rows_D]


def _batches_without(is_removed_S: Bools, table: pa.Table, rows_D: Ints) -> Iterator[pa.RecordBatch]:
    """Yield these rows of a table, which ascend, in equal batches without the sentences that are removed."""
    lengths = _lengths(table)
    is_removed_S = take_ranges(is_removed_S, offsets_of(lengths)[:-1][rows_D], lengths[rows_D])
    start = 0
    for batch in shards.taken_batches(table, rows_D):
        end = start + int(_lengths(batch).sum())
        yield without_removed(batch, is_removed_S[start:end])
        start = end


# Staging


def _draft_name(shard: str) -> str:
    return f"draft-{shard.removesuffix('.arrow')}"


def _put(name: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, staging: Staging) -> list[Any]:
    """Write rows in the order given. Returns their index as `RunIndex.to_row` does."""
    data, index = encode_in_order(batches, schema, name)
    staging.put(name, data)
    return index.to_row()


def _read(row: list[Any], schema: pa.Schema, staging: Staging) -> pa.Table:
    """Return rows that `_put` wrote. Raises as `read_buckets` does."""
    return pa.Table.from_batches(read_buckets([RunIndex.from_row(row)], schema, staging), schema)


def _report_of_draft(shard: str, staging: Staging) -> Report:
    report = staging.report(_draft_name(shard))
    if report is None:
        raise DataError(
            f"{staging.url(_draft_name(shard))}.json is gone: staging was changed while the job ran. Delete "
            f"{staging.url('')} and run the same command again."
        )
    return report
