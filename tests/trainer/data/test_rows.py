"""Which rank gets which rows, and the redrawn order of their segments."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.masking import Masking
from schemas.vocabulary import Vocabulary
from trainer.data.folder import PairFolder
from trainer.data.order import build_sources
from trainer.data.share import RankShare, assign_rows
from trainer.data.stream import MaskingSchedule, Stream
from trainer.models.batch import PackedBatch


@given(
    lengths=st.lists(st.integers(1, 300) | st.integers(60_000, 200_000), min_size=12, max_size=90),
    share=st.sampled_from([(1, 1), (1, 5), (2, 3), (3, 4), (12, 1)]),
)
@settings(max_examples=150)
def test_rows_are_assigned_as_by_a_plain_sort(lengths: list[int], share: tuple[int, int]) -> None:
    world_size, per_rank = share
    columns: list[list[int]] = [[] for _ in range(world_size * per_rank)]
    longest_first = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    for place, row in enumerate(longest_first):
        round_number, column = divmod(place, len(columns))
        columns[-1 - column if round_number % 2 else column].append(row)

    for rank in range(world_size):
        found = assign_rows(np.array(lengths, dtype=np.int32), RankShare(rank, world_size, per_rank, 0))
        expected = [sorted(column) for column in columns[rank::world_size]]
        assert [rows.tolist() for rows in found] == expected


# The order of segments


Row = tuple[tuple[int, ...], tuple[int, ...], int]


def rows_of(batch: PackedBatch, vocabulary: Vocabulary) -> list[Row]:
    """(the first segment of the text, the second, the label) of each row, its masks undone."""
    truth = batch.ids_T.clone()
    truth[batch.masked_positions_K] = batch.labels_K
    specials = {vocabulary.special_id("cls"), vocabulary.special_id("sep")}
    found = []
    for sequence, label in enumerate(batch.pair_labels_S.tolist()):
        of_row = batch.sequence_T == sequence
        ids = truth[of_row].tolist()
        segments = batch.segments_T[of_row].tolist()
        a, b = (tuple(i for i, s in zip(ids, segments, strict=True) if s == k and i not in specials) for k in (0, 1))
        assert ids[0] == vocabulary.special_id("cls") and ids[-1] == vocabulary.special_id("sep")
        found.append((b, a, label) if label else (a, b, label))
    return found


def epochs(folder: Path, count: int) -> list[list[Row]]:
    """The rows of the first epochs, each sorted."""
    opened = PairFolder(str(folder))
    share = RankShare(0, 1, 1, opened.manifest.totals["rows"])
    with closing(Stream(build_sources([opened], None, 3, False), share, MaskingSchedule(Masking()), 3)) as stream:
        return [sorted(rows_of(stream.batch(step)[0], opened.vocabulary)) for step in range(count)]


@pytest.mark.parametrize("kind", [0, 1], ids=["wordpiece", "bytebpe"])
def test_the_order_is_drawn_again_each_epoch(sop_pairs: list[Path], kind: int) -> None:
    of_epochs = epochs(sop_pairs[kind], 3)
    assert of_epochs[:1] == epochs(sop_pairs[kind], 1)  # a pure function of (data, seed, epoch)
    texts = [[row[:2] for row in rows] for rows in of_epochs]
    assert texts[0] == texts[1] == texts[2]  # the same text in the same order, once the label is undone
    labels = [[row[2] for row in rows] for rows in of_epochs]
    assert all(0.3 < sum(of_epoch) / len(of_epoch) < 0.7 for of_epoch in labels)
    changed = sum(a != b for a, b in zip(labels[0], labels[1], strict=True)) / len(labels[0])
    assert 0.3 < changed < 0.7


def test_a_row_is_the_shards_own_or_exchanged(sop_pairs: list[Path]) -> None:
    folder = PairFolder(str(sop_pairs[0]))
    special = {folder.vocabulary.special_id("cls"), folder.vocabulary.special_id("sep")}
    stored = []
    for number in range(len(folder.manifest.shards)):
        for row in folder.read_shard(number).to_pylist():
            ids = row["input_ids"]
            cut = row["segment_b_start"]
            a, b = (tuple(i for i in part if i not in special) for part in (ids[:cut], ids[cut:]))
            stored.append((b, a) if row["pair_label"] else (a, b))
    folder.close()
    assert sorted(stored) == [row[:2] for row in epochs(sop_pairs[0], 1)[0]]
