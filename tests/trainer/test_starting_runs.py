"""Runs that start from the statistics of their text: the same on any number of ranks, and resumed without them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from schemas.manifest import read_manifest
from tests.trainer.conftest import logged

STARTS = {
    "model__initial_embeddings": "cooccurrence",
    "model__initial_embedding_std": 0.15,
    "model__initial_attention": "identity",
    "model__initial_head": "identity",
}
NO_DROPOUT = {"model__hidden_dropout_prob": 0, "model__attention_probs_dropout_prob": 0}


def losses(run: Path) -> list[float]:
    return [line["mlm_loss"] for line in logged(run)]


EIGHT_STEPS = {"run__max_steps": 8, "checkpoint__every": 4}


@pytest.fixture(scope="module")
def stopped(training, counted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that began with the statistics and stopped after step 4 of 8; tests that train it further copy it."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    training.trained(1, out, **STARTS, **EIGHT_STEPS, data__statistics=counted, run__stop_at=4)
    return out


@pytest.fixture(scope="module")
def sampled(training, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without statistics and without a stop."""
    out = tmp_path_factory.mktemp("sampled") / "run"
    training.trained(1, out, **STARTS, **EIGHT_STEPS)
    return out


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_ranks_and_counting_do_not_show(training, counted: Path, tmp_path: Path, family: str) -> None:
    changes = {**STARTS, **NO_DROPOUT, "model__family": family, "run__max_steps": 6, "checkpoint__every": 3}
    own, one, two = (tmp_path / name for name in ("own", "one", "two"))
    training.trained(1, own, **changes)
    training.trained(2, two, **changes, data__statistics=counted)
    assert losses(two) == pytest.approx(losses(own), abs=1e-5)
    if family == "modernbert":  # the next test compares those of BERT
        training.trained(1, one, **changes, data__statistics=counted)
        assert losses(one) == losses(own), "the run counts what the pipeline counts"


def test_a_resumed_run_needs_no_statistics(training, stopped: Path, sampled: Path, tmp_path: Path) -> None:
    """And equals a run that was not stopped and has counted for itself."""
    out = shutil.copytree(stopped, tmp_path / "run")
    done = training.warm(1, out, **STARTS, **EIGHT_STEPS, data__statistics=tmp_path / "gone")
    assert done.returncode == 0 and "The run resumes without them" in done.stdout, done.stderr
    assert losses(out) == losses(sampled)


def test_a_resume_with_other_statistics_is_refused(
    training, command, pairs: Path, counted: Path, stopped: Path, tmp_path: Path
) -> None:
    """By their fingerprint, which the checkpoint holds: a folder may be replaced, or lie elsewhere."""
    out = shutil.copytree(stopped, tmp_path / "run")
    state = json.loads((out / "checkpoints/step-00000004/state.json").read_text())
    fingerprint = read_manifest(str(counted), "statistics").fingerprint
    assert state["identity"]["statistics"] == fingerprint

    other = tmp_path / "other"
    assert command("statistics", "--pairs", pairs, "--output", other, "--window", 2).returncode == 0
    done = training.warm(1, out, **STARTS, **EIGHT_STEPS, data__statistics=other)
    assert done.returncode == 4 and f"data.statistics was {fingerprint}, is " in done.stderr, done.stderr

    moved = shutil.copytree(counted, tmp_path / "moved")
    training.trained(1, out, **STARTS, **EIGHT_STEPS, data__statistics=moved)


def test_what_a_run_has_sampled_is_recorded(training, counted: Path, sampled: Path) -> None:
    state = json.loads((sampled / "checkpoints/step-00000004/state.json").read_text())
    assert state["identity"]["statistics"] == "a sample of 8,000,000 tokens with a window of 3"
    done = training.warm(1, sampled, **STARTS, **EIGHT_STEPS, data__statistics=counted)
    assert done.returncode == 4 and "data.statistics was a sample of 8,000,000 tokens" in done.stderr, done.stderr


def test_statistics_of_the_held_out_pairs_are_refused(training, command, held_out: Path, tmp_path: Path) -> None:
    counted = tmp_path / "statistics"
    assert command("statistics", "--pairs", held_out, "--output", counted).returncode == 0
    changes = {"evaluation__pairs": held_out, "data__statistics": counted}
    done = training.warm(1, tmp_path / "run", **STARTS, **changes)
    assert done.returncode == 2, done.stderr
    assert f"data.statistics {counted} counts evaluation.pairs {held_out}" in done.stderr

    # Without starting weights they serve as the baseline at most, and not even as that: they are of other rows.
    training.trained(1, tmp_path / "run", **changes, run__stop_at=1)


def test_a_cut_file_of_statistics_is_one_line_on_two_ranks(training, counted: Path, tmp_path: Path) -> None:
    """Rank 0 alone reads it. The other must end with the same error, not wait for weights."""
    cut = shutil.copytree(counted, tmp_path / "statistics")
    file = next(cut.glob("cooccurrences-*.arrow"))
    file.write_bytes(file.read_bytes()[:-100])

    done = training.warm(2, tmp_path / "run", **STARTS, data__statistics=cut)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("clozeline: ") == 1 and file.name in done.stderr, done.stderr
    assert "Lost rank" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("before", [None, {"slurm-1.out": "of the scheduler"}], ids=["new", "with a log"])
def test_a_start_that_is_refused_leaves_the_folder_as_it_was(training, tmp_path: Path, before) -> None:
    """Refused after the word frequencies were counted and kept there."""
    out = tmp_path / "run"
    if before is not None:
        out.mkdir()
        for name, text in before.items():
            (out / name).write_text(text)

    done = training.warm(1, out, data__statistics=tmp_path / "nowhere")
    assert done.returncode == 3 and "holds no finished statistics" in done.stderr, done.stderr
    assert "clozeline statistics" in done.stderr and "Traceback" not in done.stderr
    done = training.warm(1, out, model__init_from=tmp_path / "nowhere")
    assert done.returncode not in (0, 1) and "Traceback" not in done.stderr, done.stderr

    assert out.exists() == (before is not None)
    left = {path.name: path.read_text() for path in out.iterdir()} if out.exists() else None
    assert left == before
