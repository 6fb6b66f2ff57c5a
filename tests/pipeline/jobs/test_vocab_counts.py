"""Counts are an output of their own, and vocabularies that are learned from them are those of the text."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.jobs import learn_vocabulary as steps
from schemas import shards
from schemas.manifest import read_manifest

KINDS = {
    "uncased": ("--model", "wordpiece", "--size", 150),
    "cased": ("--model", "wordpiece", "--no_lowercase", "--size", 160),
    "case alone": ("--model", "wordpiece", "--lowercase", "--keep_accents", "--size", 160),
    "bytes": ("--model", "bytebpe", "--size", 330),
    "albert": ("--model", "unigram", "--size", 150),
    "xlnet": ("--model", "unigram", "--special_tokens", "xlnet", "--keep_accents", "--size", 160),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_from_counts_has_the_bytes_of_one_from_text(
    command, text: Path, counts: Path, tmp_path: Path, kind: str
) -> None:
    assert command("vocab", "--counts", counts, "--output", tmp_path / "a", *KINDS[kind]).returncode == 0
    assert command("vocab", "--text", text, "--output", tmp_path / "b", *KINDS[kind]).returncode == 0
    for name in ("tokenizer.json", "word_counts.arrow"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()

    a, b = (read_manifest(str(tmp_path / name), "vocab") for name in "ab")
    assert (a.fingerprint, a.totals, a.statistics) == (b.fingerprint, b.totals, b.statistics)
    recorded = [source.fingerprint for source in a.inputs]
    assert recorded == [read_manifest(str(text), "text").fingerprint, read_manifest(str(counts), "counts").fingerprint]


def test_a_folder_of_counts_is_verified_and_shown(command, counts: Path) -> None:
    assert command("verify", counts).returncode == 0
    shown = command("inspect", counts)
    assert shown.returncode == 0 and "--min_word_count 2  leaves out" in shown.stdout

    damaged = next(counts.glob("bytebpe-*"))
    original = damaged.read_bytes()
    damaged.write_bytes(original[:-9])
    assert command("verify", counts).returncode == 3
    damaged.write_bytes(original)


def test_finished_counts_are_used_again_and_those_of_another_text_are_refused(
    command, text: Path, counts: Path, corpus: Path, tmp_path: Path
) -> None:
    made = ("--counts", counts, "--output", tmp_path / "vocab", *KINDS["uncased"])
    again = command("vocab", "--text", text, *made)
    assert again.returncode == 0 and "holds the counts of this text already" in again.stderr

    other = tmp_path / "text"
    assert command("shard", "--input", corpus, "--output", other, "--seed", 7, "--num_shards", 2).returncode == 0
    assert command("vocab", "--text", other, *made, "--overwrite", "--dry_run=True").returncode == 0
    refused = command("vocab", "--text", other, *made)
    assert refused.returncode == 2 and "counts of another text" in refused.stderr

    manifest = tmp_path / "old" / "manifest.json"
    shutil.copytree(counts, manifest.parent)
    content = json.loads(manifest.read_text())
    content["options"]["version"] -= 1
    manifest.write_text(json.dumps(content))
    old = ("vocab", "--text", text, "--counts", manifest.parent, "--output", tmp_path / "new", *KINDS["uncased"])
    refused = command(*old)
    assert refused.returncode == 2 and "older version. Give --overwrite" in refused.stderr
    assert command(*old, "--overwrite", "--dry_run=True").returncode == 0


def test_a_folder_of_something_else_is_no_folder_of_counts(command, text: Path, tmp_path: Path) -> None:
    for source in (("--text", text, "--counts", text), ("--counts", text)):
        refused = command("vocab", *source, "--output", tmp_path / "vocab", *KINDS["uncased"])
        assert refused.returncode == 2 and "holds finished text" in refused.stderr, refused.stderr
        assert "Give another folder as --counts" in refused.stderr
    assert read_manifest(str(text), "text")


def test_rare_words_are_left_out_and_recorded(command, text: Path, counts: Path, tmp_path: Path) -> None:
    every_word = read_manifest(str(counts.parent / "first"), "vocab")
    data = (counts.parent / "first" / "word_counts.arrow").read_bytes()
    occurrences = shards.decode_table(data, "word_counts.arrow", shards.COUNTS_SCHEMA)["count"].to_pylist()
    needed = occurrences[len(occurrences) // 2] + 1
    for name, source in (("a", ("--counts", counts)), ("b", ("--text", text))):
        made = command("vocab", *source, "--output", tmp_path / name, *KINDS["uncased"], "--min_word_count", needed)
        assert made.returncode == 0, made.stderr

    a, b = (read_manifest(str(tmp_path / name), "vocab") for name in "ab")
    assert a.options["min_word_count"] == needed
    assert (a.fingerprint, a.ledger, a.totals["words"]) == (b.fingerprint, b.ledger, every_word.totals["words"])
    left_out = {entry.reason: entry.count for entry in a.ledger}
    listed = sum(count >= needed for count in occurrences)
    assert listed == next(shard.rows for shard in a.shards if shard.path == "word_counts.arrow")
    assert listed + left_out["different word too rare to learn from"] == every_word.totals["distinct_words"]
    assert 0 < left_out["occurrence of a word too rare to learn from"] < a.totals["words"]


def test_words_without_memory_for_them_are_one_line(
    command, counts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "available_memory", lambda: 1000)
    refused = command("vocab", "--counts", counts, "--output", tmp_path / "vocab", *KINDS["uncased"])
    assert refused.returncode == 3 and "different words" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_either_a_text_or_counts_are_needed(command, tmp_path: Path) -> None:
    refused = command("vocab", "--output", tmp_path / "vocab", *KINDS["uncased"])
    assert refused.returncode == 2 and "--text" in refused.stderr and "--counts" in refused.stderr
    refused = command("vocab", "--counts", tmp_path, "--output", tmp_path / "vocab", *KINDS["uncased"])
    assert refused.returncode == 3 and "holds no finished counts" in refused.stderr
