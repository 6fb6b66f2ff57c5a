"""A finished folder is left alone: with success for the command that made it, with an error for any other one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import Command

SIZE = ("--model", "wordpiece", "--size", 160)


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize("more", [(), ("--dry_run",), ("--shuffle", "merged"), ("--direct_num_workers", 1)])
def test_the_command_that_made_the_text_succeeds_again(command, corpus: Path, text: Path, more: tuple) -> None:
    before = state(text)
    done = command("shard", "--input", corpus, "--output", text, "--num_shards", 3, *more)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"clozeline: {text} is already finished by this command; nothing was done.\n"
    assert "120 documents" in done.stdout
    assert state(text) == before


def test_the_commands_that_made_vocabularies_and_pairs_succeed_again(
    command, text: Path, vocab: Path, pairs: Path, tmp_path: Path
) -> None:
    counted = ("--text", text, "--counts", tmp_path / "counts", "--output", tmp_path / "vocab", *SIZE)
    assert command("vocab", *counted).returncode == 0
    moved = shutil.copytree(text, tmp_path / "text")  # the same content elsewhere is the same input

    again = [
        ("vocab", "--text", text, "--output", vocab, *SIZE),
        ("vocab", *counted),
        ("vocab", *counted[2:]),
        ("pairs", "--text", moved, "--vocab", vocab, "--output", pairs, "--objective", "nsp", "--max_length", 32),
    ]
    for words in again:
        done = command(*words)
        assert done.returncode == 0 and "is already finished by this command" in done.stderr, done.stderr


@pytest.mark.parametrize("root", ["/", "//", "file:///", "/tmp/.."])
def test_the_root_folder_is_no_output(command, corpus: Path, text: Path, tmp_path: Path, root: str) -> None:
    """Not even for a vocabulary, whose words would be counted first."""
    counted = ("--text", text, "--counts", tmp_path / "counts")
    for words in (("shard", "--input", corpus), ("vocab", *counted, *SIZE)):
        done = command(*words, "--output", root, "--dry_run")
        assert done.returncode == 2 and "is the root folder. Give a folder inside it." in done.stderr, done.stderr


def test_a_folder_of_another_format_version_is_replaced_only_with_overwrite(
    command, corpus: Path, text: Path, tmp_path: Path
) -> None:
    old = shutil.copytree(text, tmp_path / "text")
    manifest = json.loads((old / "manifest.json").read_text())
    (old / "manifest.json").write_text(json.dumps(manifest | {"format_version": 1}))

    shard = ("shard", "--input", corpus, "--output", old, "--num_shards", 3)
    refused = command(*shard)
    assert refused.returncode == 3 and "--overwrite" in refused.stderr
    assert command(*shard, "--overwrite").returncode == 0
    assert (old / "manifest.json").read_bytes() == (text / "manifest.json").read_bytes()


def test_a_number_of_shards_that_was_not_given_is_the_same_again(command, documents: list[str], tmp_path: Path) -> None:
    source = tmp_path / "twice.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*documents, *documents]))
    for dedup in ("none", "exact"):
        shard = ("shard", "--input", source, "--output", tmp_path / dedup, "--dedup", dedup)
        assert command(*shard).returncode == 0
        assert command(*shard).returncode == 0
        refused = command(*shard, "--num_shards", 2)
        assert refused.returncode == 2 and "made with --num_shards 1, and this command has 2" in refused.stderr
        assert command(*shard, "--num_shards", 3, "--overwrite").returncode == 0
        refused = command(*shard)
        assert refused.returncode == 2 and "made with --num_shards 3, and this command has none" in refused.stderr


DIFFERENT = {
    "seed": (("--seed", 1), "made with --seed 0, and this command has 1"),
    "option": (("--max_bad_ratio", 0.5), "made with --max_bad_ratio 0.01, and this command has 0.5"),
    "input": (("--input", "{other}"), "made from other inputs"),
}


@pytest.mark.parametrize(("more", "difference"), DIFFERENT.values(), ids=DIFFERENT)
def test_a_command_that_differs_is_refused_with_the_difference(
    command: Command, corpus: Path, text: Path, tmp_path: Path, more: tuple, difference: str
) -> None:
    """It changes nothing, also of unfinished work, which another job may still need."""
    other = shutil.copy(corpus, tmp_path / "other.jsonl")
    output = shutil.copytree(text, tmp_path / "text")
    (output / "_unfinished-0123").mkdir()
    (output / "_unfinished-0123" / "piece").touch()
    before = state(output)
    flags = [str(word).format(other=other) for word in more]
    done = command("shard", "--input", corpus, "--output", output, "--num_shards", 3, *flags)
    assert done.returncode == 2 and difference in done.stderr, done.stderr
    assert "holds a finished result" in done.stderr and "--overwrite" in done.stderr
    assert state(output) == before


def test_an_input_file_that_was_changed_later_is_no_success(command: Command, corpus: Path, tmp_path: Path) -> None:
    source = shutil.copy(corpus, tmp_path / "a.jsonl")
    shard = ("shard", "--input", source, "--output", tmp_path / "out")
    assert command(*shard).returncode == 0
    later = (tmp_path / "out" / "manifest.json").stat().st_mtime_ns + 1_000_000
    os.utime(source, ns=(later, later))
    done = command(*shard)
    assert done.returncode == 2 and f"{source} was changed after it was made" in done.stderr, done.stderr


def test_files_that_are_not_of_a_job_are_named_before_it_writes_among_them(
    command: Command, corpus: Path, text: Path, tmp_path: Path
) -> None:
    shard = ("shard", "--input", corpus, "--num_shards", 3)
    vocab = ("vocab", "--text", text, "--model", "wordpiece", "--size", 160)
    for words in (shard, vocab):
        output = tmp_path / words[0]
        output.mkdir()
        for name in ("notes.jsonl", "zoo.txt", ".hidden", "job.log"):
            (output / name).touch()
        done = command(*words, "--output", output)
        assert done.returncode == 0 and done.stderr.startswith(
            f"clozeline: warning: {output} holds other files, the first: notes.jsonl. They stay, and the result is "
            "written next to them. Give a new --output to keep them separate.\n"
        )
        again = command(*words, "--output", output, "--overwrite")
        assert again.returncode == 0 and "holds other files" not in again.stderr
        assert (output / "notes.jsonl").exists()

    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/.gitkeep").touch()
    assert "holds other files" not in command(*shard, "--output", tmp_path / "empty").stderr


def test_files_of_others_are_not_replaced(
    command: Command, corpus: Path, text: Path, vocab: Path, tmp_path: Path
) -> None:
    shard = ("shard", "--input", corpus, "--num_shards", 3)
    learn = ("vocab", "--text", text, *SIZE)
    inside = tmp_path / "pairs" / "vocabulary"
    shutil.copytree(vocab, inside)
    pairs = ("pairs", "--text", text, "--vocab", inside, "--objective", "sop", "--max_length", 32)
    for words, name in ((shard, "rejected/mine"), (shard, "card.html"), (learn, "merges.txt"), (pairs, "")):
        output = tmp_path / words[0]
        if name:
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            (output / name).write_text("mine")
        before = state(output)
        done = command(*words, "--output", output)
        first = name.partition("/")[0] or "vocabulary"
        assert done.returncode == 2 and f"{output} holds {first}, which the result would replace" in done.stderr
        assert state(output) == before
        shutil.rmtree(output)
