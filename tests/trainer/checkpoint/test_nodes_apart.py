"""Runs of two nodes that share nothing but a bucket equal runs on one disk, whatever happens on the way.

A node is a rank with a separate working folder, which contains run.local.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.object_store import ObjectStore
from tests.trainer.checkpoint.test_remote import bring_to, bucket, keys  # noqa: F401 (bucket is a fixture)
from tests.trainer.conftest import Done, Training
from tests.trainer.ranks import run_ranks
from trainer.checkpoint.format import steps_saved

TINY_RUN = {"config": "tiny"}
STAGE_3 = {"deepspeed__zero_optimization__stage3_param_persistence_threshold": 0}  # or small parameters are not shared
TINY = Path(__file__).resolve().parents[3] / "tests/recipes/small_bert.toml"
PASSES = 2
"""Forward passes of a rank in a step: 16 rows, 4 at a time, on two ranks."""

URL = "s3://runs/a"


class Nodes:
    """Two nodes with a rank each."""

    def __init__(self, training: Training, folder: Path):
        self._training = training
        self._disks = [folder / "disk-0", folder / "disk-1"]
        for disk in self._disks:
            disk.mkdir()

    def train(self, out: Path | str, faults: str = "", **changes: object) -> Done:
        """Train on both. A run at a URL has a folder on each disk."""
        local = {} if isinstance(out, Path) else {"run__local": "local"}
        return run_ranks(2, self._training.flags(out, **TINY_RUN | local | changes), faults, disks=self._disks)

    def lose_disks(self) -> None:
        for disk in self._disks:
            shutil.rmtree(disk / "local", ignore_errors=True)

    def disk(self, node: int) -> Path:
        return self._disks[node]

    def files(self, node: int, pattern: str) -> list[Path]:
        return sorted((self._disks[node] / "local").rglob(pattern))


@pytest.fixture(scope="module")
def nodes(training: Training, tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    return Nodes(training, tmp_path_factory.mktemp("nodes"))


@pytest.fixture
def apart(nodes: Nodes, bucket) -> Nodes:  # noqa: F811
    """Nodes with empty disks, and an empty bucket."""
    nodes.lose_disks()
    return nodes


def assert_equal(brought_to: Path, straight: Path, step: int) -> None:
    """The run at the URL equals one on a disk."""
    bring_to(brought_to)
    assert Training.losses(brought_to) == Training.losses(straight)
    assert Training.tensors(brought_to, step) == Training.tensors(straight, step)


@pytest.mark.thorough
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_zero_stage_resumes_from_the_bucket(apart: Nodes, stage: int, bucket, tmp_path: Path) -> None:  # noqa: F811
    """First the disks are lost, then the nodes share a folder, as the ranks of one node do."""
    settings: dict[str, Any] = {"engine__zero_stage": stage} | (STAGE_3 if stage == 3 else {})
    straight = apart.train(tmp_path / "straight", **settings)
    assert straight.returncode == 0, straight.stderr

    shared: dict[str, Any] = {"run__local": tmp_path / "shared"}
    for stop, where in ((4, {}), (8, {}), (12, shared)):
        done = apart.train(URL, **settings, run__stop_at=stop, **where)
        assert done.returncode == 0, done.stderr
        assert ("Resuming from" in done.stdout) == (stop > 4)
        assert not apart.files(1, "*.partial")
        apart.lose_disks()

    assert {f"checkpoints/step-00000008/rank-0000{rank}.safetensors" for rank in (0, 1)} <= keys(bucket)
    assert_equal(tmp_path / "end", tmp_path / "straight", 12)


def test_phases_and_rollbacks_begin_from_the_bucket(apart: Nodes, tmp_path: Path) -> None:
    """Steps 6 to 8 are bad, so the run goes back to step 4; its second phase begins after step 8. Disks are kept."""
    recipe = tmp_path / "phases.toml"
    phases = "[[phases]]\nsteps = 8\n\n[[phases]]\nsteps = 4\nbatch = { global_batch = 8, micro_batch = 4 }\n"
    recipe.write_text(TINY.read_text() + "\n" + phases)
    passes = f"{PASSES * 5 + 1}:{PASSES * 8}"

    for out in (tmp_path / "straight", URL):
        done = apart.train(out, f"nan:0:{passes}", anomaly__max_skips=3, config=recipe)
        assert done.returncode == 0, done.stderr
        assert "Going back to step 4; 4 steps of data are left out" in done.stdout
    assert_equal(tmp_path / "end", tmp_path / "straight", 12)


def test_what_the_store_refuses_is_sent_again(apart: Nodes, store: ObjectStore, tmp_path: Path) -> None:
    """Training continues, and the checkpoint is published a few seconds later."""
    store.fail(403, "step-00000004/rank-00001", times=1, method="PUT")
    done = apart.train(URL, run__stop_at=8)
    assert done.returncode == 0, done.stderr
    assert "Trying again in 1 s" in done.stdout + done.stderr
    assert steps_saved(URL) == [4, 8]


def test_a_run_goes_on_from_what_an_outage_has_left_at_the_url(
    apart: Nodes, store: ObjectStore, tmp_path: Path
) -> None:
    """The store takes nothing more of one node after step 4, and the run ends after step 8."""
    assert apart.train(tmp_path / "straight").returncode == 0
    assert apart.train(URL, run__stop_at=4).returncode == 0
    store.fail(403, "step-00000008/rank-00001", method="PUT")
    done = apart.train(URL, run__stop_at=8)
    assert done.returncode == 5 and "is saved" not in done.stdout, done.stdout
    assert "Step 8 is not at s3://runs/a" in done.stderr and "Traceback" not in done.stderr
    assert "The same command resumes from the newest checkpoint there" in done.stderr
    assert steps_saved(URL) == [4]

    store.reset()
    done = apart.train(URL)
    assert done.returncode == 0 and "step 4, row" in done.stdout, done.stderr
    assert not apart.files(0, "*.partial") and not apart.files(1, "*.partial")
    assert_equal(tmp_path / "end", tmp_path / "straight", 12)


def test_a_node_that_may_not_write_ends_the_run_before_its_first_step(apart: Nodes, store: ObjectStore) -> None:
    store.fail(403, "/rank-1", method="PUT")
    done = apart.train(URL)
    assert done.returncode == 5 and "s3://runs/a" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert steps_saved(URL) == []
