"""Runs whose output is on s3://, against a real S3 server on loopback, with requests that fail on the way to it."""

import json
import time
from pathlib import Path
from threading import Event

import fsspec
import pytest

from schemas import storage
from schemas.errors import CheckpointError, StorageError
from tests.object_store import ObjectStore
from trainer.checkpoint import layout, publication
from trainer.checkpoint.layout import checkpoint_path, steps_saved
from trainer.checkpoint.manifest import describe_file, seal
from trainer.checkpoint.remote_sync import RemoteRun, bring_run
from trainer.checkpoint.state import TrainingState
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


def saved(run: Path, step: int, weights: bytes = b"weights", loss: float | None = None) -> None:
    partial = publication.begin(str(run), step)
    (partial / "model.safetensors").write_bytes(weights * 100)
    (partial / "state.json").write_text(TrainingState(step=step, tokens=1, seconds=0.5, identity={}).model_dump_json())
    if loss is not None:
        layout.add_evaluation(partial, {"eval_mlm_loss": loss})
    seal(partial, [describe_file(partial, file) for file in sorted(partial.iterdir())])
    publication.publish_checkpoint(partial, checkpoint_path(str(run), step))
    for name in ("recipe.toml", "metrics.jsonl", "lock"):
        (run / name).write_text("")


def follow(run: Path, keep: int = 3) -> None:
    """What a run does from its beginning to its end."""
    remote = RemoteRun(URL, str(run), keep)
    remote.fetch()
    remote.follow()
    remote.close()


def test_another_machine_resumes_and_the_run_equals_one_on_a_disk(training, store, bucket, straight, tmp_path, capsys):
    """Two ranks; the store refuses a request now and then; what the first machine had is lost."""
    store.fail(503, "checkpoints", times=1, method="PUT")
    for machine, stop in (("one", {"run__stop_at": 6}), ("two", {})):
        done = training.run("torchrun", Path("-"), run__output=URL, run__local=tmp_path / machine, **stop)
        assert done.returncode == 0, done.stderr
    assert "Brought step 6 of s3://runs/a" in done.stdout and "s3://runs/a: step 12 of 12 is saved" in done.stdout
    assert steps_saved(URL) == [8, 12]
    bring_run(URL, str(tmp_path / "third"), None)
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
    store.fail("hang", "step-00000002/model.safetensors", method="PUT")
    process = training.start("launcher", Path("-"), run__output=URL, run__local=tmp_path, run__stop_at=2)
    wait_for(lambda: store.count("step-00000002/model.safetensors", "PUT") > 0)
    ranks = training.ranks(process)
    time.sleep(5)
    assert len(ranks) == 2 and all(rank.is_running() and rank.status() != "zombie" for rank in ranks)
    store.released.set()
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "step 2 of 12 is saved" in told, told
    assert steps_saved(URL) == [2]


def wait_for(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


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


def test_an_export_names_a_store_that_refuses(store, bucket, tmp_path, capsys) -> None:
    saved(tmp_path / "run", 4)
    follow(tmp_path / "run")
    store.fail(403, "state.json", method="GET")
    assert export_cli.main([URL, "--output", str(tmp_path / "hf")]) == 5
    error = capsys.readouterr().err
    assert error.startswith("clozeline: s3://runs/a") and "cannot be reached" in error and "Traceback" not in error


def test_a_last_copy_that_stalls_is_given_up(store, bucket, tmp_path, monkeypatch, capsys) -> None:
    released = Event()
    saved(tmp_path / "run", 4)
    remote = RemoteRun(URL, str(tmp_path / "run"), keep=3, timeout=0.5)
    remote.fetch()
    monkeypatch.setattr(remote, "_send", lambda step: released.wait(60))
    with pytest.raises(StorageError, match=r"s3://runs/a has taken nothing for engine\.timeout_seconds\. What is miss"):
        remote.close()
    released.set()


@pytest.mark.parametrize("place", ["model.safetensors", "state.json", "manifest.json"])
def test_a_copy_that_fails_half_way_is_no_checkpoint_and_is_repeated(store, bucket, tmp_path, capsys, place) -> None:
    saved(tmp_path, 1)
    follow(tmp_path)
    saved(tmp_path, 2)
    store.fail(403, f"step-00000002/{place}", method="PUT")
    with pytest.raises(StorageError, match=r"s3://runs/a.* cannot be reached .* lies in"):
        follow(tmp_path)
    assert "Training continues" in capsys.readouterr().out
    assert steps_saved(URL) == [1]
    bring_run(URL, str(tmp_path / "there"), None)
    assert steps_saved(str(tmp_path / "there")) == [1]
    store.reset()
    follow(tmp_path)
    assert steps_saved(URL) == [1, 2]


def test_the_url_keeps_the_newest_and_the_best(bucket, tmp_path) -> None:
    """Also when the best is only there, as on a machine that has taken the run over."""
    first = tmp_path / "first"
    second = tmp_path / "second"
    for step, loss in ((1, 3.0), (2, 2.0), (3, None)):
        saved(first, step, loss=loss)
    follow(first, keep=1)
    assert steps_saved(URL) == [2, 3]
    second.mkdir()
    (second / "lock").write_text("")
    follow(second, keep=1)
    assert steps_saved(str(second)) == [3]
    saved(second, 4)
    publication.prune(str(second), keep=1, newest=4)
    follow(second, keep=1)
    assert steps_saved(URL) == [2, 4]
    assert not [name for name in keys(bucket) if "step-00000003" in name]


def test_what_is_kept_here_alone_is_not_sent_again_and_again(store, bucket, tmp_path) -> None:
    """The best checkpoint of the machine that has taken over is worse than one that the other left at the URL."""
    first = tmp_path / "first"
    second = tmp_path / "second"
    saved(first, 1, loss=1.0)
    follow(first, keep=1)
    second.mkdir()
    (second / "lock").write_text("")
    for step in (2, 3, 4):
        follow(second, keep=1)
        saved(second, step, loss=2.0 if step == 2 else None)
        for path in (second / "checkpoints/step-00000001").glob("*"):
            path.unlink()
        publication.prune(str(second), keep=1, newest=step)
    follow(second, keep=1)
    assert steps_saved(str(second)) == [2, 4] and steps_saved(URL) == [1, 4]
    assert store.count("step-00000002/manifest.json", "PUT") == 1


def test_figures_that_come_later_follow(bucket, tmp_path) -> None:
    saved(tmp_path, 5)
    follow(tmp_path)
    assert layout.best_step(URL) is None
    layout.add_evaluation(checkpoint_path(str(tmp_path), 5), {"eval_mlm_loss": 2.5})
    follow(tmp_path)
    assert layout.best_step(URL) == 5


def test_what_is_damaged_there_is_passed_over_and_what_is_newer_here_stays(bucket, tmp_path, capsys) -> None:
    first = tmp_path / "first"
    second = tmp_path / "second"
    for step in (1, 2):
        saved(first, step)
    follow(first)
    bucket.put_object(Key="a/checkpoints/step-00000002/model.safetensors", Body=b"cut")
    (fault,) = bring_run(URL, str(second), None)
    assert "step-00000002/model.safetensors was cut" in fault
    assert steps_saved(str(second)) == [1]
    assert export_cli.main([URL, "--output", str(tmp_path / "hf")]) == 4
    error = capsys.readouterr().err
    assert "model.safetensors was cut" in error and "--step 1" in error
    with pytest.raises(CheckpointError, match=r"s3://runs/a/checkpoints/step-00000002/model\.safetensors was cut"):
        bring_run(URL, str(tmp_path / "third"), 2)
    follow(first)  # the same manifest: what is there is taken as it is
    saved(first, 3)
    follow(first)
    assert steps_saved(str(first)) == [1, 2, 3]
    bring_run(URL, str(second), None)
    assert steps_saved(str(second)) == [1, 3]


def test_the_same_step_with_other_content_takes_its_place(bucket, tmp_path) -> None:
    for place, weights in (("first", b"a"), ("second", b"b")):
        saved(tmp_path / place, 7, weights)
        follow(tmp_path / place)
    bring_run(URL, str(tmp_path / "third"), 7)
    assert (checkpoint_path(str(tmp_path / "third"), 7) / "model.safetensors").read_bytes() == b"b" * 100
    manifest = json.loads(storage.read(f"{URL}/checkpoints/step-00000007/manifest.json"))
    assert [entry["path"] for entry in manifest["files"]] == ["model.safetensors", "state.json"]


def test_a_damaged_checkpoint_there_does_not_displace_older_and_later_ones(bucket, tmp_path) -> None:
    """Step 8 has its full size and other contents, so another machine resumes from 4, and is stopped after 6."""
    first = tmp_path / "first"
    second = tmp_path / "second"
    for step in (4, 8):
        saved(first, step)
    follow(first)
    bucket.put_object(Key="a/checkpoints/step-00000008/model.safetensors", Body=b"WEIGHTS" * 100)

    second.mkdir()
    (second / "lock").write_text("")
    remote = RemoteRun(URL, str(second), keep=1)
    remote.fetch()
    saved(second, 6)
    remote.close()
    bring_run(URL, str(tmp_path / "third"), None)
    assert steps_saved(str(tmp_path / "third")) == [6]

    saved(second, 8, b"others.")
    follow(second, keep=1)
    assert steps_saved(URL) == [8]
    bring_run(URL, str(tmp_path / "fourth"), 8)
