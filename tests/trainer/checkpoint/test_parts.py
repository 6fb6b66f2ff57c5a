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
from schemas.errors import CheckpointError, StorageError
from trainer.checkpoint.layout import checkpoint_path, location, steps_saved
from trainer.checkpoint.left_parts import choose_left, left_in
from trainer.checkpoint.manifest import MANIFEST, describe_file, fault_of_checkpoint
from trainer.checkpoint.offset_writer import WrittenPiece
from trainer.checkpoint.part_writes import prune_parts, publish_parts, read_back_parts
from trainer.checkpoint.parts import gather, manifest_in_parts, manifest_of, saved_parts
from trainer.checkpoint.remote_parts import RemotePartOfRun
from trainer.checkpoint.remote_sync import RemoteRun, bring_run
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
    for number, folder in enumerate(folders):
        publish_parts(folder / "partial", folder / f"parts/step-{step:08d}.ab", manifest, number)
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


def test_any_node_can_go_on_with_the_metrics(tmp_path: Path) -> None:
    """What node 1 brought is enough for it to go on alone, and the URL does not lose what rank 0 measured."""
    url = f"memory://{tmp_path}"
    folders = [tmp_path / "0", tmp_path / "1"]
    save(folders, [0, 1], [0, 1])
    (folders[0] / "metrics.jsonl").write_text("measured")
    upload(folders, url)

    RemotePartOfRun(url, str(folders[1]), 2, 60.0, 1).bring(4)
    alone = RemoteRun(url, str(folders[1]), 2)
    alone.fetch()
    alone.close()
    assert storage.read(f"{url}/metrics.jsonl") == b"measured"


def test_what_nodes_upload_is_not_pruned_however_slow_they_are(tmp_path: Path) -> None:
    names = [f"step-{step:08d}.ab" for step in (1, 2, 3, 4, 5)]
    for name in names:
        (tmp_path / "parts" / name).mkdir(parents=True)
    prune_parts(str(tmp_path), 2, spared={names[0]})
    assert [path.name for path in saved_parts(str(tmp_path))] == [names[0], *names[3:]]


def test_a_checkpoint_that_a_node_has_left_out_does_not_hold_up_later_ones(tmp_path: Path) -> None:
    url = f"memory://{tmp_path}"
    folders = [tmp_path / "0", tmp_path / "1"]
    for step in (4, 8):
        save(folders, [0, 1], [0, 1], step)
    prune_parts(str(folders[1]), 1, spared=set())
    upload(folders, url)
    assert steps_saved(url) == [8] and not storage.names(location(url, 4))
    assert saved_parts(str(folders[0])) == []


def test_parts_that_are_not_whole_at_the_url_are_an_error_in_the_end(tmp_path: Path) -> None:
    save([tmp_path / "0", tmp_path / "1"], [0, 1], [0, 1])
    remote = RemotePartOfRun(f"memory://{tmp_path}", str(tmp_path / "0"), 2, 60.0, 0)
    with pytest.raises(StorageError, match="does not hold all parts of step-00000004"):
        remote.check_published()


def test_a_manifest_of_one_node_is_no_manifest_in_parts() -> None:
    assert manifest_in_parts(b'{"format_version": 1, "files": []}', "here") is None


def test_the_manifest_is_as_docs_formats_describes_it(tmp_path: Path) -> None:
    """These bytes are a contract: a later version still reads them."""
    save([tmp_path / "0", tmp_path / "1"], [0, 1], [0, 1, 1, 0])
    text = (tmp_path / "0/parts/step-00000004.ab" / MANIFEST).read_bytes()
    assert text == (tmp_path / "1/parts/step-00000004.ab" / MANIFEST).read_bytes()
    assert text == (Path(__file__).parent / "parts_manifest.json").read_bytes()
    assert manifest_in_parts(text, "here") is not None


def test_a_damaged_checkpoint_does_not_displace_older_and_later_ones(tmp_path: Path) -> None:
    """Step 8 has its full size and other contents, so the nodes resume from 4, and are stopped after 6."""
    url = f"memory://{tmp_path}"
    folders = [tmp_path / "0", tmp_path / "1"]
    for step in (4, 8):
        save(folders, [0, 1], [0, 1], step)
        upload(folders, url)
    storage.publish(storage.join(location(url, 8), "model.safetensors.part-1-of-2.ab"), bytes(10))

    first = RemotePartOfRun(url, str(folders[0]), 1, 60.0, 0)
    first.fetch()
    assert first.choose_step() == 4
    save(folders, [0, 1], [0, 1], 6)
    second = RemotePartOfRun(url, str(folders[1]), 1, 60.0, 1)
    second.fetch()
    second.close()
    first.close()
    bring_run(url, str(tmp_path / "there"), None)
    assert steps_saved(str(tmp_path / "there")) == [6]


def test_what_a_node_kept_of_a_later_step_does_not_displace_what_it_brings(tmp_path: Path) -> None:
    """The node has trained alone and could not copy its checkpoints; another node has begun the run again."""
    url = f"memory://{tmp_path}"
    folders = [tmp_path / "0", tmp_path / "1"]
    save(folders, [0, 1], [0, 1], 8)
    upload(folders, url)
    bring_run(url, str(folders[1]), 8)
    checkpoint_path(str(folders[1]), 8).rename(checkpoint_path(str(folders[1]), 12))
    storage.remove(location(url, 8))
    save(folders, [0, 1], [0, 1], 4)
    upload(folders, url)

    RemotePartOfRun(url, str(folders[1]), 1, 60.0, 1).bring(4)
    assert 4 in steps_saved(str(folders[1]))


@pytest.mark.parametrize("node", [0, 1])
def test_what_changed_on_a_nodes_disk_is_not_published(tmp_path: Path, node: int) -> None:
    """Parts of full size look complete at the URL. Later ones are published, and the older stays till then."""
    url = f"memory://{tmp_path}"
    folders = [tmp_path / "0", tmp_path / "1"]
    for step in (4, 8):
        save(folders, [0, 1], [0, 1], step)
        if step == 8:
            file = folders[node] / "parts/step-00000008.ab/model.safetensors"
            file.write_bytes(file.read_bytes()[::-1])
        upload(folders, url)

    assert steps_saved(url) == [4]
    with pytest.raises(StorageError, match="does not hold all parts of step-00000008"):
        RemotePartOfRun(url, str(folders[0]), 1, 60.0, 0).check_published()
    save(folders, [0, 1], [0, 1], 12)
    upload(folders, url)
    assert steps_saved(url) == [4, 12] and saved_parts(str(folders[0])) == []


def left(folders: list[Path], url: str) -> list[str]:
    """Which folders of parts the first node takes up again, as nodes that restart agree on it."""
    remotes = [RemotePartOfRun(url, str(folder), 2, 60.0, number) for number, folder in enumerate(folders)]
    return choose_left(remotes[0], {number: left_in(remote) for number, remote in enumerate(remotes)})


def test_parts_that_are_left_on_disks_are_taken_up_if_all_of_them_are_there(tmp_path: Path) -> None:
    url = f"memory://{tmp_path}"
    folders = [tmp_path / "0", tmp_path / "1"]
    save(folders, [0, 1], [0, 1], 4)
    save(folders, [0, 1], [0, 1], 8)
    assert left(folders, url) == ["step-00000004.ab", "step-00000008.ab"]
    assert left(folders[::-1], url) == [], "nodes that have changed places"
    assert left(folders[:1], url) == []

    second = RemotePartOfRun(url, str(folders[1]), 2, 60.0, 1)
    second.fetch()
    second.close()
    assert left(folders[:1], url) == ["step-00000004.ab", "step-00000008.ab"], "what is at the URL is not needed here"
    storage.remove(storage.join(location(url, 4), "model.safetensors.part-1-of-2.ab"))
    assert left(folders[:1], url) == ["step-00000008.ab"]
    assert not storage.names(location(url, 4)) and storage.names(location(url, 8))

    save([tmp_path / "3", tmp_path / "4"], [0, 1], [0, 1], 12)
    upload([tmp_path / "3", tmp_path / "4"], url)
    assert left(folders[:1], url) == [], "a later one is there"


def test_a_full_disk_of_a_node_is_not_taken_for_a_store_out_of_reach(tmp_path: Path) -> None:
    save([tmp_path / "0", tmp_path / "1"], [0, 1], [0, 1])
    folder = tmp_path / "1/parts/step-00000004.ab"
    manifest = manifest_in_parts((folder / MANIFEST).read_bytes(), str(folder))
    assert manifest is not None
    file = manifest.assembled[0]
    with pytest.raises(StorageError, match="/dev/full could not be written: No space left on device"):
        gather(folder / file.path, file.parts[1], Path("/dev/full"))
    with pytest.raises(FileNotFoundError):
        gather(tmp_path / "removed" / file.path, file.parts[1], tmp_path / "removed/part")
