"""From the patterns a user gave to the splits that workers read: which bytes of which file, in which format."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
from dataclasses import dataclass
from typing import IO, Any, Literal

import pyarrow as pa

from schemas import storage
from schemas.errors import UsageError

Format = Literal["text", "jsonl", "wikiextractor"]
SPLIT_BYTES = (
    16 << 20
)  # about a second's work; small enough that the last worker to finish does not keep others waiting
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
_WIKI_BLOCK = re.compile(rb'\s*<doc id="')


@dataclass(frozen=True)
class Split:
    """A piece of one input file: the records that begin in bytes [start, end). `index` orders the splits of a job."""

    index: int
    path: str
    start: int
    end: int
    format: Format
    compression: str | None


def matching_files(patterns: str) -> list[tuple[str, int]]:
    """(URL, bytes) of every file that a comma list of patterns names, sorted, each once.

    Raises UsageError for a pattern that matches no file.
    """
    found: dict[str, int] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        fs, path = storage.filesystem(pattern)
        matches = fs.glob(path, detail=True) if any(c in path for c in "*?[") else _single(fs, path)
        files = {fs.unstrip_protocol(name): info["size"] for name, info in matches.items() if info["type"] == "file"}
        if not files:
            if any(info["type"] == "directory" for info in matches.values()):
                raise UsageError(
                    f"--input {pattern} is a folder. Name its files with a pattern, as in {pattern}/*.jsonl."
                )
            raise UsageError(f"--input {pattern} matches no file. Check the path; nothing was read or written.")
        found.update({_as_given(url, pattern): size for url, size in files.items()})
    if not found:
        raise UsageError("--input is empty. Give a file, a pattern or a comma list of them.")
    return sorted(found.items())


def _as_given(url: str, pattern: str) -> str:
    """Local files by path, relative ones relative, so that a manifest does not tell whose machine it was made on."""
    path = url.removeprefix("file://")
    relative = path != url and not pattern.startswith(("/", "~", "file:"))
    return os.path.relpath(path) if relative else path


def _single(fs: Any, path: str) -> dict[str, dict[str, Any]]:
    try:
        return {path: fs.info(path)}
    except FileNotFoundError:
        return {}


def plan_splits(files: list[tuple[str, int]], wanted: Format | Literal["auto"]) -> list[Split]:
    """Cut the files into splits. Uncompressed JSONL is cut at SPLIT_BYTES; other files are read whole by one worker."""
    splits: list[Split] = []
    for path, size in files:
        compression = next((name for suffix, name in COMPRESSIONS.items() if path.endswith(suffix)), None)
        form = detect_format(path, compression) if wanted == "auto" else wanted
        step = SPLIT_BYTES if form == "jsonl" and compression is None else max(size, 1)
        for start in range(0, max(size, 1), step):
            splits.append(Split(len(splits), path, start, min(start + step, size), form, compression))
    return splits


def detect_format(path: str, compression: str | None) -> Format:
    """By name (.json, .jsonl, .ndjson), else by the first bytes (a WikiExtractor block), else plain text."""
    name = path.removesuffix(next((s for s, c in COMPRESSIONS.items() if c == compression), ""))
    if name.endswith((".jsonl", ".json", ".ndjson")):
        return "jsonl"
    with open_plain(path, compression) as file:
        return "wikiextractor" if _WIKI_BLOCK.match(file.read(64)) else "text"


def open_plain(path: str, compression: str | None) -> IO[bytes]:
    """A file open for reading, decompressed."""
    file = storage.open_input(path)
    if compression == "zstd":
        # Arrow's stream reads all frames of a file and, unlike zstandard's, notices when the end is missing
        stream: Any = pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
        return io.BufferedReader(stream)
    opener = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open}.get(compression or "")
    return opener(file, "rb") if opener else file


def version_of(path: str) -> str:
    """Changes when the file does (time and size, or the store's tag), so that unfinished work is not reused then."""
    fs, inner = storage.filesystem(path)
    return str(fs.ukey(inner))
