"""A run resumes on the rows that it began with, or not at all."""

import shutil
from pathlib import Path

from tests.damaged_folders import keep_40_rows
from trainer.checkpoint.resume import identity
from trainer.config.load import load_recipe
from trainer.config.phases import phases_of
from trainer.data.folder import PairFolder


def test_a_run_does_not_resume_on_other_rows(training, pairs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(pairs, tmp_path / "pairs")
    run = {"data__pairs": copy, "run__max_steps": 4, "checkpoint__every": 2}
    training.trained(1, tmp_path / "run", **run, run__stop_at=2)
    keep_40_rows(copy)
    done = training.warm(1, tmp_path / "run", **run)
    assert done.returncode == 3, done.stderr
    assert "states fingerprint" in done.stderr and "Traceback" not in done.stderr


def test_a_stated_vocabulary_size_does_not_change_which_run_it_is(pairs: Path) -> None:
    """model.vocab_size is only compared with the pairs, so it may be added or left out when a run is resumed."""
    folder = PairFolder(str(pairs))
    identities = []
    for changes in ([], [f"model.vocab_size={folder.vocabulary.size}"]):
        recipe = load_recipe("tiny", [f"data.pairs={pairs}", *changes])
        identities.append(identity(recipe, phases_of(recipe)[0], [folder]))
    folder.close()

    assert identities[0] == identities[1]
