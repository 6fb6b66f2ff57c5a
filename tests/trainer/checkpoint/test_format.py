"""Publishing, verifying and pruning checkpoints, file by file; whole resumes are tested in test_train."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from schemas.errors import CheckpointError, StorageError
from tests.trainer.checkpoint.saved import WEIGHTS_FILE, found_in, saved, written
from trainer.checkpoint.format import (
    best_step,
    checkpoint_path,
    fault_of_checkpoint,
    steps_saved,
)
from trainer.checkpoint.state import identity, read_state
from trainer.checkpoint.write import prune, publish
from trainer.config.load import load_recipe
from trainer.config.phases import phases_of
from trainer.data.folder import PairFolder


def test_published_checkpoints_verify_and_the_newest_is_taken(tmp_path: Path) -> None:
    for step in (10, 20, 9):
        assert fault_of_checkpoint(saved(tmp_path, step)) is None
    assert steps_saved(str(tmp_path)) == [9, 10, 20]
    newest = found_in(tmp_path)
    assert newest is not None and newest.path == checkpoint_path(str(tmp_path), 20)
    assert newest.state.step == 20 and newest.faults == []


def test_an_unpublished_one_is_not_seen(tmp_path: Path) -> None:
    written(tmp_path, 30)
    assert steps_saved(str(tmp_path)) == []
    assert found_in(tmp_path) is None


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "manifest"])
def test_a_damaged_one_is_passed_over_and_named(tmp_path: Path, damage: str) -> None:
    saved(tmp_path, 10)
    file = saved(tmp_path, 20) / ("manifest.json" if damage == "manifest" else WEIGHTS_FILE)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "cut":
        file.write_bytes(data[:-1])
    elif damage == "flip":
        file.write_bytes(data)
    elif damage == "gone":
        file.unlink()
    else:
        file.write_bytes(data[:10])

    found = found_in(tmp_path)
    assert found is not None
    assert found.path == checkpoint_path(str(tmp_path), 10)
    assert str(file) in found.faults[0]


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_pruning_keeps_the_newest_that_are_whole(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        saved(tmp_path, step)
    written(tmp_path, 50)
    (checkpoint_path(str(tmp_path), 30) / WEIGHTS_FILE).unlink()
    prune(str(tmp_path), keep=2, newest=40)
    assert names(tmp_path) == ["step-00000020", "step-00000030", "step-00000040"]
    (checkpoint_path(str(tmp_path), 40) / WEIGHTS_FILE).unlink()
    prune(str(tmp_path), keep=1, newest=40)
    assert "step-00000020" in names(tmp_path), "the last whole one stays"


def test_what_a_run_has_passed_over_does_not_displace_what_it_saves(tmp_path: Path) -> None:
    """Step 30 has its full size and other contents, so the run resumes from 20, and is stopped and saves after 25."""
    for step in (20, 30):
        saved(tmp_path, step)
    weights = checkpoint_path(str(tmp_path), 30) / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[::-1])
    saved(tmp_path, 25)
    prune(str(tmp_path), keep=1, newest=25)
    newest = found_in(tmp_path)
    assert newest is not None and newest.path.name == "step-00000025"


def test_saving_a_step_again_leaves_a_good_one_and_replaces_a_bad_one(tmp_path: Path) -> None:
    weights = saved(tmp_path, 10) / WEIGHTS_FILE
    inode = weights.stat().st_ino
    saved(tmp_path, 10)
    assert weights.stat().st_ino == inode, "there was no moment without it"
    weights.write_bytes(b"")
    assert fault_of_checkpoint(saved(tmp_path, 10)) is None
    assert names(tmp_path) == ["step-00000010"]


def test_a_newer_format_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    manifest = saved(tmp_path, 20) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(CheckpointError, match=r"step-00000020 has format version 2, .* reads up to 1\. Upgrade it"):
        found_in(tmp_path)


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    """A folder that is missing stops even root, as a read-only disk stops others."""
    with pytest.raises(StorageError, match="could not be written: No such file or directory"):
        publish(written(tmp_path, 10), tmp_path / "none" / "step-00000010")


def test_the_best_one_stays_until_a_better_one_comes(tmp_path: Path) -> None:
    """A run that is killed and resumes finds the best loss where it was: in the checkpoints themselves."""
    run = str(tmp_path)
    kept = []
    for step, loss in enumerate([5.0, 3.0, None, 4.0, 3.0, 2.0, None, float("nan"), 9.0], start=1):
        saved(tmp_path, step, loss=loss)
        prune(run, keep=1, newest=step)
        kept.append((best_step(run), steps_saved(run)))
    assert kept == [
        (1, [1]),
        (2, [2]),
        (2, [2, 3]),
        (2, [2, 4]),
        (2, [2, 5]),
        (6, [6]),
        (6, [6, 7]),
        (6, [6, 8]),
        (6, [6, 9]),
    ]
    (checkpoint_path(run, 6) / "evaluation.json").write_text("{")
    assert best_step(run) == 9


@pytest.mark.parametrize(
    ("losses_at_mask", "best"),
    [((4.0, 3.0, 3.5), 2), ((4.0, None, 3.5), 3), ((4.0, float("nan"), 3.5), 3), ((4.0, 3.5, 3.5), 2)],
    ids=["everywhere", "in some", "not finite", "equal"],
)
def test_the_loss_at_masks_decides_where_every_checkpoint_has_it(
    tmp_path: Path, losses_at_mask: tuple[float | None, ...], best: int
) -> None:
    """The mean over all places falls from step to step here, as it does in a model that learns to copy."""
    for step, (mean, at_mask) in enumerate(zip((3.0, 2.0, 1.0), losses_at_mask, strict=True), start=1):
        path = saved(tmp_path, step, loss=mean)
        figures = {"eval_mlm_loss": mean} | ({} if at_mask is None else {"eval_mlm_loss_masked": at_mask})
        (path / "evaluation.json").write_text(json.dumps(figures))
    assert best_step(str(tmp_path)) == best


def test_only_losses_on_the_same_pairs_as_the_newest_are_compared(tmp_path: Path) -> None:
    for step, (loss, pairs) in enumerate([(1.0, "easy"), (4.0, "hard"), (3.0, "hard"), (3.5, "hard")], start=1):
        path = saved(tmp_path, step, loss=loss)
        (path / "evaluation.json").write_text(json.dumps({"eval_mlm_loss": loss, "pairs": pairs}))
    assert best_step(str(tmp_path)) == 3


def test_a_state_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"step": 1}')
    with pytest.raises(CheckpointError, match="not a state of this version"):
        read_state(tmp_path)


def test_a_stated_vocabulary_size_does_not_change_which_run_it_is(pairs: Path) -> None:
    """model.vocab_size is only compared with the pairs, so it may be added or left out when a run is resumed."""
    identities = []
    with closing(PairFolder(str(pairs))) as folder:
        for changes in ([], [f"model.vocab_size={folder.vocabulary.size}"]):
            recipe = load_recipe("tiny", [f"data.pairs={pairs}", *changes])
            identities.append(identity(recipe, phases_of(recipe)[0], [folder]))
    assert identities[0] == identities[1]
