"""SOP's order by epoch: the text of a row stays what it was, its order and its label change together."""

from contextlib import closing
from pathlib import Path

import pytest

from schemas.masking import Masking
from schemas.vocabulary import Vocabulary
from trainer.data.dataset import PairFolder
from trainer.data.loader import MaskingSchedule, Stream
from trainer.data.mixture import build_sources
from trainer.data.rank_share import RankShare
from trainer.models.batch import PackedBatch

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
