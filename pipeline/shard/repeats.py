"""--drop_repeats N: which sentences are repeated, as a function of their texts and their order.

A *span* is N sentences in a row of one document. Its *place* is where it begins: (shard, position of its first sentence
among those of the shard). That is the order of the shuffled corpus, however many shards there are. A sentence is
removed if it is in any span whose exact text occurred at an earlier place. So the first occurrence of every sentence
stays: the earlier span has a copy of any sentence that is removed.

With N = 3 this is the rule of C4, all but one of any three-sentence span that occurs more than once (Raffel et al.,
arXiv:1910.10683, section 2.2). N = 1 leaves one of all equal sentences, near to what CCNet does with paragraphs (Wenzek
et al., arXiv:1911.00359, section 3.1).

Texts are compared by 64-bit hashes. Of n different spans, n^2 / 2^65 pairs have equal hashes by accident: 0.03 in a
billion, and 300 in a hundred billion.

Shape suffixes: D documents, S sentences, P spans, each of one shard in its order; R spans of a bucket, in any order.
"""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.ragged import Bools, Ints, group_starts, offsets_of
from schemas.randomness import key, mix

Hashes = NDArray[np.uint64]

SPAN_SCHEMA = pa.schema([("span", pa.uint64()), ("place", pa.uint64())])
"""span: its hash. place: of its first occurrence in a shard, as `pack_places` returns it."""

PLACE_SCHEMA = pa.schema([("place", pa.uint64())])

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
    """Return the shard of each place."""
    return (places >> _32).astype(np.int64)


def positions_of(places: Hashes) -> Ints:
    """Return the position of each place in its shard."""
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
