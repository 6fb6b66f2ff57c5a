"""Exact counts of the tokens of some rows, and of tokens that occur near each other.

One sort counts the co-occurrences of a block of rows: each occurrence is a single number, with the two tokens in its
high bits and their distance in the low bits. After sorting, equal pairs of tokens are adjacent, and their weights are
added up. numpy sorts numbers some ten times as fast as rows of several numbers.

Shape suffixes: B rows, N tokens of rows, V vocabulary, C distinct pairs of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.ragged import group_starts, sum_by_key
from schemas.randomness import key, uniforms
from schemas.statistics import Cooccurrences, unit_weight
from schemas.vocabulary import Vocabulary

BLOCK_OCCURRENCES = 12 << 20
"""Co-occurrences that are counted at once: those of 4 million tokens with a window of 3. They take 100 MB, and the
arrays computed from them several times as much. So the blocks for a wider window have fewer tokens."""

DISTANCE_BITS = 4
MAX_WINDOW = 1 << DISTANCE_BITS
"""The widest window. Its `unit_weight` is 720,720, so sums over a trillion tokens fit into 64 bits."""


class TokenRows(NamedTuple):
    """Rows laid end to end. ids_N: int64, token ids. row_N: int64, the number of each token's row."""

    ids_N: NDArray[np.int64]
    row_N: NDArray[np.int64]


@dataclass(frozen=True)
class Counting:
    """How tokens are counted.

    special_ids: tokens that no co-occurrence includes or crosses; only [UNK] among them is counted as a token.
    uncounted_ids: the special tokens that are not counted at all.
    """

    vocabulary_size: int
    window: int
    special_ids: tuple[int, ...]
    uncounted_ids: tuple[int, ...]


def counting_of(vocabulary: Vocabulary, window: int) -> Counting:
    """Return how a vocabulary's tokens are counted: all but the special ones other than [UNK]."""
    unknown = vocabulary.special_id("unk")
    return Counting(
        vocabulary_size=vocabulary.size,
        window=window,
        special_ids=vocabulary.special_ids,
        uncounted_ids=tuple(token for token in vocabulary.special_ids if token != unknown),
    )


def sampled_rows(pairs: pa.Table, shard: int, max_tokens: int) -> pa.Table:
    """Return a random sample of a shard's rows with at most `max_tokens` tokens, drawn by row numbers alone.

    Rows are taken in a random order, up to the first one that no longer fits.
    """
    lengths = pairs["input_ids"].combine_chunks().value_lengths().to_numpy()
    if lengths.sum() <= max_tokens:
        return pairs

    draws = uniforms(np.uint64(key("rows of statistics", shard)), np.arange(pairs.num_rows))
    drawn_order = np.argsort(draws, kind="stable")
    fitting = np.searchsorted(np.cumsum(lengths[drawn_order], dtype=np.int64), max_tokens, side="right")

    is_taken = np.zeros(pairs.num_rows, dtype=bool)
    is_taken[drawn_order[:fitting]] = True
    return pairs.filter(pa.array(is_taken))


_Rows = tuple[NDArray[np.integer], NDArray[np.int64]]
"""Neighboring rows of a table: their tokens, as stored, and the number of tokens of each row."""


def blocks_of(tables: Iterable[pa.Table], window: int) -> Iterator[TokenRows]:
    """Yield the rows of pair shards in blocks of about BLOCK_OCCURRENCES, across shards. A row is in one block.

    A block ends with the row that fills it, so it exceeds its size by less than one row. Without rows there is none.
    """
    block_tokens = BLOCK_OCCURRENCES // window
    gathered: list[_Rows] = []
    tokens = 0
    for ids_N, lengths_B in _rows_of(tables):
        while tokens + len(ids_N) >= block_tokens:
            ends_B = np.cumsum(lengths_B)
            rows = int(np.searchsorted(ends_B, block_tokens - tokens)) + 1
            end = int(ends_B[rows - 1])
            yield _joined([*gathered, (ids_N[:end], lengths_B[:rows])])
            ids_N, lengths_B = ids_N[end:], lengths_B[rows:]
            gathered = []
            tokens = 0

        gathered.append((ids_N, lengths_B))
        tokens += len(ids_N)

    if tokens:
        yield _joined(gathered)


def _rows_of(tables: Iterable[pa.Table]) -> Iterator[_Rows]:
    for table in tables:
        for batch in table.to_batches():
            column = batch.column("input_ids")
            lengths_B = column.value_lengths().to_numpy().astype(np.int64)
            yield column.flatten().to_numpy(), lengths_B


def _joined(parts: list[_Rows]) -> TokenRows:
    ids_N, lengths_B = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    row_N = np.repeat(np.arange(len(lengths_B)), lengths_B)
    return TokenRows(ids_N.astype(np.int64), row_N)


def count_blocks(tables: Iterable[pa.Table], counting: Counting) -> Iterator[tuple[NDArray[np.int64], Cooccurrences]]:
    """Yield the counts of the rows of pair shards, a block at a time: `count_unigrams` and `count_cooccurrences`."""
    for rows in blocks_of(tables, counting.window):
        yield count_unigrams(rows, counting), count_cooccurrences(rows, counting)


def count_unigrams(rows: TokenRows, counting: Counting) -> NDArray[np.int64]:
    """Return (V,) int64: how often each token occurs; 0 for tokens that are not counted."""
    counts_V = np.bincount(rows.ids_N, minlength=counting.vocabulary_size)
    counts_V[list(counting.uncounted_ids)] = 0
    return counts_V.astype(np.int64)


def count_cooccurrences(rows: TokenRows, counting: Counting) -> Cooccurrences:
    """Return the weight of each pair of tokens in a block, sorted by (first, second).

    Two tokens of a row at a distance d <= window add unit_weight(window) / d, unless one of them is special or a
    special token is between them.
    """
    occurrences = np.concatenate([_at_distance(rows, counting, d) for d in range(1, counting.window + 1)])
    occurrences.sort()

    pair_of_occurrence = occurrences >> np.uint64(DISTANCE_BITS)
    distances = (occurrences & np.uint64(MAX_WINDOW - 1)).astype(np.int64) + 1
    starts_C = group_starts(pair_of_occurrence)
    weights = unit_weight(counting.window) // distances
    weight_C = np.add.reduceat(weights, starts_C)

    pairs_C = pair_of_occurrence[starts_C]
    return Cooccurrences(*_tokens_of(pairs_C, counting.vocabulary_size), weight_C)


def _at_distance(rows: TokenRows, counting: Counting, distance: int) -> NDArray[np.uint64]:
    """Return a number for each pair of tokens at this distance, in the form that the module's docstring describes."""
    # Count special tokens along the block: if two tokens have the same count, there is none between them.
    is_special_N = np.isin(rows.ids_N, counting.special_ids)
    specials_before_N = np.cumsum(is_special_N)

    in_one_row = rows.row_N[:-distance] == rows.row_N[distance:]
    in_one_stretch = specials_before_N[:-distance] == specials_before_N[distance:]
    taken = in_one_row & in_one_stretch & ~is_special_N[:-distance]

    left = rows.ids_N[:-distance][taken]
    right = rows.ids_N[distance:][taken]
    pairs = np.minimum(left, right) * counting.vocabulary_size + np.maximum(left, right)
    return (pairs.astype(np.uint64) << np.uint64(DISTANCE_BITS)) | np.uint64(distance - 1)


def count_contexts(found: Cooccurrences, vocabulary_size: int) -> NDArray[np.int64]:
    """Return (V,) int64: the total weight of each token's pairs.

    A pair of equal tokens counts twice, because each of the two is a context of the other.
    """
    weights_V = np.zeros(vocabulary_size, dtype=np.int64)

    # add.at sums 64-bit integers; bincount with weights would round to floats.
    np.add.at(weights_V, found.first_C, found.weight_C)
    np.add.at(weights_V, found.second_C, found.weight_C)
    return weights_V


def add_up(parts: Cooccurrences, vocabulary_size: int) -> Cooccurrences:
    """Add up the weights of equal pairs of tokens. The result is sorted by (first, second)."""
    pairs = parts.first_C.astype(np.uint64) * np.uint64(vocabulary_size) + parts.second_C.astype(np.uint64)
    pairs_C, weight_C = sum_by_key(pairs, parts.weight_C)
    return Cooccurrences(*_tokens_of(pairs_C, vocabulary_size), weight_C)


def _tokens_of(pairs_C: NDArray[np.uint64], vocabulary_size: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    first_C, second_C = np.divmod(pairs_C, np.uint64(vocabulary_size))
    return first_C.astype(np.uint32), second_C.astype(np.uint32)
