"""Domains: the documents of a crawl by the host of their URL, in the manifest, on both cards and in `inspect`."""

from __future__ import annotations

import json
import random
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.readers.record import host_of
from tests.conftest import Command, made, rows
from tests.pipeline.beam_flags import PROCESSES, THREADS
from tests.pipeline.readers.web_files import members, paragraphs, wet
from tests.pipeline.test_card import Tags

FILES = 5
URLS = ["http://{}/", "https://www.{}:8080/a?b=c", "HTTPS://user:word@WWW.{}./", "<ftp://{}>"]
"""Ways in which a page of the same host is named."""


def crawl() -> tuple[list[bytes], Counter[str]]:
    """300 pages of 60 hosts, in FILES WET files, and the number of each host's pages that are kept.

    Some hosts have equal numbers, some pages are copies, some have no text and some no host.
    """
    draw = random.Random(0)
    names = [f"h{number:02d}.example.{'org' if number % 2 else 'com'}" for number in range(60)]
    files: list[list[bytes]] = [[] for _ in range(FILES)]
    counts: Counter[str] = Counter()
    for number in range(300):
        name = names[number] if number < 60 else draw.choice(names[: 1 + draw.randrange(60)])
        has_text = number < 60 or number % 9 > 0
        has_host = number % 50 < 49
        url = draw.choice(URLS).format(name) if has_host else f"urn:{name}"
        text = "\n".join(paragraphs(number % 250, 2)) if has_text else ""
        files[draw.randrange(FILES)].append(wet(text, url))
        if has_text and has_host:
            counts[name] += 1
    return [members(*records) for records in files], counts


def expected() -> dict[str, Any]:
    _, counts = crawl()
    in_order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    assert len(in_order) > 55 and in_order[23][1] == in_order[24][1]  # the last one is chosen by its name
    return {"hosts": len(counts), "documents": counts.total(), "largest": [list(item) for item in in_order[:24]]}


def write_crawl(folder: Path) -> Path:
    folder.mkdir()
    for number, data in enumerate(crawl()[0]):
        (folder / f"{number}.warc.wet.gz").write_bytes(data)
    return folder


def domains(folder: Path) -> dict[str, Any] | None:
    return json.loads((folder / "manifest.json").read_text())["statistics"].get("domains")


@pytest.mark.parametrize(
    "flags",
    [
        (),
        THREADS,
        ("--shuffle", "service"),
        ("--shuffle", "merged"),
        pytest.param(PROCESSES, marks=pytest.mark.thorough),
    ],
)
def test_a_job_counts_as_a_plain_loop_does(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[object, ...]
) -> None:
    monkeypatch.setattr("pipeline.readers.inputs.SPLIT_BYTES", 1)  # a split for each file
    monkeypatch.setattr("pipeline.jobs.domains.DOCUMENTS_PER_BUCKET", 20)
    monkeypatch.setattr("pipeline.shard.run_buffer.RUN_HOSTS", 12)
    crawled = write_crawl(tmp_path / "crawl")

    text = made(command, tmp_path / "text", "shard", "--input", crawled, "--dedup", "exact", *flags)
    assert domains(text) == expected()


def test_both_cards_and_inspect_show_the_domains(command: Command, tmp_path: Path) -> None:
    """Also where the pages are in an archive. The held-out folder has none: they are of both sides."""
    crawled = write_crawl(tmp_path / "crawl")
    with zipfile.ZipFile(tmp_path / "crawl.zip", "w") as archive:
        for path in sorted(crawled.iterdir()):
            archive.write(path, path.name)

    text = made(command, tmp_path / "text", "shard", "--input", tmp_path / "crawl.zip", "--holdout", 0.2)
    found = expected()
    assert domains(text) == found and domains(tmp_path / "text_heldout") is None
    vocab = made(command, tmp_path / "vocab", "vocab", "--text", text, "--model", "wordpiece", "--size", 200)
    pairs = rows(command, "pairs", text, vocab, "nsp", max_length=64)

    largest, count = found["largest"][0]
    others = found["documents"] - sum(count for _, count in found["largest"])
    for folder in (text, pairs):
        tags = Tags((folder / "card.html").read_text())
        assert f"Domains: {found['hosts']}" in tags.text and "before copies were dropped" in tags.text
        assert f"{largest}{count} " in tags.text and f"{found['hosts'] - 24} others{others} " in tags.text

        shown = command("inspect", folder, "--rows", 1).stdout
        assert f"{found['hosts']} hosts of {found['documents']} documents, before copies are dropped" in shown
        assert f"\n    {largest} " in shown and f"\n    {found['hosts'] - 24} others " in shown

    manifest = json.loads((text / "manifest.json").read_text())
    manifest["statistics"]["domains"]["hosts"] = "many"
    (text / "manifest.json").write_text(json.dumps(manifest))
    refused = command("inspect", text)
    assert refused.returncode == 3 and "domains" in refused.stderr and refused.stderr.count("\n") == 1


def test_input_without_urls_has_no_domains(command: Command, tmp_path: Path) -> None:
    """Although it has URLs in its text, and files whose format is found by workers."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("\n\n".join(f"See http://x{number}.org/ there." for number in range(20)))
    (tmp_path / "in/b.jsonl").write_text(json.dumps({"text": "A page.", "url": "http://x.org/"}))
    (tmp_path / "in/c.wet").write_bytes(wet("A text without a host.", "urn:uuid:1"))
    text = made(command, tmp_path / "text", "shard", "--input", tmp_path / "in")
    assert domains(text) is None
    assert "Domains" not in (text / "card.html").read_text()
    assert "domains" not in command("inspect", text).stdout


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://example.org", "example.org"),
        ("https://WWW.Example.org:443/a", "example.org"),
        ("http://www.com/", "www.com"),
        ("http://b\u00fccher.example/", "b\u00fccher.example"),
        ("http://[2001:db8::1]:80/", "2001:db8::1"),
        ("http://[::1", ""),
        ("http://a\x1b[2J.org/", ""),
        ("http://\ud800.org/", ""),
        (f"http://{'a' * 254}/", ""),
        ("dns:example.org", ""),
        ("http://www./", "www"),
        ("", ""),
    ],
)
def test_the_host_of_a_url(url: str, host: str) -> None:
    assert host_of(url) == host
