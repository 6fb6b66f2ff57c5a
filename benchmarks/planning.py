"""Measures how long `shard` takes to plan the files of an object store, and how many requests it makes.

    python benchmarks/planning.py [--files 100000] [--delay 0.025]

The store is a small server on loopback that implements the part of S3 that planning needs: lists in pages of 1,000,
HEAD, and GET of ranges. It waits before every answer and counts requests. Each kind of file is planned in a new
process, so that the memory of planning can be measured.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import queue
import resource
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

KINDS = ("jsonl", "txt", "txt.gz")
PAGE = 1000
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
PROSE = b"The cat sat on the mat. It was happy there. The dog was not.\n" * 200


class Store(BaseHTTPRequestHandler):
    """A bucket with `files` files of every kind, all with the same content. delay: seconds before each answer."""

    protocol_version = "HTTP/1.1"
    files = 0
    delay = 0.0
    counts: ClassVar[Counter[str]] = Counter()
    lock: ClassVar[Any] = threading.Lock()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/counts":
            self._answer(200, json.dumps(self.counts).encode())
            self.counts.clear()
        elif "list-type" in query:
            self._count("list")
            self._answer(200, self._page(query))
        else:
            self._count("GET")
            self._range(content_of(url.path))

    def do_HEAD(self) -> None:
        self._count("HEAD")
        self._answer(200, content_of(urlsplit(self.path).path))

    def _page(self, query: dict[str, str]) -> bytes:
        """Return one page of a listing of the prefix `KIND/`, as XML."""
        kind = query["prefix"].split("/")[0]
        first = int(query.get("continuation-token", 0))
        last = min(first + PAGE, self.files)
        size = len(content_of(kind))

        entries = [
            f"<Contents><Key>{kind}/part-{number:08d}.{kind}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{number:032x}&quot;</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for number in range(first, last)
        ]
        more = f"<NextContinuationToken>{last}</NextContinuationToken>" if last < self.files else ""
        truncated = str(last < self.files).lower()
        head = f"<Name>bucket</Name><IsTruncated>{truncated}</IsTruncated>{more}"
        return f"<ListBucketResult>{head}{''.join(entries)}</ListBucketResult>".encode()

    def _range(self, content: bytes) -> None:
        start, end = self.headers["Range"].removeprefix("bytes=").split("-")
        self._answer(206, content[int(start) : int(end) + 1])

    def _count(self, name: str) -> None:
        with self.lock:
            self.counts[name] += 1
        time.sleep(self.delay)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"0"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def content_of(name: str) -> bytes:
    return gzip.compress(PROSE, mtime=0) if name.endswith(".gz") else PROSE


def serve(files: int, delay: float, port: Any) -> None:
    """Serve until the process is stopped. port: a queue that receives the server's port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Store,), {"files": files, "delay": delay}))
    port.put(server.server_port)
    server.serve_forever()


def plan(kind: str, answer: Any) -> None:
    """Plan all files of a kind in this process, and put the time and memory that it took into the queue `answer`."""
    from pipeline.shard.inputs import plan_splits
    from pipeline.shard.listing import matching_files

    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    files = matching_files(f"s3://bucket/{kind}/*.{kind}")
    splits = plan_splits(files, "auto")
    seconds = time.perf_counter() - started

    after = resource.getrusage(resource.RUSAGE_SELF)
    rows = [split.to_row() for split in splits]
    answer.put(
        {
            "files": len(files),
            "splits": len(splits),
            "seconds": seconds,
            "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "megabytes": (after.ru_maxrss - before.ru_maxrss) / 1024,
            "plan_megabytes": len(json.dumps(rows)) / 1e6,
        }
    )


def answer_of(process: Any, answer: Any) -> Any:
    """Return the next item that a process puts into a queue. Raises SystemExit if the process ends without one."""
    while True:
        try:
            return answer.get(timeout=1)
        except queue.Empty:
            if not process.is_alive() and answer.empty():
                raise SystemExit(f"{process.name} ended with exit code {process.exitcode} and no answer.") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--delay", type=float, default=0.025)
    arguments = parser.parse_args()

    spawn = multiprocessing.get_context("spawn")
    answer: Any = spawn.Queue()
    server = spawn.Process(target=serve, args=(arguments.files, arguments.delay, answer), daemon=True)
    server.start()
    address = f"http://127.0.0.1:{answer_of(server, answer)}"
    os.environ.update(KEYS | {"AWS_ENDPOINT_URL": address})

    print("kind     files   splits  seconds   CPU s  memory MB  plan MB  requests")
    for kind in KINDS:
        planner = spawn.Process(target=plan, args=(kind, answer))
        planner.start()
        took = answer_of(planner, answer)
        planner.join()

        print(
            f"{kind:8} {took['files']:6} {took['splits']:7} {took['seconds']:8.1f} {took['cpu']:7.1f} "
            f"{took['megabytes']:10.0f} {took['plan_megabytes']:8.1f}  {requests_to(address)}"
        )
    server.terminate()


def requests_to(address: str) -> str:
    """Return the number of requests of each kind that the store answered since the last call."""
    from urllib.request import urlopen

    with urlopen(f"{address}/counts") as reply:
        counts = json.load(reply)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    main()
