"""WARC files and web pages that tests give to `shard`, and how long they take."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable

SOME_SECONDS = 0.05  # of a measurement that may be due to other processes

WORDS = ["river", "sea", "town", "bridge", "market", "winter", "letter", "garden", "window", "road", "music", "harbor"]
WORDS += ["island", "forest", "teacher"]


def sentence(number: int) -> str:
    names = [WORDS[(number * step + step) % len(WORDS)] for step in (1, 2, 4, 7, 11)]
    river, sea, *others = names
    return f"In the year {1800 + number} the {river} by the {sea} had a {others[0]}, a {others[1]} and a {others[2]}."


def paragraphs(number: int, count: int = 6) -> list[str]:
    return [" ".join(sentence(number * 100 + place * 3 + part) for part in range(3)) for place in range(count)]


def page(number: int, count: int = 6) -> str:
    """A page with a menu, `count` paragraphs and a footer."""
    menu = "".join(f'<li><a href="/{word}">{word}</a></li>' for word in WORDS)
    text = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs(number, count))
    return (
        f"<!DOCTYPE html><html><head><title>Page {number}</title></head><body><nav><ul>{menu}</ul></nav>"
        f"<article>{text}</article><footer>Imprint and privacy</footer></body></html>"
    )


def record(kind: str, content_type: str, block: bytes, *fields: str, uri: str = "http://x.org/") -> bytes:
    """A WARC record with these further fields."""
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        f"WARC-Target-URI: {uri}",
        f"Content-Type: {content_type}",
        *fields,
        f"Content-Length: {len(block)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + block + b"\r\n\r\n"


def http(body: bytes, *fields: str, status: str = "200 OK", content_type: str = "text/html") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def response(block: bytes, *fields: str, uri: str = "http://x.org/") -> bytes:
    return record("response", "application/http; msgtype=response", block, *fields, uri=uri)


def wet(text: str, uri: str = "http://x.org/") -> bytes:
    return record("conversion", "text/plain", text.encode(), uri=uri)


WARCINFO = record("warcinfo", "application/warc-fields", b"software: x\r\n")
REQUEST = record("request", "application/http; msgtype=request", b"GET / HTTP/1.1\r\n\r\n")


def members(*records: bytes) -> bytes:
    """A file in which each record is a gzip member, as crawlers write it."""
    return b"".join(gzip.compress(each, mtime=0) for each in records)


def min_seconds(function: Callable[[], object]) -> float:
    """The least processor time of three calls."""
    seconds: list[float] = []
    for _ in range(3):
        begun = time.process_time()
        function()
        seconds.append(time.process_time() - begun)
    return min(seconds)
