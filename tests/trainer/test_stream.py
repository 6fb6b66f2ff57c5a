import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import DataError
from schemas.masking import Masking
from trainer.models.packing import PackedBatch
from trainer.stream.batches import Share, Stream, deal
from trainer.stream.reading import PairFolder


@pytest.fixture
def folder(pairs: Path) -> PairFolder:
    return PairFolder(str(pairs))


def stream(
    folder: PairFolder, rank: int = 0, world_size: int = 1, micro_batch: int = 24, micro_batches: int = 1
) -> Stream:
    return Stream(folder, Share(rank, world_size, micro_batch, micro_batches), Masking("whole_word"), seed=3)


def rows_of(batch: PackedBatch) -> list[str]:
    """Each sequence with its segments, masks and labels, in a form that can be compared."""
    found = []
    for sequence, label in enumerate(batch.pair_labels_S.tolist()):
        tokens = (batch.sequence_T == sequence).nonzero().flatten()
        masks = (batch.sequence_T[batch.masked_K] == sequence).nonzero().flatten()
        places = batch.positions_T[batch.masked_K[masks]].tolist()
        truths = batch.labels_K[masks].tolist()
        seen, segments = batch.ids_T[tokens].tolist(), batch.segments_T[tokens].tolist()
        found.append(json.dumps([seen, segments, places, truths, label]))
    return found


@pytest.mark.parametrize(("world_size", "micro_batch"), [(1, 24), (1, 8), (2, 12), (2, 4), (3, 8), (4, 6), (8, 3)])
def test_global_batches_do_not_depend_on_the_ranks(folder: PairFolder, world_size: int, micro_batch: int) -> None:
    micro_batches = 24 // world_size // micro_batch
    ranks = [stream(folder, rank, world_size, micro_batch, micro_batches) for rank in range(world_size)]
    alone = stream(folder)
    for step in (0, 1, 17, 40):
        together = [row for rank in ranks for batch in rank.batch(step) for row in rows_of(batch)]
        assert sorted(together) == sorted(rows_of(alone.batch(step)[0]))
    for each in (alone, *ranks):
        each.close()


def test_a_fresh_stream_goes_on_where_another_was(folder: PairFolder) -> None:
    one = stream(folder)
    expected = [rows_of(one.batch(step)[0]) for step in range(30)]
    for start in (0, 1, 13, 29):
        two = stream(folder)
        assert [rows_of(two.batch(step)[0]) for step in range(start, 30)] == expected[start:]
        two.close()
    one.close()


def test_masks_differ_between_epochs_and_rows_do_not(folder: PairFolder) -> None:
    size = folder.manifest.totals["rows"]
    one = Stream(folder, Share(0, 1, size, 1), Masking(), 0)
    first, second = (one.batch(epoch)[0] for epoch in (0, 1))
    one.close()

    def restored(batch: PackedBatch) -> list[str]:
        ids = batch.ids_T.clone()
        ids[batch.masked_K] = batch.labels_K
        return sorted(str(ids[batch.sequence_T == s].tolist()) for s in range(len(batch.first_S)))

    assert restored(first) == restored(second)
    assert sorted(rows_of(first)) != sorted(rows_of(second))


def test_what_a_batch_holds(folder: PairFolder) -> None:
    one = stream(folder)
    batch = one.batch(0)[0]
    one.close()
    specials = torch.tensor(folder.vocabulary.special_ids)
    assert (batch.ids_T[batch.first_S] == folder.vocabulary.special_id("cls")).all()
    assert not torch.isin(batch.labels_K, specials).any()
    assert (batch.positions_T[batch.first_S] == 0).all()
    assert int(batch.positions_T.max()) + 1 == batch.longest
    assert all(tensor.dtype == torch.int64 for tensor in vars(batch).values() if isinstance(tensor, torch.Tensor))


@given(lengths=st.lists(st.integers(8, 512), min_size=24, max_size=24), world_size=st.sampled_from([1, 2, 3, 4, 8]))
@settings(max_examples=100, deadline=None)
def test_ranks_get_nearly_equal_tokens(lengths: list[int], world_size: int) -> None:
    lengths_B = np.array(lengths)
    hands = [deal(lengths_B, Share(rank, world_size, 24 // world_size, 1))[0] for rank in range(world_size)]
    assert sorted(np.concatenate(hands).tolist()) == list(range(24))
    tokens = [lengths_B[hand].sum() for hand in hands]
    assert max(tokens) - min(tokens) <= max(lengths) - min(lengths)


@pytest.mark.parametrize("change", ["cut", "flip", "gone"])
def test_a_bad_shard_is_named_before_a_row_is_trained_on(pairs: Path, tmp_path: Path, change: str) -> None:
    copy = tmp_path / "pairs"
    (copy / "vocabulary").mkdir(parents=True)
    for path in [*pairs.glob("*.*"), *(pairs / "vocabulary").iterdir()]:
        (copy / path.relative_to(pairs)).write_bytes(path.read_bytes())
    shard = sorted(copy.glob("*.arrow"))[1]
    data = bytearray(shard.read_bytes())
    if change == "gone":
        shard.unlink()
    else:
        data[len(data) // 3] ^= 4
        shard.write_bytes(data[:-5] if change == "cut" else data)
    damaged = stream(PairFolder(str(copy)))
    with pytest.raises(DataError, match=shard.name):
        damaged.batch(0)
    damaged.close()


def test_a_foreign_vocabulary_in_the_folder_is_refused(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "vocabulary").mkdir()
    (tmp_path / "manifest.json").write_bytes((pairs / "manifest.json").read_bytes())
    content = json.loads((pairs / "vocabulary" / "tokenizer.json").read_text())
    content["normalizer"] = None
    (tmp_path / "vocabulary" / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="but the pairs are of"):
        PairFolder(str(tmp_path))
