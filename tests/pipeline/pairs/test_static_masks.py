from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.pairs.layout import RowBatch
from pipeline.pairs.static_masks import StaticMaskDrawer
from schemas import shards
from schemas.manifest import read_manifest
from schemas.masking import KINDS, Kind, Masking, RowsToMask, draw_masks
from schemas.randomness import key, numbers
from schemas.row_checks import PairLimits, check_pairs
from schemas.vocabulary import Vocabulary, read_vocabulary


@pytest.fixture(scope="module")
def vocabulary(pairs: Path) -> Vocabulary:
    return read_vocabulary(str(pairs / "vocabulary"))


@pytest.fixture(scope="module")
def rows(pairs: Path, vocabulary: Vocabulary) -> pa.Table:
    (first, *_) = read_manifest(str(pairs), "pairs").shards
    return shards.decode_table((pairs / first.path).read_bytes(), first.path, shards.pairs_schema(vocabulary.size))


def row_batch(rows: pa.Table, start: int, end: int) -> RowBatch:
    ids = rows["input_ids"].combine_chunks()
    offsets = ids.offsets.to_numpy().astype(np.int64)[start : end + 1]
    tokens = slice(offsets[0], offsets[-1])
    word_starts = rows["word_starts"].combine_chunks().values.to_numpy(zero_copy_only=False)
    return RowBatch(ids.values.to_numpy()[tokens], word_starts[tokens], offsets - offsets[0], start)


def with_masks(
    rows: pa.Table, drawer: StaticMaskDrawer, vocabulary: Vocabulary, at_once: int = 1024
) -> tuple[pa.Table, dict[str, int]]:
    """The rows with their masks, drawn some rows at a time, and the counts."""
    batches = []
    for start in range(0, len(rows), at_once):
        end = min(start + at_once, len(rows))
        masks = drawer.draw(row_batch(rows, start, end))
        part = rows.slice(start, end - start)
        columns = {name: part[name].combine_chunks() for name in part.column_names}
        schema = shards.pairs_schema(vocabulary.size, static_masks=True)
        batches.append(pa.record_batch(columns | masks, schema=schema))
    return pa.Table.from_batches(batches), drawer.counts()


@pytest.mark.parametrize("kind", KINDS)
def test_stored_masks_are_those_that_are_drawn(rows: pa.Table, vocabulary: Vocabulary, kind: Kind) -> None:
    masking = Masking(kind, max_predictions=4)
    table, counted = with_masks(rows, StaticMaskDrawer(3, masking, (7, 0, "f"), vocabulary), vocabulary)
    data, _ = shards.encode_shard("x", table)
    again = shards.decode_table(data, "x", shards.schema_of_pairs(data, "x", vocabulary.size))
    check_pairs(again, "x", PairLimits(vocabulary.size, 32, static_masks=3))
    ids, starts = rows["input_ids"].combine_chunks(), rows["word_starts"].combine_chunks()
    offsets = ids.offsets.to_numpy().astype(np.int64)
    chosen = 0
    for variant in range(3):
        keys = numbers(np.uint64(key(7, 0, "f", "static mask", variant)), np.arange(len(rows)))
        plain = starts.values.to_numpy(zero_copy_only=False)
        masks = draw_masks(RowsToMask(ids.values.to_numpy(), offsets, plain, keys), masking, vocabulary)
        for row, (positions, tokens) in enumerate(
            zip(again["mask_positions"].to_pylist(), again["mask_tokens"].to_pylist(), strict=True)
        ):
            mine = slice(masks.offsets_B1[row], masks.offsets_B1[row + 1])
            assert positions[variant] == (masks.positions_K[mine] - offsets[row]).tolist()
            assert tokens[variant] == masks.seen_K[mine].tolist()
        chosen += len(masks.positions_K)
    assert counted["chosen"] == chosen == counted["masked"] + counted["kept"] + counted["random"]


def test_lots_leave_no_trace(rows: pa.Table, vocabulary: Vocabulary) -> None:
    drawers = [StaticMaskDrawer(1, Masking("span"), (0,), vocabulary) for _ in range(2)]
    whole, counts = with_masks(rows, drawers[0], vocabulary)
    cut, counts_of_cut = with_masks(rows, drawers[1], vocabulary, at_once=7)
    assert whole.to_pylist() == cut.to_pylist()
    assert counts == counts_of_cut
