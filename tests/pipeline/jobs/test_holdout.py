"""`shard --holdout` as a user runs it: two folders that together are the corpus, and that appear together."""

from __future__ import annotations

import json
import random
import shutil
import signal
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.jobs import publish_text as steps
from pipeline.shard.holdout import HELD_OUT, NOT_HELD_OUT
from schemas import storage
from schemas.errors import StorageError
from schemas.manifest import Manifest, read_manifest
from tests import forked
from tests.conftest import Command, made
from tests.pipeline.text_rows import text_rows

Row = tuple[int, str, tuple[str, ...]]
SHARE = ("--holdout", 0.25)


def rows_of(folder: object) -> list[Row]:
    """All documents of a text folder: id, source and sentences."""
    return [(row["document"], row["source"], tuple(row["sentences"])) for row in text_rows(folder)]


def both(output: object) -> tuple[str, str]:
    return str(output), f"{output}_heldout"


def bytes_of(output: object) -> list[tuple[str, str]]:
    """Names and hashes of the files of both folders. Manifests among them."""
    found = []
    for folder in both(output):
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            found.append((str(path.relative_to(Path(str(output)).parent)), storage.sha256(path.read_bytes())))
    return found


def sharded(command: Command, source: object, output: object, *flags: object) -> None:
    done = command("shard", "--input", source, "--output", output, *flags)
    assert done.returncode == 0, done.stderr


def jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def held_out(command: Command, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text folder in three shards, next to its held-out folder."""
    output = tmp_path_factory.mktemp("holdout") / "text"
    sharded(command, corpus, output, "--num_shards", 3, *SHARE)
    return output


def test_both_sides_together_are_the_corpus(held_out: Path, text: Path) -> None:
    training, held = (rows_of(folder) for folder in both(held_out))
    assert sorted([*training, *held]) == sorted(rows_of(text))
    assert len(training) > len(held) > 10
    # The order of the shuffle stays, and so does the number of shards.
    assert training == [row for row in rows_of(text) if row not in held]
    assert not list(held_out.parent.rglob("_*"))


def left_out(manifest: Manifest) -> Counter[tuple[str, str]]:
    return Counter({(entry.reason, entry.source): entry.count for entry in manifest.ledger})


def test_the_manifests_record_the_share_and_documents_add_up(held_out: Path, text: Path) -> None:
    training, held = (read_manifest(folder, "text") for folder in both(held_out))
    assert training.options == read_manifest(str(text), "text").options | {"holdout": 0.25}
    assert held.options == training.options | {"num_shards": 1, "side": "held_out"}
    assert held.inputs == training.inputs

    for manifest, reason, other in ((training, HELD_OUT, held), (held, NOT_HELD_OUT, training)):
        sources = other.statistics["documents_by_source"]
        assert left_out(manifest) == Counter({(reason, source): count for source, count in sources.items()})
        assert manifest.totals["documents"] + sum(left_out(manifest).values()) == 120


@pytest.mark.thorough
def test_another_runner_writes_the_same_bytes(command: Command, corpus: Path, held_out: Path, tmp_path: Path) -> None:
    runner = "--runner=BundleBasedDirectRunner"
    sharded(command, corpus, tmp_path / "text", "--num_shards", 3, *SHARE, runner)
    assert bytes_of(tmp_path / "text") == bytes_of(held_out)


def test_held_out_text_is_a_text_folder(command: Command, held_out: Path, vocab: Path, tmp_path: Path) -> None:
    folder = both(held_out)[1]
    assert command("verify", folder).returncode == 0
    assert "held_out" in command("inspect", folder).stdout
    flags = ("--objective", "nsp", "--max_length", 32)
    made(command, tmp_path / "pairs", "pairs", "--text", folder, "--vocab", vocab, *flags)
    assert read_manifest(str(tmp_path / "pairs"), "pairs").totals["rows"] > 10


def test_documents_stay_on_their_side_when_the_corpus_grows(
    command: Command, documents: list[str], held_out: Path, tmp_path: Path
) -> None:
    more = [f"Added later, number {number}. {text}" for number, text in enumerate(documents)]
    source = jsonl(tmp_path / "all.jsonl", [*more, *documents])
    sharded(command, source, tmp_path / "text", "--dedup", "exact", "--num_shards", 5, *SHARE)
    for before, after in zip(both(held_out), both(tmp_path / "text"), strict=True):
        assert {row[0] for row in rows_of(before)} < {row[0] for row in rows_of(after)}


def test_equal_texts_are_on_one_side_without_dedup(command: Command, documents: list[str], tmp_path: Path) -> None:
    """Other line breaks are other bytes in the input, and the same text."""
    source = jsonl(tmp_path / "twice.jsonl", [*documents, *(text.replace(" ", "\n", 1) for text in documents)])
    sharded(command, source, tmp_path / "text", "--sentence_splitter", "newline", *SHARE)
    training, held = ({" ".join(row[2]) for row in rows_of(folder)} for folder in both(tmp_path / "text"))
    assert held and training and not held & training
    assert sum(len(rows_of(folder)) for folder in both(tmp_path / "text")) == 2 * len(documents)


def shingles(sentences: tuple[str, ...]) -> set[tuple[str, ...]]:
    words = " ".join(sentences).split()
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}


def test_no_near_duplicates_on_two_sides(command: Command, tmp_path: Path) -> None:
    """Groups of up to five versions; a version differs from the one before by 2 of 200 words."""
    rng = random.Random(5)
    vocabulary = [f"word{number}" for number in range(3000)]
    texts = []
    for _ in range(80):
        words = rng.choices(vocabulary, k=200)
        for _ in range(rng.randint(1, 5)):
            words[rng.randrange(200)] = rng.choice(vocabulary)
            words[rng.randrange(200)] = rng.choice(vocabulary)
            texts.append(" ".join(words) + ".")

    source = jsonl(tmp_path / "versions.jsonl", texts)
    flags = ("--dedup", "minhash", "--num_shards", 4)
    sharded(command, source, tmp_path / "all", *flags)
    sharded(command, source, tmp_path / "text", *flags, "--holdout", 0.5)

    training, held = (rows_of(folder) for folder in both(tmp_path / "text"))
    assert sorted([*training, *held]) == sorted(rows_of(tmp_path / "all"))
    assert len(training) + len(held) < len(texts) and len(held) > 20
    for one in training:
        for other in held:
            ours, theirs = shingles(one[2]), shingles(other[2])
            assert len(ours & theirs) < 0.8 * len(ours | theirs)

    manifest = read_manifest(both(tmp_path / "text")[1], "text")
    assert manifest.totals["documents"] + sum(entry.count for entry in manifest.ledger) == len(texts)


# Kills and repetitions


@pytest.mark.parametrize(
    ("published", "store"),
    [
        pytest.param(0, False, marks=pytest.mark.thorough),
        (0, True),
        (1, False),
        pytest.param(1, True, marks=pytest.mark.thorough),
    ],
    ids=["before both-disk", "before both-store", "between the two-disk", "between the two-store"],
)
def test_a_command_that_fails_while_it_publishes_is_finished_by_the_next(
    command: Command, corpus: Path, held_out: Path, tmp_path: Path, monkeypatch, published: int, store: bool
) -> None:
    output = f"memory://failed/{uuid.uuid4().hex}/text" if store else str(tmp_path / "text")
    calls = []

    def fails(*arguments: object, **named: object) -> None:
        calls.append(arguments)
        if len(calls) > published:
            raise StorageError("No space left. Free disk space.")
        publish(*arguments, **named)  # type: ignore[arg-type]

    publish = steps.publish_output
    with monkeypatch.context() as patched:
        patched.setattr(steps, "publish_output", fails)
        words = ("shard", "--input", corpus, "--output", output, "--num_shards", 3, *SHARE)
        assert command(*words).returncode == 5
    finished = [storage.exists(storage.join(folder, "manifest.json")) for folder in both(output)]
    assert finished == [False, published == 1]

    assert command(*words).returncode == 0
    for there, here in zip(both(output), both(held_out), strict=True):
        assert read_manifest(there, "text") == read_manifest(here, "text")
        assert sorted(storage.names(there)) == sorted(path.name for path in Path(here).iterdir())


KILLED_COMMAND = """
import os, signal, sys
from itertools import count
from pipeline.cli import main
from pipeline.commit.staging import Staging

keep = Staging.keep
shards = count(1)

def keep_or_end(*arguments):
    if next(shards) > int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return keep(*arguments)

Staging.keep = keep_or_end
sys.exit(main(sys.argv[2:]))
"""


def run_until_killed(kept: int, words: Sequence[object]) -> None:
    """Run a command in one process, which kills itself once it has kept this many shards.

    Killing it from here would be a race: on a busy machine all shards may be written between two looks at the folder.
    """
    killed = forked.run(["python", "-m", "tests.run_code", KILLED_COMMAND, kept, *words])
    assert killed.returncode == -signal.SIGKILL


def test_a_killed_command_is_finished_by_the_next(command: Command, corpus: Path, tmp_path: Path) -> None:
    flags = ("--num_shards", 12, *SHARE)
    sharded(command, corpus, tmp_path / "whole" / "text", *flags)
    output = tmp_path / "killed" / "text"

    words = ["shard", "--input", corpus, "--output", output, *flags, "--direct_num_workers=1"]
    run_until_killed(5, words)
    assert len(list(output.rglob("*.arrow.json"))) == 5

    sharded(command, corpus, output, *flags)
    assert bytes_of(output) == bytes_of(tmp_path / "whole" / "text")


def test_the_same_command_again_has_nothing_to_do(command: Command, corpus: Path, held_out: Path) -> None:
    before = bytes_of(held_out)
    done = command("shard", "--input", corpus, "--output", held_out, "--num_shards", 3, *SHARE)
    assert done.returncode == 0
    assert done.stderr == f"clozeline: {held_out} is already finished by this command; nothing was done.\n"
    assert bytes_of(held_out) == before


def test_another_share_is_refused_and_overwrites_both(
    command: Command, corpus: Path, text: Path, tmp_path: Path
) -> None:
    output = shutil.copytree(text, tmp_path / "text")
    words = ("shard", "--input", corpus, "--output", output, "--num_shards", 3)
    refused = command(*words, *SHARE)
    assert refused.returncode == 2 and "made with --holdout none, and this command has 0.25" in refused.stderr
    assert not Path(both(output)[1]).exists()

    assert command(*words, *SHARE, "--overwrite").returncode == 0
    refused = command(*words, "--holdout", 0.5)
    assert refused.returncode == 2 and "--holdout 0.25" in refused.stderr
    assert command(*words, "--holdout", 0.5, "--overwrite").returncode == 0
    assert [len(rows_of(folder)) > 40 for folder in both(output)] == [True, True]

    # Without the flag, what was held out would be in the text as well.
    refused = command(*words, "--overwrite")
    assert refused.returncode == 2 and "holds documents that were held out of" in refused.stderr


def test_an_overwrite_that_fails_leaves_no_text_with_documents_that_are_held_out(
    command: Command, corpus: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = shutil.copytree(text, tmp_path / "text")
    publish = steps.publish_output

    def fails(*arguments: object, **named: object) -> None:
        publish(*arguments, **named)  # type: ignore[arg-type]
        raise StorageError("No space left. Free disk space.")

    monkeypatch.setattr(steps, "publish_output", fails)
    words = ("shard", "--input", corpus, "--output", output, "--num_shards", 3, *SHARE, "--overwrite")
    assert command(*words).returncode == 5
    assert not (output / "manifest.json").exists()
    assert Path(both(output)[1], "manifest.json").exists()


def test_a_lost_held_out_folder_is_noticed(command: Command, corpus: Path, held_out: Path, tmp_path: Path) -> None:
    output = shutil.copytree(held_out, tmp_path / "text")
    done = command("shard", "--input", corpus, "--output", output, "--num_shards", 3, *SHARE)
    assert done.returncode == 2 and "Move them back, or give --overwrite" in done.stderr


def test_a_folder_of_the_users_own_is_kept(command: Command, corpus: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(text, tmp_path / "text_heldout")
    done = command("shard", "--input", corpus, "--output", tmp_path / "text", *SHARE)
    assert done.returncode == 2 and "holds a finished result" in done.stderr
    assert not (tmp_path / "text").exists()


def test_a_share_of_nothing_is_bad_data(command: Command, corpus: Path, tmp_path: Path) -> None:
    done = command("shard", "--input", corpus, "--output", tmp_path / "text", "--holdout", 1e-9)
    assert done.returncode == 3 and "holds out none of 120 documents" in done.stderr
    assert not (tmp_path / "text" / "manifest.json").exists()
