"""--drop_repeats N: which sentences are repeated, by their texts and their order, and shards without them.

A *span* is N sentences in a row of one document. Its *place* is where it begins: (shard, position of its first sentence
among those of the shard). That is the order of the shuffled corpus, however many shards there are. A sentence is
removed if it is in any span whose exact text occurred at an earlier place. So the first occurrence of every sentence
stays: the earlier span has a copy of any sentence that is removed.

With N = 3 this is the rule of C4, all but one of any three-sentence span that occurs more than once (Raffel et al.,
arXiv:1910.10683, section 2.2). N = 1 leaves one of all equal sentences, near to what CCNet does with paragraphs (Wenzek
et al., arXiv:1911.00359, section 3.1).

Texts are compared by 64-bit hashes. Of n different spans, n^2 / 2^65 pairs have equal hashes by accident: 0.03 in a
billion, and 300 in a hundred billion.

    write_draft     collects the documents of a shard, as `write_shard` does, and writes them into staging as they are,
                    with a run of their spans
    exchange        finds spans that occurred in an earlier shard (pipeline/jobs/repeats.py)
    finish_shard    reads the draft, and writes the text shard without the sentences of repeated spans

A draft knows the spans that occurred earlier in its own shard, and sends each span once. So of a line that is on every
page, the exchange gets one row from each shard, however many pages there are. A draft is read at once, like the
documents of a shard before it is written.

Shape suffixes: D documents, S sentences, P spans, each of one shard in its order; R spans of a bucket, in any order.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from pipeline.exchange.runs import RunIndex, encode_in_order, encode_run, read_buckets
from pipeline.shard.write_shard import (
    ShardOptions,
    collect_documents,
    count_documents,
    drop_documents,
    encode_text_batches,
)
from schemas import shards
from schemas.errors import DataError
from schemas.ragged import Bools, Ints, group_starts, offsets_of, take_ranges
from schemas.randomness import key, mix

Hashes = NDArray[np.uint64]

SPAN_SCHEMA = pa.schema([("span", pa.uint64()), ("place", pa.uint64())])
"""span: its hash. place: of its first occurrence in a shard, as `pack_places` returns it."""

PLACE_SCHEMA = pa.schema([("place", pa.uint64())])

ONLY_REPEATED = "only repeated sentences"
"""Reason in the ledger: no sentence of the document is left."""

REMOVED = "repeated sentences removed"
"""Name of the number of removed sentences among what was cleaned."""

SPAN_BUCKETS = 256
"""Number of ranges of hashes that the run of a draft's spans is cut into."""

_HASHED_AT_ONCE = 1 << 16  # sentences that become Python objects at once
_LOW_32_BITS = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)

_FACTOR = key("spans of sentences") | 1  # odd, and so invertible modulo 2**64


# Spans


def hash_sentences(sentences_S: pa.StringArray) -> Hashes:
    """Return (S,) uint64: BLAKE2b of each sentence's UTF-8 bytes.

    It costs 0.6 µs a sentence, and a polynomial modulo 2^64, as near-duplicates have it for words, a third of that. But
    different texts with equal polynomials are easily made, so that a page could remove the sentences of others.
    """
    hashes = [np.zeros(0, np.uint64)]
    for start in range(0, len(sentences_S), _HASHED_AT_ONCE):
        hashes.append(_hash_some(sentences_S.slice(start, _HASHED_AT_ONCE)))
    return np.concatenate(hashes)


def _hash_some(sentences_S: pa.StringArray) -> Hashes:
    _, offsets_buffer, text_buffer = sentences_S.buffers()
    first = sentences_S.offset
    bounds = np.frombuffer(offsets_buffer, np.int32)[first : first + len(sentences_S) + 1].tolist()
    text = memoryview(text_buffer or b"")

    pairs = itertools.pairwise(bounds)
    digests = [hashlib.blake2b(text[start:end], digest_size=8).digest() for start, end in pairs]
    return np.frombuffer(b"".join(digests), "<u8")


def find_spans(hashes_S: Hashes, lengths_D: Ints, count: int) -> tuple[Hashes, Ints]:
    """Return (P,) uint64, the hashes of all spans of `count` sentences, and (P,) int64, their positions, ascending.

    hashes_S: of the sentences. lengths_D: sentences of each document. One with fewer than `count` has no span.
    """
    sentences = len(hashes_S)
    count = min(count, sentences + 1)
    end_of_document_S = np.repeat(np.cumsum(lengths_D), lengths_D)
    positions_P = np.flatnonzero(np.arange(sentences) + count <= end_of_document_S)

    # Mixed after each sentence: sums of powers would let chosen sentences cancel each other.
    spans_P = np.zeros(len(positions_P), np.uint64)
    for place in range(count if len(positions_P) else 0):
        spans_P = mix(spans_P * np.uint64(_FACTOR) + hashes_S[positions_P + place])
    return spans_P, positions_P


# Places


def pack_places(shard: int, positions_P: Ints) -> Hashes:
    """Return (P,) uint64: places in a shard as single numbers, in the order of the corpus.

    Both parts fit: a shard has less than 2^31 bytes of text, and no sentence is empty.
    """
    return positions_P.astype(np.uint64) | np.uint64(shard << 32)


def shards_of(places: Hashes) -> Ints:
    return (places >> _32).astype(np.int64)


def positions_of(places: Hashes) -> Ints:
    return (places & _LOW_32_BITS).astype(np.int64)


# Repeats


def later_places(spans_R: Hashes, places_R: Hashes) -> Hashes:
    """Return the places of all occurrences of each span except the first, in any order."""
    order_R = np.argsort(spans_R)
    places_R = places_R[order_R]
    starts = group_starts(spans_R[order_R])
    if len(starts) == len(places_R):  # no span occurs twice
        return places_R[:0]

    first = np.minimum.reduceat(places_R, starts)
    sizes = np.diff(starts, append=len(places_R))
    return places_R[places_R != np.repeat(first, sizes)]


def in_spans(is_start_S: Bools, count: int) -> Bools:
    """Return (S,) bool: which sentences are in any of the spans that begin where `is_start_S` is true."""
    starts = np.flatnonzero(is_start_S)
    steps = np.zeros(len(is_start_S) + 1, np.int64)
    steps[starts] += 1
    if len(starts):  # otherwise `count` may be too large for an index
        steps[starts + count] -= 1
    return np.cumsum(steps[:-1]) > 0


def left_in_documents(is_removed_S: Bools, lengths_D: Ints) -> Ints:
    """Return (D,) int64: how many sentences each document keeps."""
    ends_D = offsets_of(lengths_D)
    removed = offsets_of(is_removed_S)
    return lengths_D - np.diff(removed[ends_D])


def without_removed(batch: pa.RecordBatch, is_removed_S: Bools) -> pa.RecordBatch:
    """Return documents without these sentences. Each keeps at least one."""
    if not is_removed_S.any():
        return batch

    lengths_D = batch["sentences"].value_lengths().to_numpy()
    offsets = offsets_of(left_in_documents(is_removed_S, lengths_D)).astype(np.int32)
    kept = batch["sentences"].flatten().filter(pa.array(~is_removed_S))
    left = {"sentences": pa.ListArray.from_arrays(pa.array(offsets), kept)}
    columns = [left.get(name, batch[name]) for name in batch.schema.names]
    return pa.record_batch(columns, schema=batch.schema)


# Drafts and shards


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
    finished = staging.report(name)
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
    return staging.keep(name, data, {**encoded, **counts})


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
    return pa.Table.from_batches(read_buckets([RunIndex.from_row(row)], schema, staging), schema)


def _report_of_draft(shard: str, staging: Staging) -> Report:
    report = staging.report(_draft_name(shard))
    if report is None:
        raise DataError(
            f"{staging.url(_draft_name(shard))}.json is gone: staging was changed while the job ran. Delete "
            f"{staging.url('')} and run the same command again."
        )
    return report
