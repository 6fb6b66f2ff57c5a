"""shard --decontaminate and --mask_private: what is left out or replaced, and what says so."""

from __future__ import annotations

import json
from pathlib import Path

from schemas.manifest import read_manifest
from tests.pipeline.shard.test_contamination import QUESTION, SHORT
from tests.pipeline.text_rows import sentences_of


def test_documents_with_text_of_evaluation_sets_are_left_out_and_listed(command, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text(json.dumps({"question": QUESTION, "short": SHORT}) + "\n")
    (tmp_path / "test.tsv").write_text(f"1\t{QUESTION}\n")
    leaked = json.dumps({"text": f"Copied from somewhere: {QUESTION.upper()} And more.", "source": "forum"})
    (tmp_path / "in.jsonl").write_text(corpus.read_text() + leaked + "\n")

    words = ("shard", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "text", "--num_shards", 2)
    sets = ("--decontaminate", tmp_path / "dev.jsonl", tmp_path / "test.tsv")
    done = command(*words, *sets)
    assert done.returncode == 0, done.stderr
    assert "left out: 1 x 13 words as in dev.jsonl (forum)" in done.stdout
    assert "have fewer than 13 words" in done.stderr

    manifest = read_manifest(str(tmp_path / "text"), "text")
    first = manifest.ledger[0]
    assert (first.reason, first.source, first.count) == ("13 words as in dev.jsonl", "forum", 1)
    (listed,) = (tmp_path / "text" / "rejected").iterdir()
    (entry,) = map(json.loads, listed.read_text().splitlines())
    assert (entry["source"], QUESTION.upper() in entry["shown"]) == ("forum", True)
    assert not any("COUNTRY" in sentence for sentence in sentences_of(tmp_path / "text"))

    # A set with other content is another job, whatever its name.
    (tmp_path / "dev.jsonl").write_text(json.dumps({"question": f"{QUESTION} Or the widest?"}) + "\n")
    again = command(*words, *sets)
    assert (again.returncode, again.stderr.splitlines()[-1].count("evaluation_sets")) == (2, 1)


def test_private_data_is_masked_and_counted(command, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("Ask ada@lovelace.org, or call +44 20 7946 0958. The server is 8.8.8.8.\n")
    words = ("shard", "--input", tmp_path / "in.txt", "--output", tmp_path / "text", "--mask_private")
    done = command(*words)
    assert done.returncode == 0, done.stderr
    masked = ["Ask email@example.com, or call 555-0100.", "The server is 192.0.2.1."]
    assert sentences_of(tmp_path / "text") == masked
    assert "IP addresses masked 1, e-mail addresses masked 1, phone numbers masked 1" in done.stdout
