"""Runs whose output is on s3://, against a real S3 server on loopback, with requests that fail on the way to it."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from schemas import storage
from schemas.errors import CheckpointError, StorageError
from tests.object_store import ObjectStore
from tests.trainer.checkpoint.saved import WEIGHTS_FILE, saved
from tests.trainer.data.node_cache.shards import until
from tests.trainer.one_rank import group_of_one
from trainer.checkpoint import format as layout
from trainer.checkpoint import remote
from trainer.checkpoint.format import FoundCheckpoint, checkpoint_path, steps_saved
from trainer.checkpoint.remote import RunUrl, bring_checkpoint, bring_other_files
from trainer.checkpoint.resume import find_checkpoint
from trainer.checkpoint.run_folder import NodeFolders
from trainer.checkpoint.write import prune
from trainer.export import cli as export_cli

URL = "s3://runs/a"


@pytest.fixture
def bucket(store: ObjectStore, monkeypatch: pytest.MonkeyPatch):
    """A fresh bucket, which this process reaches too."""
    store.reset()
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield store.bucket("runs")
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def keys(bucket) -> set[str]:
    return {item.key.removeprefix("a/") for item in bucket.objects.all()}


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run of one rank, which does not wait long before it tries again."""
    monkeypatch.setattr(remote, "DELAYS", (0.01,))
    with group_of_one():
        yield


def start(folder: Path, keep: int = 3) -> RunUrl:
    """What a run does before it trains: it takes the newest checkpoint, of here or of the URL."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("recipe.toml", "metrics.jsonl", "lock"):
        if not (folder / name).exists():
            (folder / name).write_text("")
    url = RunUrl(URL, str(folder), keep)
    url.check()
    found = find_checkpoint(str(folder), NodeFolders([0]), url)
    if found is not None:
        url.begin_from(found.state.step)
        prune(str(folder), keep, found.state.step)
    return url


def train(folder: Path, *steps: int, keep: int = 3, weights: bytes = b"weights", loss: float | None = None) -> RunUrl:
    """What a run does that starts, saves after these steps, and ends."""
    url = start(folder, keep)
    for step in steps:
        url.send(saved(folder, step, weights, loss), step)
        prune(str(folder), keep, step)
    url.finish()
    return url


def found_on(folder: Path) -> FoundCheckpoint:
    """The checkpoint that a machine takes when it continues the run in this folder."""
    found = find_checkpoint(str(folder), NodeFolders([0]), RunUrl(URL, str(folder), 3))
    assert found is not None
    return found


def bring_to(folder: Path) -> None:
    """Download the newest checkpoint, and what else an export needs."""
    assert bring_checkpoint(URL, str(folder), steps_saved(URL)[-1]) is None
    bring_other_files(URL, str(folder))


def test_another_machine_resumes_and_the_run_equals_one_on_a_disk(training, store, bucket, straight, tmp_path, capsys):
    """Two ranks; the store refuses a request now and then; what the first machine had is lost."""
    store.fail(503, "checkpoints", times=1, method="PUT")
    for machine, stop in (("one", {"run__stop_at": 6}), ("two", {})):
        done = training.trained(2, Path("-"), run__output=URL, run__local=tmp_path / machine, **stop)
    assert "Brought step 6 of s3://runs/a" in done.stdout and "s3://runs/a: step 12 of 12 is saved" in done.stdout
    assert steps_saved(URL) == [8, 12]
    assert b"step 6 of 12 is saved" in storage.read(f"{URL}/log.txt"), "the last line of the first start"
    bring_to(tmp_path / "third")
    assert training.losses(tmp_path / "third") == training.losses(straight)
    assert training.tensors(tmp_path / "third", 12) == training.tensors(straight, 12)
    assert {"report.html", "recipe.toml", "lock", "vocabulary/vocab.txt"} <= keys(bucket)
    for source, out in ((URL, "hf"), (str(straight), "expected")):
        assert export_cli.main([source, "--output", str(tmp_path / out)]) == 0
    assert (tmp_path / "hf/model.safetensors").read_bytes() == (tmp_path / "expected/model.safetensors").read_bytes()
    assert export_cli.main([URL, "--step", "4", "--output", str(tmp_path / "none")]) == 2
    assert "s3://runs/a holds no checkpoint of step 4. It holds 8, 12." in capsys.readouterr().err


def test_all_ranks_wait_for_the_last_copy(training, store, bucket, tmp_path) -> None:
    """A launcher whose first rank has ended kills the others, which would cut the copy off."""
    store.fail("hang", "step-00000002/rank-00000", method="PUT")
    process = training.start("torchrun", Path("-"), run__output=URL, run__local=tmp_path, run__stop_at=2)
    until(lambda: store.count("step-00000002/rank-00000", "PUT") > 0, 120)
    ranks = training.ranks(process)
    time.sleep(5)
    assert len(ranks) == 2 and all(rank.is_running() and rank.status() != "zombie" for rank in ranks)
    store.released.set()
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "step 2 of 12 is saved" in told, told
    assert steps_saved(URL) == [2]


def test_a_store_that_refuses_ends_a_run_before_its_first_step(training, store, bucket, tmp_path) -> None:
    store.fail(403, "lock", method="PUT")
    done = training.run("python", Path("-"), run__output=URL, run__local=tmp_path)
    assert done.returncode == 5 and "Traceback" not in done.stderr and "step 1" not in done.stdout
    assert "s3://runs/a/lock cannot be reached" in done.stderr and "credentials" in done.stderr
    assert not list(tmp_path.glob("run-*")), "a start that failed leaves no empty run behind"


def test_a_start_that_is_refused_leaves_nothing_at_the_url(training, bucket, tmp_path) -> None:
    refused = {"run__output": URL, "run__local": tmp_path, "data__statistics": tmp_path / "none"}
    done = training.run("python", Path("-"), **refused)
    assert done.returncode in (2, 3) and "Traceback" not in done.stderr, done.stderr
    assert keys(bucket) == set()

    # What another start has put there stays.
    bucket.put_object(Key="a/lock", Body=b"process 1 on elsewhere")
    assert training.run("python", Path("-"), **refused).returncode == done.returncode
    assert keys(bucket) == {"lock"}


def test_an_export_names_a_store_that_refuses(store, bucket, group, tmp_path, capsys) -> None:
    train(tmp_path / "run", 4)
    store.fail(403, "state.json", method="GET")
    assert export_cli.main([URL, "--output", str(tmp_path / "hf")]) == 5
    error = capsys.readouterr().err
    assert error.startswith("clozeline: s3://runs/a") and "cannot be reached" in error and "Traceback" not in error


@pytest.mark.parametrize("place", [WEIGHTS_FILE, "state.json", "manifest.json"])
def test_a_copy_that_fails_half_way_is_no_checkpoint_and_the_next_start_sends_it(
    store, bucket, group, tmp_path, capsys, place
) -> None:
    here = tmp_path / "here"
    train(here, 1)
    store.fail(403, f"step-00000002/{place}", method="PUT")
    with pytest.raises(StorageError, match=r"s3://runs/a.* cannot be reached"):
        train(here, 2)
    assert "Trying again in 0.01 s" in capsys.readouterr().out
    assert steps_saved(URL) == [1]
    found_on(tmp_path / "there")
    assert steps_saved(str(tmp_path / "there")) == [1]

    store.reset()
    train(here)
    assert steps_saved(URL) == [1, 2]
    assert found_on(tmp_path / "later").faults == []


def test_what_an_unfinished_upload_left_is_removed_by_the_next_save(store, bucket, group, tmp_path) -> None:
    """A machine that does not have the checkpoint continues the run."""
    train(tmp_path / "first", 1)
    store.fail(403, "step-00000002/manifest.json", method="PUT")
    with pytest.raises(StorageError):
        train(tmp_path / "first", 2)
    assert f"checkpoints/step-00000002/{WEIGHTS_FILE}" in keys(bucket)
    store.reset()
    train(tmp_path / "second", 3)
    assert steps_saved(URL) == [1, 3] and not [key for key in keys(bucket) if "step-00000002" in key]


def test_the_url_keeps_the_newest_and_the_best(bucket, group, tmp_path) -> None:
    """Also when the best is only there, as on a machine that has taken the run over."""
    train(tmp_path / "first", 1, keep=1, loss=3.0)
    train(tmp_path / "first", 2, keep=1, loss=2.0)
    train(tmp_path / "first", 3, keep=1)
    assert steps_saved(URL) == [2, 3]
    second = tmp_path / "second"
    start(second, keep=1)
    assert steps_saved(str(second)) == [3]
    train(second, 4, keep=1)
    assert steps_saved(URL) == [2, 4]
    assert not [name for name in keys(bucket) if "step-00000003" in name]


def test_figures_that_come_later_follow(bucket, group, tmp_path) -> None:
    url = train(tmp_path, 5)
    assert layout.best_step(URL) is None
    layout.add_evaluation(checkpoint_path(str(tmp_path), 5), {"eval_mlm_loss": 2.5})
    url.finish()
    assert layout.best_step(URL) == 5


def test_files_that_have_not_changed_are_not_sent_again(store, bucket, group, tmp_path) -> None:
    url = train(tmp_path, 1)
    before = store.count("recipe.toml", "PUT")
    url.send(saved(tmp_path, 2), 2)
    assert store.count("recipe.toml", "PUT") == before
    (tmp_path / "recipe.toml").write_text("changed")
    url.send(saved(tmp_path, 3), 3)
    assert storage.read(f"{URL}/recipe.toml") == b"changed"


def test_what_is_damaged_there_is_passed_over(bucket, group, tmp_path, capsys) -> None:
    first = tmp_path / "first"
    second = tmp_path / "second"
    train(first, 1, 2)
    bucket.put_object(Key=f"a/checkpoints/step-00000002/{WEIGHTS_FILE}", Body=b"cut")
    (fault,) = found_on(second).faults
    assert f"s3://runs/a/checkpoints/step-00000002/{WEIGHTS_FILE} was cut" in fault
    assert steps_saved(str(second)) == [1]
    assert export_cli.main([URL, "--output", str(tmp_path / "hf")]) == 4
    error = capsys.readouterr().err
    assert "was cut" in error and "--step 1" in error
    bucket.Object(f"a/checkpoints/step-00000002/{WEIGHTS_FILE}").delete()
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    (fault,) = found_on(tmp_path / "fourth").faults
    assert fault == f"s3://runs/a/checkpoints/step-00000002/{WEIGHTS_FILE} is missing."


def test_a_damaged_local_copy_is_brought_again(bucket, group, tmp_path, capsys) -> None:
    train(tmp_path, 1, 2)
    path = checkpoint_path(str(tmp_path), 2)
    (path / WEIGHTS_FILE).write_bytes(b"WEIGHTS" * 100)
    start(tmp_path)
    assert layout.fault_of_checkpoint(path) is None
    assert "Brought step 2 of s3://runs/a" in capsys.readouterr().out


def test_the_same_step_at_the_url_counts(bucket, group, tmp_path) -> None:
    """Two machines have continued from the same step, and the URL has the checkpoints of one of them."""
    train(tmp_path / "first", 7, weights=b"a")
    saved(tmp_path / "second", 7, b"b")
    start(tmp_path / "second")
    assert (checkpoint_path(str(tmp_path / "second"), 7) / WEIGHTS_FILE).read_bytes() == b"a" * 100


def test_a_damaged_checkpoint_there_does_not_displace_older_and_later_ones(bucket, group, tmp_path) -> None:
    """Step 8 has its full size and other contents, so another machine resumes from 4, and is stopped after 6."""
    train(tmp_path / "first", 4, 8)
    bucket.put_object(Key=f"a/checkpoints/step-00000008/{WEIGHTS_FILE}", Body=b"WEIGHTS" * 100)

    second = tmp_path / "second"
    train(second, 6, keep=1)
    found_on(tmp_path / "third")
    assert steps_saved(str(tmp_path / "third")) == [6]

    train(second, 8, keep=1, weights=b"others.")
    assert steps_saved(URL) == [8]
    assert bring_checkpoint(URL, str(tmp_path / "fourth"), 8) is None


def test_another_machine_gets_the_metrics_up_to_the_checkpoint(bucket, group, tmp_path) -> None:
    """Also one that has the checkpoint, but did not have rank 0 when it was made."""
    first = tmp_path / "first"
    start(first)
    (first / "metrics.jsonl").write_text("to step 4\n")
    (first / "log.txt").write_text("to step 4\n")
    train(first, 4)
    second = tmp_path / "second"
    found_on(second)
    (second / "metrics.jsonl").write_text("to step 2\n")
    (second / "log.txt").write_text("of another start\n")
    start(second)
    assert (second / "metrics.jsonl").read_text() == (second / "log.txt").read_text() == "to step 4\n"
    (second / "log.txt").write_text("to step 4\nand what ended the run\n")
    start(second)
    assert (second / "log.txt").read_text() == "to step 4\nand what ended the run\n"


def test_a_manifest_of_another_form_is_passed_over(bucket, group, tmp_path) -> None:
    train(tmp_path / "first", 1, 2)
    for body in (b"[]", b"{", b"[" * 100_000, b'{"format_version": 1, "files": [{}]}'):
        bucket.put_object(Key="a/checkpoints/step-00000002/manifest.json", Body=body)
        (fault,) = found_on(tmp_path / "second").faults
        assert "step-00000002/manifest.json cannot be read" in fault
    bucket.put_object(Key="a/checkpoints/step-00000002/manifest.json", Body=json.dumps({"format_version": 2}).encode())
    with pytest.raises(CheckpointError, match="has format version 2"):
        found_on(tmp_path / "second")


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside", ".."])
def test_a_manifest_names_files_of_its_own_folder_alone(bucket, group, tmp_path, name) -> None:
    """Whoever can write the bucket must not write elsewhere on a machine that reads it."""
    train(tmp_path / "first", 1)
    entry = {"path": name, "bytes": 1, "sha256": ""}
    body = json.dumps({"format_version": 1, "files": [entry]}).encode()
    bucket.put_object(Key="a/checkpoints/step-00000001/manifest.json", Body=body)
    with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read .* is not the name of a file"):
        found_on(tmp_path / "second")
