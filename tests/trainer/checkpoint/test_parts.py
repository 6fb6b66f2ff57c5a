"""Checkpoints in parts: what nodes upload and what another machine puts together from it."""

from __future__ import annotations

import random
import uuid
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas import storage
from schemas.errors import CheckpointError
from tests.trainer.checkpoint.test_remote_sync import bucket, keys  # noqa: F401 (bucket is a fixture)
from trainer.checkpoint.layout import checkpoint_path, location, steps_saved
from trainer.checkpoint.manifest import MANIFEST, describe_file, fault_of_checkpoint
from trainer.checkpoint.part_writes import publish_parts, read_back_parts
from trainer.checkpoint.parts import manifest_in_parts, manifest_of
from trainer.checkpoint.remote_parts import RemotePartOfRun
from trainer.checkpoint.remote_sync import bring_run
from trainer.checkpoint.shared_writes import WrittenPiece
from trainer.checkpoint.url_checkpoints import is_same, prune_url, remove_unfinished

NAMES = ("exp_avg.safetensors", "model.safetensors")


def contents(size: int) -> dict[str, bytes]:
    return {name: random.Random(name).randbytes(size) for name in NAMES}


def save(folders: list[Path], nodes: list[int], owners: list[int], step: int = 4) -> dict[str, bytes]:
    """Save as the ranks of `nodes` would, each with a folder of its node; owners: the rank of each 10 bytes."""
    whole = contents(10 * len(owners))
    written: dict[str, list[WrittenPiece]] = {}
    for name, data in whole.items():
        for folder in folders:
            (folder / "partial").mkdir(parents=True, exist_ok=True)
            (folder / "partial" / name).write_bytes(bytes(len(data)))
        written[name] = []
        for place, rank in enumerate(owners):
            begin, end = 10 * place, 10 * place + 10
            with (folders[nodes[rank]] / "partial" / name).open("r+b") as file:
                file.seek(begin)
                file.write(data[begin:end])
            written[name].append(WrittenPiece(begin, end, zlib.crc32(data[begin:end]), rank))

    state = folders[0] / "partial/state.json"
    state.write_text("{}")
    parts = [
        read_back_parts(folders[nodes[rank]] / "partial", written, nodes, rank, "ab") for rank in range(len(nodes))
    ]
    sizes = {name: len(data) for name, data in whole.items()}
    manifest = manifest_of([describe_file(state.parent, state)], sizes, parts)
    for folder in folders:
        publish_parts(folder / "partial", str(folder), f"step-{step:08d}", "ab", manifest, keep=2)
        (folder / "lock").write_text("")
    return whole


def upload(folders: list[Path], url: str) -> None:
    """What the leaders of all nodes do, rank 0's last."""
    remotes = [RemotePartOfRun(url, str(folder), 2, 60.0, number) for number, folder in enumerate(folders)]
    for remote in remotes:
        remote.fetch()
    for remote in reversed(remotes):
        remote.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_partition_over_any_nodes_comes_back(tmp_path: Path, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 5), "nodes")
    nodes = list(range(count)) + data.draw(st.lists(st.integers(0, count - 1), max_size=4), "more ranks")
    owners = data.draw(st.lists(st.integers(0, len(nodes) - 1), min_size=1, max_size=30), "owners")
    here = tmp_path / uuid.uuid4().hex
    url = f"memory://{here}"
    folders = [here / str(number) for number in range(count)]
    whole = save(folders, nodes, owners)
    upload(folders, url)
    assert not [path for folder in folders for path in (folder / "parts").iterdir()]

    bring_run(url, str(here / "there"), None)
    path = checkpoint_path(str(here / "there"), 4)
    assert fault_of_checkpoint(path) is None and is_same(url, str(here / "there"), 4)
    assert {name: (path / name).read_bytes() for name in NAMES} == whole
    assert sorted(file.name for file in path.iterdir()) == sorted([*NAMES, "state.json", MANIFEST])


@pytest.mark.parametrize("damage", ["changed", "cut", "missing", "gap", "overlap", "outside", "newer"])
def test_what_is_damaged_is_passed_over(damage: str, tmp_path: Path) -> None:
    url = f"memory://{tmp_path}"
    folders = [tmp_path / "0", tmp_path / "1"]
    for step in (4, 8):
        whole = save(folders, [0, 1], [0, 1, 1, 0], step)
        upload(folders, url)
    at = location(url, 8)
    part = storage.join(at, "model.safetensors.part-1-of-2.ab")
    text = storage.read(storage.join(at, MANIFEST)).decode()
    if damage == "changed":
        storage.publish(part, bytes(20))
    elif damage == "cut":
        storage.publish(part, whole["model.safetensors"][10:20])
    elif damage == "missing":
        storage.remove(part)
    else:
        changes = {
            "gap": ('"bytes": 40', '"bytes": 50'),
            "overlap": ("     10\n", "     20\n"),
            "outside": ('"path": "model.safetensors"', '"path": "../model.safetensors"'),
            "newer": ('"format_version": 2', '"format_version": 3'),
        }
        before, after = changes[damage]
        changed = "".join(text.split()) if damage == "overlap" else text
        before, after = ("[0,10]", "[0,20]") if damage == "overlap" else (before, after)
        assert before in changed
        storage.publish(storage.join(at, MANIFEST), changed.replace(before, after).encode())

    if damage == "newer":
        with pytest.raises(CheckpointError, match=r"format version 3, .* Upgrade it"):
            bring_run(url, str(tmp_path / "there"), None)
        return
    (fault,) = bring_run(url, str(tmp_path / "there"), None)
    assert "step-00000008" in fault
    assert steps_saved(str(tmp_path / "there")) == [4]


def test_only_what_all_nodes_have_uploaded_is_published(tmp_path: Path) -> None:
    """And what was not is removed by the next run, but not while nodes upload it."""
    url = f"memory://{tmp_path}"
    folders = [tmp_path / "0", tmp_path / "1"]
    save(folders, [0, 1], [0, 1])
    upload(folders[:1], url)
    assert steps_saved(url) == [] and storage.names(location(url, 4))
    prune_url(url, 2, spare_newer=True)
    assert storage.names(location(url, 4))
    remove_unfinished(url)
    assert not storage.names(location(url, 4))


def test_a_manifest_of_one_node_is_no_manifest_in_parts() -> None:
    assert manifest_in_parts(b'{"format_version": 1, "files": []}', "here") is None


def test_nodes_without_a_common_folder_need_only_a_bucket(training, store, bucket, straight, tmp_path) -> None:  # noqa: F811
    """Two nodes, then one alone with two ranks: losses and weights of a run on one disk."""
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("node-1 slots=1\nnode-2 slots=1\n")
    settings = {"hostfile": hostfile, "run__output": "s3://runs/a", "run__stop_at": 6}
    launchers = []
    with pytest.MonkeyPatch.context() as patch:
        for node in (0, 1):
            patch.setenv("CLOZELINE_NODE", str(node))
            place = tmp_path / f"disk-{node}"
            launchers.append(training.start("one node", Path("-"), node=node, run__local=place, **settings))
    for launcher in launchers:
        told, _ = launcher.communicate(timeout=250)
        assert launcher.returncode == 0, told
    assert steps_saved("s3://runs/a") == [4, 6]
    own = [name for name in keys(bucket) if "part-1-of-2" in name]
    assert len(own) == 6 and not list((tmp_path / "disk-1").rglob("*.safetensors"))

    done = training.run("torchrun", Path("-"), run__output="s3://runs/a", run__local=tmp_path / "new")
    assert done.returncode == 0 and "Brought step 6" in done.stdout, done.stderr
    bring_run("s3://runs/a", str(tmp_path / "end"), None)
    assert training.losses(tmp_path / "end") == training.losses(straight)
    assert training.tensors(tmp_path / "end", 12) == training.tensors(straight, 12)
