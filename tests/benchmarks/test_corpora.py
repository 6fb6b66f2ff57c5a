"""The input that corpora.py makes is read whole by both sides' formats, and what is measured is not measured again."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from schemas.manifest import read_manifest

pytestmark = pytest.mark.thorough
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TEXT = "The wall is long, and nobody knows who has built it. It was found in the last century by a farmer."
PAGE = "  <page>\n    <title>Wall</title>\n    <ns>0</ns>\n    <id>1</id>\n    <revision>\n      <id>2</id>\n"
PAGE += f'      <text xml:space="preserve">{TEXT}</text>\n    </revision>\n  </page>\n'


@pytest.fixture
def corpora(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("corpora")


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    paths = {"documents": tmp_path / "documents.jsonl", "dump": tmp_path / "dump.xml", "pages": tmp_path / "pages"}
    paths["documents"].write_text(json.dumps({"text": TEXT}) + "\n" + json.dumps({"text": "x" * 130_000}) + "\n")
    paths["dump"].write_text(f"<mediawiki>\n{PAGE}</mediawiki>\n")
    paths["pages"].mkdir()
    (paths["pages"] / "wall.html").write_text(f"<html><body class=a><article><p>{TEXT * 3}</p></article></body></html>")
    return paths


@pytest.mark.parametrize("material", ["jsonl", "csv", "parquet", "warc", "mediawiki", "mediawiki_bz2"])
def test_shard_reads_every_document_of_the_input(
    corpora: ModuleType, sources: dict[str, Path], material: str, tmp_path: Path, command: Callable[..., object]
) -> None:
    options = argparse.Namespace(**sources, output=tmp_path, megabytes=0.02)
    folder = corpora.made(corpora.Case(material, size=1), options)
    size = json.loads(folder.with_suffix(".json").read_text())["megabytes"]
    assert 0.02 <= size < 0.021

    command("shard", "--input", f"{folder}/*", "--output", tmp_path / "text")
    _, read, _ = corpora.MATERIAL[material]
    copies = list(corpora.repeated(list(read(sources[corpora.MATERIAL[material][0]])), 0.02e6))
    assert read_manifest(str(tmp_path / "text"), "text").totals["documents"] == len(copies) > 30


def test_what_is_measured_is_not_measured_again(sources: dict[str, Path], tmp_path: Path) -> None:
    results = tmp_path / "out" / "results.jsonl"
    flags = ["--documents", sources["documents"], "--dump", sources["dump"], "--output", tmp_path / "out"]
    flags += ["--megabytes", 0.01, "--rounds", 1, "--workers", 1, "--only", "jsonl", "warc"]
    line = [sys.executable, str(BENCHMARKS / "corpora.py"), *map(str, flags)]

    first = subprocess.run(line, check=True, capture_output=True, text=True)
    lines = results.read_text()
    measured = [json.loads(line) for line in lines.splitlines()]
    assert [(line["case"], line["side"]) for line in measured] == [("jsonl", "ours"), ("jsonl", "rival")]
    assert all(line["cpu_seconds"] > 0.2 and line["megabytes_written"] > 0 for line in measured), first.stderr
    assert "| jsonl | 1 | " in first.stdout and "nan" not in first.stdout

    # The package of the other side is missing.
    line[-2:] = ["jsonl", "mediawiki"]
    again = subprocess.run(line, check=True, capture_output=True, text=True)
    assert "No module named 'wikiextractor'" in again.stderr and again.stderr.count("failed: ") == 1
    assert results.read_text().startswith(lines)
    assert [json.loads(line)["case"] for line in results.read_text().splitlines()] == ["jsonl", "jsonl", "mediawiki"]
