"""Pairs from, and to, folders whose manifests lie in parts: the same bytes, and a graph that does not grow."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from pipeline.commit.staging import Staging
from pipeline.jobs.pairs import PairsPlan, pair_shards
from pipeline.jobs.text_folder import TextFolder
from pipeline.options import PairsJob
from schemas.manifest import PART_ENTRIES, Manifest, read_manifest
from schemas.shards import shard_name
from tests.large_folders import many_shards, write_parts


@pytest.fixture
def text_in_parts(text: Path, tmp_path: Path) -> Path:
    """The text with its three shards listed in two parts."""
    folder = shutil.copytree(text, tmp_path / "text")
    manifest = read_manifest(str(folder), "text")
    parts = write_parts(folder, "shards", manifest.shards, size=2)
    (folder / "manifest.json").write_bytes(manifest.model_copy(update={"parts": parts}).to_json())
    return folder


def shard_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.arrow")}


def make(command, text: Path, vocab: Path, out: Path) -> Manifest:
    flags = ("--objective", "nsp", "--max_length", 32, "--dupe_factor", 2, "--direct_num_workers=1")
    done = command("pairs", "--text", text, "--vocab", vocab, "--output", out, *flags)
    assert done.returncode == 0, done.stderr
    assert command("verify", out).returncode == 0
    assert command("inspect", out).returncode == 0
    return read_manifest(str(out), "pairs")


def test_parts_of_the_text_change_nothing_of_the_pairs(command, text, text_in_parts, vocab, tmp_path) -> None:
    whole = make(command, text, vocab, tmp_path / "whole")
    in_parts = make(command, text_in_parts, vocab, tmp_path / "in_parts")
    assert shard_files(tmp_path / "whole") == shard_files(tmp_path / "in_parts")
    assert whole.model_copy(update={"inputs": []}) == in_parts.model_copy(update={"inputs": []})


def plan_of(text: Path, manifest: Manifest, passes: int = 1) -> PairsPlan:
    job = PairsJob(text=str(text), vocab="vocab", output="out", objective="nsp", dupe_factor=passes)
    return PairsPlan(job, b"", "wordpiece", TextFolder.of(str(text), manifest), Staging("out", "job"))


def test_each_text_shard_and_pass_is_one_pair_shard(text: Path, text_in_parts: Path) -> None:
    manifest = read_manifest(str(text), "text")
    for folder in (text, text_in_parts):
        plan = plan_of(folder, read_manifest(str(folder), "text"), passes=3)
        numbered = dict(item for part in range(plan.text.num_parts) for item in pair_shards(part, plan))
        targets = [numbered[number] for number in range(9)]
        assert [target.name for target in targets] == [shard_name("pairs", number, 9) for number in range(9)]
        assert [target.text_shard for target in targets] == manifest.shards * 3
        assert [target.pass_number for target in targets] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_what_the_graph_holds_does_not_grow_with_the_text(text: Path, tmp_path: Path) -> None:
    few = read_manifest(str(text), "text")
    parts = write_parts(tmp_path, "shards", many_shards("text", 2 * PART_ENTRIES))
    many = few.model_copy(update={"shards": [], "parts": parts})
    assert len(pickle.dumps(plan_of(text, many))) <= len(pickle.dumps(plan_of(text, few))) + 10
