"""The rows in which `statistics` sends counts to their partition, and the sums of a partition's rows.

A lot's counts travel to their partition by a hash of the two tokens. The first partition also gets what is counted of
single tokens: a row with NO_TOKEN in place of a second token says how often the token occurs, and one with ANY_TOKEN
the total weight of its co-occurrences. Lots count both, so they include the pairs that partitions drop.

Shape suffixes: V vocabulary, C pairs of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.exchange.blocks import KeyedBatch
from schemas.cooccurrences import add_up
from schemas.randomness import mix
from schemas.statistics import COOCCURRENCES_SCHEMA, NO_COOCCURRENCES, Cooccurrences, joined

ROWS_AT_ONCE = 1 << 20
"""The fewest rows that are added up at once: 16 MB."""

NO_TOKEN = np.iinfo(np.uint32).max
ANY_TOKEN = NO_TOKEN - 1


def batch_of_pairs(found: Cooccurrences) -> KeyedBatch:
    """Return the rows of pairs of tokens with their keys: a hash of each pair, which decides its partition."""
    pairs_C = (found.first_C.astype(np.uint64) << np.uint64(32)) | found.second_C
    return mix(pairs_C), record_batch(found)


def batch_of_tokens(counts_V: NDArray[np.int64], marker: int) -> KeyedBatch:
    """Return the rows of single tokens with keys of the first partition. marker: stands for the second token."""
    tokens = np.flatnonzero(counts_V).astype(np.uint32)
    markers = np.full(len(tokens), marker, dtype=np.uint32)
    counts = Cooccurrences(tokens, markers, counts_V[tokens])
    return np.zeros(len(tokens), dtype=np.uint64), record_batch(counts)


def record_batch(found: Cooccurrences) -> pa.RecordBatch:
    """Return co-occurrences as COOCCURRENCES_SCHEMA rows."""
    return pa.record_batch([pa.array(column) for column in found], schema=COOCCURRENCES_SCHEMA)


class PartitionSums:
    """The sums of all rows of a partition that were added so far.

    unigrams_V, context_weights_V: (V,) int64, of the rows of single tokens. Only the first partition has any.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.unigrams_V = np.zeros(vocabulary_size, dtype=np.int64)
        self.context_weights_V = np.zeros(vocabulary_size, dtype=np.int64)
        self._summed = NO_COOCCURRENCES
        self._waiting: list[Cooccurrences] = []
        self._rows_waiting = 0

    def add(self, rows: pa.Table) -> None:
        """Add some rows."""
        sent = Cooccurrences(*(rows[column].to_numpy() for column in COOCCURRENCES_SCHEMA.names))
        for sums_V, marker in ((self.unigrams_V, NO_TOKEN), (self.context_weights_V, ANY_TOKEN)):
            of_tokens = sent.take(sent.second_C == marker)
            np.add.at(sums_V, of_tokens.first_C, of_tokens.weight_C)

        pairs = sent.take(sent.second_C < ANY_TOKEN)
        self._waiting.append(pairs)
        self._rows_waiting += len(pairs.weight_C)

        # Rows wait until they are as many as the pairs that they are added to. Each addition sorts all of both, so
        # sorting takes a constant number of passes over a row, however small the pieces are.
        if self._rows_waiting >= max(ROWS_AT_ONCE, len(self._summed.weight_C)):
            self._add_waiting()

    def pairs(self) -> Cooccurrences:
        """Return each pair of tokens once, sorted by (first, second)."""
        self._add_waiting()
        return self._summed

    def _add_waiting(self) -> None:
        self._summed = add_up(joined([self._summed, *self._waiting]), len(self.unigrams_V))
        self._waiting = []
        self._rows_waiting = 0


def sum_pieces(pieces: Iterable[pa.Table], vocabulary_size: int) -> PartitionSums:
    """Return the sums of a partition's rows, which come in any order.

    Memory grows with the distinct pairs of tokens, and not with the number of rows: as many rows as there are pairs
    wait, and sorting both takes as much again. All blocks of a text send the frequent pairs, and all lots send nearly
    all single tokens.
    """
    sums = PartitionSums(vocabulary_size)
    for piece in pieces:
        sums.add(piece)
    return sums
