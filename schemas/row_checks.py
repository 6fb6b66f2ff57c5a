"""Checks that the rows of a shard contain what its columns promise: no nulls, and every value in range.

Arrow's own validation ignores meaning. A null reads as NaN or as whatever bytes are stored under it, and an id beyond
the vocabulary crashes a GPU kernel, so these checks run before any row is used.

Letters: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas import storage
from schemas.errors import DataError
from schemas.manifest import Manifest
from schemas.vocabulary import VOCABULARY_FOLDER, Vocabulary, read_vocabulary

MAY_BE_NULL = ("pair_label",)
"""Columns with a meaning for null: rows of one segment have no label."""

Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class PairLimits:
    """The limits for every row of one folder of pairs.

    labeled: each row has two segments and a label, with `separators` special tokens between the segments.
    """

    vocabulary_size: int
    max_length: int
    static_masks: int = 0
    labeled: bool = False
    separators: int = 1

    @classmethod
    def of(cls, manifest: Manifest, vocabulary: Vocabulary) -> PairLimits:
        """Return the limits that a folder's manifest and vocabulary state."""
        options = manifest.options
        return cls(
            vocabulary_size=vocabulary.size,
            max_length=int(options["max_length"]),
            static_masks=int(options.get("static_masks", 0)),
            labeled=options["objective"] in ("nsp", "sop"),
            separators=vocabulary.separators,
        )


def read_pairs_vocabulary(folder: str, manifest: Manifest) -> Vocabulary:
    """Return the vocabulary inside a folder of pairs. Raises DataError if it is not the one that the pairs name."""
    vocabulary = read_vocabulary(storage.join(folder, VOCABULARY_FOLDER))
    stated = manifest.options["vocabulary"]
    if stated != vocabulary.fingerprint:
        raise DataError(
            f"{folder}/{VOCABULARY_FOLDER} is vocabulary {vocabulary.fingerprint}, but the pairs are of {stated}. "
            "Rebuild the pairs or put their own vocabulary back."
        )

    stated_size = manifest.options["vocabulary_size"]
    if stated_size != vocabulary.size:
        raise DataError(
            f"{folder} has options.vocabulary_size {stated_size}, but its vocabulary has {vocabulary.size} tokens. "
            "Copy the folder again or rebuild it with --overwrite."
        )
    return vocabulary


def check_row_count(table: pa.Table, path: str, stated: int) -> None:
    """Raise DataError unless a file has as many rows as its manifest states."""
    if table.num_rows != stated:
        raise DataError(f"{path} has {table.num_rows:,} rows, but its manifest says {stated:,}. Rebuild the folder.")


def check_nulls(batches: list[pa.RecordBatch], path: str) -> None:
    """Raise DataError naming the first row with a null in a column that may not have any."""
    before = 0
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            row = first_null(column) if name not in MAY_BE_NULL else None
            if row is not None:
                raise bad_row(path, before + row, f"a null in {name}")
        before += batch.num_rows


def first_null(column: Any) -> int | None:
    """Return the number of the first row that is null or contains a null at any depth, or None."""
    if column.null_count:
        return int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
    if not pa.types.is_list(column.type):
        return None

    inner = first_null(column.flatten())
    if inner is None:
        return None
    # No list is null here, so the flat items are contiguous, and the first list that ends after an item contains it.
    ends = np.cumsum(lengths_of(column))
    return int(np.searchsorted(ends, inner, side="right"))


def check_pairs(table: pa.Table, path: str, limits: PairLimits) -> None:
    """Raise DataError naming the first row of a pair shard whose values are out of range.

    The table must have passed `check_nulls`.
    """
    if table.num_rows == 0:
        return
    ids = table["input_ids"].combine_chunks()
    starts = table["word_starts"].combine_chunks()
    cut_B = table["segment_b_start"].to_numpy()
    lengths_B = lengths_of(ids)

    faults = {
        f"an id of {limits.vocabulary_size} or more": rows_with(
            ids.flatten().to_numpy() >= limits.vocabulary_size, lengths_B
        ),
        "no tokens": np.flatnonzero(lengths_B == 0),
        f"more tokens than max_length {limits.max_length}": np.flatnonzero(lengths_B > limits.max_length),
        "a segment_b_start outside of the row": np.flatnonzero((cut_B < 0) | (cut_B > lengths_B)),
        "word_starts of another length than input_ids": np.flatnonzero(lengths_of(starts) != lengths_B),
    }
    faults |= label_faults(table, lengths_B, limits)
    raise_first(faults, path)
    if limits.static_masks:
        check_masks(table, path, lengths_B, limits)


def label_faults(table: pa.Table, lengths_B: Ints, limits: PairLimits) -> dict[str, Ints]:
    """Return, by fault, the rows whose label or segments are not what the objective requires."""
    labels = table["pair_label"].combine_chunks()
    cut_B = table["segment_b_start"].to_numpy()
    label_B = labels.fill_null(0).to_numpy()
    faults: dict[str, Ints] = {"a pair_label other than 0, 1 or null": np.flatnonzero((label_B != 0) & (label_B != 1))}
    if not limits.labeled:
        return faults

    # [CLS] A [SEP] B [SEP]: B is preceded by at least the first special token and the separators, and followed by one
    # more.
    is_one_segment_B = (cut_B < 1 + limits.separators) | (cut_B > lengths_B - 1)
    faults["no pair_label"] = np.flatnonzero(labels.is_null().to_numpy(zero_copy_only=False))
    faults["a pair_label but not two segments"] = np.flatnonzero(is_one_segment_B)
    return faults


def check_masks(table: pa.Table, path: str, lengths_B: Ints, limits: PairLimits) -> None:
    """Raise DataError naming the first row whose stored masks are out of range."""
    positions = table["mask_positions"].combine_chunks()
    tokens = table["mask_tokens"].combine_chunks()
    is_off_B = (lengths_of(positions) != limits.static_masks) | (lengths_of(tokens) != limits.static_masks)
    raise_first({f"not {limits.static_masks} stored masks": np.flatnonzero(is_off_B)}, path)

    # From here on each row has the same number of masks: M masks end to end, with sizes_M positions each.
    row_M = np.repeat(np.arange(len(lengths_B)), limits.static_masks)
    sizes_M = lengths_of(positions.flatten())
    differ_M = sizes_M != lengths_of(tokens.flatten())
    raise_first({"mask_tokens of another length than mask_positions": row_M[differ_M]}, path)

    mask_K = np.repeat(np.arange(len(sizes_M)), sizes_M)
    row_K = row_M[mask_K]
    position_K = positions.flatten().flatten().to_numpy().astype(np.int64)
    token_K = tokens.flatten().flatten().to_numpy()
    is_same_mask = mask_K[1:] == mask_K[:-1]
    faults = {
        "a mask position outside of the row": row_K[position_K >= lengths_B[row_K]],
        "mask positions that do not rise": row_K[1:][is_same_mask & (np.diff(position_K) <= 0)],
        f"a mask token of {limits.vocabulary_size} or more": row_K[token_K >= limits.vocabulary_size],
    }
    raise_first(faults, path)


def lengths_of(column: Any) -> Ints:
    """Return (B,) the number of items in each list of a column without null lists."""
    return np.diff(column.offsets.to_numpy())


def rows_with(is_bad_T: NDArray[np.bool_], lengths_B: Ints) -> Ints:
    """Return the rows with a bad item, ascending, given whether each item is bad and each row's number of items."""
    if not is_bad_T.any():
        return np.zeros(0, dtype=np.int64)
    return np.repeat(np.arange(len(lengths_B)), lengths_B)[is_bad_T]


def raise_first(faults: Mapping[str, Ints], path: str) -> None:
    """Raise DataError for the first fault that any row has, naming the first such row."""
    for fault, rows in faults.items():
        if len(rows):
            raise bad_row(path, int(rows[0]), fault)


def bad_row(path: str, row: int, fault: str) -> DataError:
    """Return the error for one bad row of a shard."""
    return DataError(f"{path}, row {row}, has {fault}. Rebuild the folder with --overwrite.")
