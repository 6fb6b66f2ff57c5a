"""Beam's counters say what the manifest says, on local runners and on an engine."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from apache_beam.metrics import MetricsFilter

from pipeline.beam import runner
from pipeline.beam.steps import NAMESPACE
from pipeline.cli import main
from schemas.manifest import FolderKind, Manifest, read_manifest


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Beam's result of each job that is run."""
    kept: list[Any] = []
    run_attempts = runner.run_attempts

    def keeping(*arguments: Any) -> Any:
        kept.append(run_attempts(*arguments))
        return kept[-1]

    monkeypatch.setattr(runner, "run_attempts", keeping)
    return kept


def dropped(manifest: Manifest) -> dict[str, int]:
    """The ledger, summed over sources, by the names of its counters."""
    counts: Counter[str] = Counter()
    for entry in manifest.ledger:
        counts[f"dropped/{entry.reason}"] += entry.count
    return dict(counts)


def read_counters(result: Any) -> dict[str, int]:
    """Return the counters of a job by name, summed over its steps. result: Beam's."""
    counters: Counter[str] = Counter()
    for counter in result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]:
        counters[counter.key.metric.name] += counter.result or 0
    return dict(counters)


def counted(result: Any) -> dict[str, int]:
    return {name: value for name, value in read_counters(result).items() if not name.startswith("pieces/")}


def check_folder(result: Any, folder: Path, kind: FolderKind) -> None:
    """The counters of `shard` or `pairs` are what its manifest says."""
    manifest = read_manifest(str(folder), kind)
    size = sum(shard.bytes for shard in manifest.shards)
    assert counted(result) == manifest.totals | {"bytes": size} | dropped(manifest)


def check_counts(result: Any, folder: Path, text: Path) -> None:
    read = read_manifest(str(text), "text")
    expected = {"documents": read.totals["documents"], "text_file_bytes": sum(shard.bytes for shard in read.shards)}
    assert counted(result) == read_manifest(str(folder), "counts").totals | expected
    assert read_counters(result)["pieces/lot"] == len(read.shards)


def check_vocab(result: Any, folder: Path) -> None:
    manifest = read_manifest(str(folder), "vocab")
    assert counted(result) == manifest.totals | dropped(manifest)


@pytest.fixture(params=["FnApiRunner", pytest.param("2 processes", marks=pytest.mark.thorough), "Prism"])
def flags(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "Prism":
        return ["--runner=prism", f"--prism_location={request.getfixturevalue('prism')}"]
    return ["--direct_num_workers=2"] if request.param == "2 processes" else []


def test_counters_equal_the_ledger(results, documents, vocab: Path, tmp_path: Path, flags: list[str]) -> None:
    corpus = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"text": text, "source": f"s{i % 3}"}) for i, text in enumerate([*documents, *documents[:9]])]
    corpus.write_text("\n".join([*lines, "{", json.dumps({"text": ""})]) + "\n")
    text, pairs = tmp_path / "text", tmp_path / "pairs"

    shard = ["shard", "--input", str(corpus), "--output", str(text), "--num_shards=4", "--dedup=exact"]
    assert main([*shard, "--max_bad_ratio=0.1", *flags]) == 0
    check_folder(results[-1], text, "text")

    repeats = tmp_path / "repeats"
    shard = ["shard", "--input", str(corpus), "--output", str(repeats), "--num_shards=4", "--drop_repeats=1"]
    assert main([*shard, "--max_bad_ratio=0.1", *flags]) == 0
    assert counted(results[-1])["dropped/only repeated sentences"] >= 9
    check_folder(results[-1], repeats, "text")

    made = ["--output", str(tmp_path / "vocab"), "--model=wordpiece", "--size=150", "--min_word_count=2"]
    assert main(["vocab", "--text", str(text), "--counts", str(tmp_path / "counts"), *made, *flags]) == 0
    check_counts(results[-2], tmp_path / "counts", text)
    check_vocab(results[-1], tmp_path / "vocab")

    make_pairs = ["pairs", "--text", str(text), "--vocab", str(vocab), "--output", str(pairs), "--objective=nsp"]
    assert main([*make_pairs, *flags]) == 0
    check_folder(results[-1], pairs, "pairs")
    assert read_counters(results[-1])["pieces/pairs"] == 4
