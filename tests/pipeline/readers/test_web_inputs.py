"""Inputs on web servers and on the Hugging Face Hub, both on this machine."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from pipeline.readers import inputs
from pipeline.readers.listing import is_unchanged, matching_files
from pipeline.readers.web_addresses import commit_of, pinned
from schemas import manifest, storage, web_files
from tests.conftest import Command
from tests.hub_stand_in import Hub, running_hub

LINES = [json.dumps({"text": f"Document {i} speaks of {i * 7}. It has a second sentence."}) for i in range(4000)]
JSONL = "".join(f"{line}\n" for line in LINES).encode()
DATASET = "hf://datasets/me/texts"


class Files(SimpleHTTPRequestHandler):
    """Python's web server, which sends whole files."""

    def log_message(self, format: str, *values: Any) -> None:
        """Keep requests off the terminal."""


class Ranges(Files):
    """Sends parts, too, compresses for clients that take that, and refuses the first `refusals` requests.

    answer: makes what is sent for the range [start, end) of a file in place of (status, bytes, header of the range).
    """

    refusals = 0
    status = 503
    content_type = "application/octet-stream"
    answer: Callable[[bytes, int, int], tuple[int, bytes, str]] | None = None

    def do_GET(self) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if type(self).refusals:
            type(self).refusals -= 1
            self.send_error(type(self).status)
        elif "gzip" in self.headers.get("Accept-Encoding", ""):
            self.send(200, gzip.compress(path.read_bytes()))
        elif wanted and path.is_file():
            data, start, end = path.read_bytes(), int(wanted[1]), int(wanted[2]) + 1
            make = type(self).answer if start or end > 1 else None
            self.send(*(make or part)(data, start, end))
        else:
            super().do_GET()

    def send(self, status: int, data: bytes, content_range: str = "") -> None:
        self.send_response(status)
        if content_range:
            self.send_header("Content-Range", content_range)
        self.send_header("Content-Type", self.content_type)
        self.send_header("Content-Encoding", "gzip" if data[:2] == b"\x1f\x8b" else "identity")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def part(data: bytes, start: int, end: int) -> tuple[int, bytes, str]:
    sent = data[start:end]
    return 206, sent, f"bytes {start}-{start + len(sent) - 1}/{len(data)}"


PAGE = b"Too many requests. Please wait a little. " * 20
WRONG = {
    "a page": lambda data, start, end: (200, PAGE, ""),
    "nothing": lambda data, start, end: (206, b"", f"bytes {start}-{end - 1}/{len(data)}"),
    "another range": lambda data, start, end: part(data, start + 10, end),
    "no range": lambda data, start, end: (206, data[start:end], ""),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file a.jsonl, which is read in several ranges."""
    monkeypatch.setattr(inputs, "SPLIT_BYTES", 100_000)
    monkeypatch.setattr(web_files, "DELAYS", (0.0, 0.0))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_bytes(JSONL)
    return tmp_path / "in"


@pytest.fixture
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The URL of a web server with the folder; the parameter is its class."""
    handler = partial(request.param, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a dataset: its card, a file of text, and a folder with a.jsonl."""
    with running_hub() as running:
        # huggingface_hub has read HF_ENDPOINT and HF_HUB_OFFLINE when it was imported.
        files = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        commit_of.cache_clear()
        running.repositories["me/texts"] = False
        running.files["me/texts"] = {
            "README.md": b"# A card\n\nIt is no text.\n",
            ".gitattributes": b"* text",
            "more.txt": b"Some text. And more.\n",
            "data/a.jsonl": JSONL,
        }
        yield running


def fingerprint(command: Command, url: str | Path, output: Path) -> str:
    assert command("shard", "--input", url, "--output", output).returncode == 0
    return manifest.open_manifest(str(output)).fingerprint


@pytest.mark.parametrize("server", [Ranges], indirect=True)
def test_a_web_server_is_read_like_a_disk(command: Command, folder: Path, server: str, tmp_path: Path) -> None:
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "Another one."}\n'))
    on_disk = fingerprint(command, folder, tmp_path / "disk")
    assert fingerprint(command, f"{server}/a.jsonl,{server}/b.jsonl.gz", tmp_path / "web") == on_disk
    assert fingerprint(command, f"{server}/*.jsonl*", tmp_path / "pattern") == on_disk
    named = f"{server}/a.jsonl?download=1,{server}/b.jsonl.gz?a=1&b=2"
    assert fingerprint(command, named, tmp_path / "query") == on_disk


@pytest.mark.parametrize("server", [Files], indirect=True)
def test_a_web_server_that_sends_whole_files_is_refused(command: Command, server: str, tmp_path: Path) -> None:
    done = command("shard", "--input", f"{server}/a.jsonl", "--output", tmp_path / "out")
    assert done.returncode == 5
    assert f"The server of {server}/a.jsonl does not send parts of files" in done.stderr
    assert "Download it first" in done.stderr


@pytest.mark.parametrize("server", [Ranges], indirect=True)
@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_range_of_the_file_is_refused(
    command: Command, server: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ranges, "answer", staticmethod(WRONG[kind]))
    done = command("shard", "--input", f"{server}/a.jsonl", "--output", tmp_path / "out")
    assert done.returncode == 5
    assert re.search(r"for bytes .* it sent .* with status 20|does not send parts of files", done.stderr)


@pytest.mark.parametrize("server", [Ranges], indirect=True)
def test_a_page_that_lists_what_is_not_there(command: Command, folder: Path, server: str, tmp_path: Path) -> None:
    (folder / "index.html").write_text(
        '<a href="a.jsonl">a</a> <a href="b.jsonl">b</a> <a href="mailto:me@b.jsonl">me</a>'
    )
    done = command("shard", "--input", f"{server}/*.jsonl", "--output", tmp_path / "out")
    assert done.returncode == 3
    assert "1 of 2 files that the page of" in done.stderr and "/b.jsonl. Give a pattern without them" in done.stderr


@pytest.mark.parametrize("server", [Ranges], indirect=True)
def test_a_range_may_come_in_parts(
    command: Command, folder: Path, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts = staticmethod(lambda data, start, end: part(data, start, min(end, start + 30_000)))
    monkeypatch.setattr(Ranges, "answer", in_parts)
    on_disk = fingerprint(command, folder, tmp_path / "disk")
    assert fingerprint(command, f"{server}/a.jsonl", tmp_path / "web") == on_disk


@pytest.mark.parametrize("server", [Ranges], indirect=True)
def test_a_page_in_place_of_a_file_is_refused(
    command: Command, folder: Path, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "texts").mkdir()
    done = command("shard", "--input", f"{server}/texts", "--output", tmp_path / "out")  # sent on to texts/
    assert done.returncode == 2 and "is a page, not a folder" in done.stderr

    monkeypatch.setattr(Ranges, "content_type", "text/html")
    done = command("shard", "--input", f"{server}/a.jsonl", "--output", tmp_path / "out")
    assert done.returncode == 3 and "the server sends a page, and not the file" in done.stderr


@pytest.mark.parametrize("server", [Ranges], indirect=True)
@pytest.mark.parametrize(("status", "refusals", "code"), [(503, 2, 0), (429, 2, 0), (503, 1000, 5), (403, 1, 5)])
def test_a_web_server_is_asked_again(
    command: Command, server: str, tmp_path: Path, monkeypatch, status: int, refusals: int, code: int
) -> None:
    monkeypatch.setattr(Ranges, "status", status)
    monkeypatch.setattr(Ranges, "refusals", refusals)
    done = command("shard", "--input", f"{server}/a.jsonl", "--output", tmp_path / "out")
    assert done.returncode == code
    assert not code or (f"{server}/a.jsonl cannot be reached" in done.stderr and str(status) in done.stderr)


def test_a_dataset_of_the_hub_is_read_like_a_folder(command: Command, folder: Path, hub: Hub, tmp_path: Path) -> None:
    on_disk = fingerprint(command, folder, tmp_path / "disk")
    assert fingerprint(command, f"{DATASET}/data", tmp_path / "folder") == on_disk
    assert fingerprint(command, f"{DATASET}/data/*.jsonl", tmp_path / "pattern") == on_disk

    (folder / "more.txt").write_bytes(hub.files["me/texts"]["more.txt"])
    with_text = fingerprint(command, folder, tmp_path / "with_text")
    assert fingerprint(command, DATASET, tmp_path / "whole") == with_text  # without its card
    assert [file.path for file in matching_files(DATASET)] == [f"{DATASET}/data/a.jsonl", f"{DATASET}/more.txt"]


def test_a_job_reads_one_commit_of_a_dataset(command: Command, hub: Hub, tmp_path: Path) -> None:
    (file,) = matching_files(f"{DATASET}/more.txt")
    at_commit = pinned(file.path)
    assert re.fullmatch(rf"{DATASET}@[0-9a-f]{{40}}/more.txt", at_commit) and pinned(at_commit) == at_commit
    assert is_unchanged(at_commit, file.version)
    assert storage.read(at_commit) == hub.files["me/texts"]["more.txt"]

    hub.asked.clear()
    fingerprint(command, f"{DATASET}/data", tmp_path / "out")
    read = [path for path in hub.asked if "/resolve/" in path and "/resolve/main/" not in path]
    assert read and sum("/api/" in path for path in hub.asked) < 8  # the Hub limits these

    hub.files["me/texts"]["more.txt"] = b"Same text. And less.\n"  # of the same size
    hub.fresh_clients()
    commit_of.cache_clear()
    assert not is_unchanged(pinned(file.path), file.version)


def test_inspect_says_what_keeps_it_from_reading(command: Command, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "of text in 4,00" in command("inspect", f"{DATASET}/data").stdout
    assert "files are at hf://datasets/a/b" in command("inspect", "https://huggingface.co/datasets/a/b").stderr
    hub.fresh_clients()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    done = command("inspect", f"{DATASET}/data")
    assert done.returncode == 5 and "OfflineModeIsEnabled" in done.stderr


def test_a_dataset_with_conditions_needs_a_token(
    command: Command, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated.add("me/texts")
    refused = command("shard", "--input", f"{DATASET}/data", "--output", tmp_path / "out")
    assert refused.returncode == 5
    assert "gated" in refused.stderr and "set HF_TOKEN" in refused.stderr

    monkeypatch.setenv("HF_TOKEN", "read")
    hub.fresh_clients()
    assert command("shard", "--input", f"{DATASET}/data", "--output", tmp_path / "out").returncode == 0


@pytest.mark.parametrize("url", ["hf://datasets/me/missing", "hf://datasets/me/texts/missing", "hf://texts"])
def test_what_the_hub_does_not_have(command: Command, hub: Hub, url: str, tmp_path: Path) -> None:
    done = command("shard", "--input", url, "--output", tmp_path / "out")
    assert done.returncode in (2, 5)
    assert url in done.stderr
    assert "hf://datasets/OWNER/NAME" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("https://huggingface.co/datasets/a/b", "files are at hf://datasets/a/b"),
        ("https://huggingface.co/datasets/a/b/viewer/c/train?row=7", "files are at hf://datasets/a/b"),
        ("https://huggingface.co/datasets/a/b/blob/v1/c/d.parquet", "files are at hf://datasets/a/b@v1/c/d.parquet"),
        (
            "http://127.0.0.1:9/texts/",
            "not a folder. Name its files, or give a pattern: 'http://127.0.0.1:9/texts/*.txt'",
        ),
    ],
)
def test_pages_are_no_files(command: Command, url: str, advice: str, tmp_path: Path) -> None:
    done = command("shard", "--input", url, "--output", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.endswith(f"{advice}\n")


def test_passwords_do_not_stand_in_addresses(command: Command, tmp_path: Path) -> None:
    done = command("shard", "--input", "https://me:secret@127.0.0.1/a.txt", "--output", tmp_path / "out")
    assert done.returncode == 2
    assert "~/.netrc" in done.stderr and "secret" not in done.stderr


@pytest.mark.parametrize("url", ["hf://datasets/me/out", "http://127.0.0.1:9/out", "https://127.0.0.1:9/out"])
def test_nothing_is_written_there(command: Command, corpus: Path, url: str) -> None:
    done = command("shard", "--input", corpus, "--output", url)
    assert done.returncode == 2
    assert f"{url} cannot be written: such URLs are only read" in done.stderr
