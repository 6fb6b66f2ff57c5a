"""`shard --drop_repeats` as a user runs it: what stays, what is said about it, and that nothing else decides."""

from __future__ import annotations

import json
import random
import uuid
from pathlib import Path

import pytest

from pipeline.shard.repeats import ONLY_REPEATED, REMOVED
from schemas import storage
from schemas.manifest import read_manifest
from tests.conftest import Command, sentence
from tests.pipeline.jobs.test_holdout import both, bytes_of, left_out, rows_of, run_until_killed, sharded
from tests.pipeline.shard.test_repeats import without_repeats

SHARDS = ("--num_shards", 3)
FOOTER = "Share this page with your friends. Sign up for our letter. All rights are reserved."


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 pages: most end with the same three sentences, some are near-copies of another, some have only a footer."""
    rng = random.Random(3)
    texts = []
    for number in range(300):
        words = [sentence(rng) for _ in range(rng.randint(2, 20))]
        texts.append(" ".join(words) + f" This page has the number {number}. " + FOOTER * (number % 5 > 0))
        if number % 20 == 0:
            texts.append(texts[-1].replace("The", "A", 1))
    texts += [FOOTER] * 4 + [f"{FOOTER} {FOOTER}"] * 3 + ["Sign up for our letter."] * 3

    path = tmp_path_factory.mktemp("pages") / "pages.jsonl"
    path.write_text("".join(json.dumps({"text": text, "source": f"s{i % 2}"}) + "\n" for i, text in enumerate(texts)))
    return path


@pytest.fixture(scope="module")
def whole(command: Command, pages: Path) -> Path:
    """All documents, held-out ones next to them."""
    sharded(command, pages, pages.parent / "text", *SHARDS, "--holdout", 0.2)
    return pages.parent / "text"


@pytest.fixture(scope="module")
def reduced(command: Command, pages: Path) -> Path:
    """The same with --drop_repeats 3."""
    sharded(command, pages, pages.parent / "reduced" / "text", *SHARDS, "--holdout", 0.2, "--drop_repeats", 3)
    return pages.parent / "reduced" / "text"


def test_the_text_is_what_a_plain_loop_leaves(command: Command, whole: Path, reduced: Path) -> None:
    before = [(document, source, list(sentences)) for document, source, sentences in rows_of(whole)]
    left, dropped, removed = without_repeats(before, 3)
    assert rows_of(reduced) == [(document, source, tuple(stays)) for document, source, stays in left]
    assert removed > 500 and dropped

    manifest = read_manifest(str(reduced), "text")
    found = {source: count for (reason, source), count in left_out(manifest).items() if reason == ONLY_REPEATED}
    assert found == dropped
    assert manifest.statistics["cleaning"] == {REMOVED: removed}
    assert manifest.totals["documents"] == len(left) == sum(manifest.statistics["documents_by_source"].values())
    assert manifest.totals["sentences"] == sum(len(row[2]) for row in left)
    assert manifest.options == read_manifest(str(whole), "text").options | {"drop_repeats": 3}

    shown = command("inspect", reduced).stdout
    assert f"{REMOVED} {removed:,}" in shown and f"{dropped.total()} x {ONLY_REPEATED}" in shown
    assert command("verify", reduced).returncode == 0


def test_held_out_documents_are_as_without_the_flag(whole: Path, reduced: Path) -> None:
    assert rows_of(both(reduced)[1]) == rows_of(both(whole)[1])
    assert REMOVED not in read_manifest(both(reduced)[1], "text").statistics["cleaning"]
    for folder, other in (both(reduced), both(reduced)[::-1]):
        manifest, listed = (read_manifest(one, "text") for one in (folder, other))
        documents = manifest.totals["documents"] + sum(entry.count for entry in manifest.ledger)
        assert documents == 325 and listed.options["drop_repeats"] == 3


def test_a_folder_on_an_object_store_has_the_same_shards(command: Command, pages: Path, reduced: Path) -> None:
    output = f"memory://repeats/{uuid.uuid4().hex}/text"
    sharded(command, pages, output, *SHARDS, "--holdout", 0.2, "--drop_repeats", 3)
    for there, here in zip(both(output), both(reduced), strict=True):
        assert read_manifest(there, "text").shards == read_manifest(here, "text").shards
        assert sorted(storage.names(there)) == sorted(path.name for path in Path(here).iterdir())


def test_near_duplicates_are_dropped_before(command: Command, pages: Path, tmp_path: Path) -> None:
    flags = (*SHARDS, "--dedup", "minhash", "--holdout", 0.2)
    sharded(command, pages, tmp_path / "all" / "text", *flags)
    sharded(command, pages, tmp_path / "text", *flags, "--drop_repeats", 3)

    before = [(document, source, list(stays)) for document, source, stays in rows_of(tmp_path / "all" / "text")]
    left, _, removed = without_repeats(before, 3)
    assert rows_of(tmp_path / "text") == [(document, source, tuple(stays)) for document, source, stays in left]
    assert rows_of(both(tmp_path / "text")[1]) == rows_of(both(tmp_path / "all" / "text")[1]) and removed


def test_a_killed_command_is_finished_by_the_next_without_the_first_half(
    command: Command, pages: Path, reduced: Path, tmp_path: Path
) -> None:
    output = tmp_path / "text"
    flags = (*SHARDS, "--holdout", 0.2, "--drop_repeats", 3)
    words = ["shard", "--input", pages, "--output", output, *flags, "--direct_num_workers=1"]
    run_until_killed(1, words)
    assert len(list(output.rglob("draft-*.json"))) == 3 and len(list(output.rglob("*.arrow.json"))) == 1

    for run in output.rglob("run-*.run"):  # what drafts were made from
        run.unlink()
    sharded(command, pages, output, *flags)
    assert bytes_of(output) == bytes_of(reduced)
    assert not list(output.glob("_*"))
