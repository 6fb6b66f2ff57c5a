"""An S3 server (moto) on loopback, behind a proxy that logs every request and injects faults."""

from __future__ import annotations

import contextlib
import http.client
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
CODES = {403: "AccessDenied", 404: "NoSuchKey", 503: "ServiceUnavailable"}


@dataclass
class Fault:
    """A fault of requests whose path contains `place`, for the next `times` of them.

    kind: an HTTP status to answer with, or "hang", "slow", "cut" (half of the body) or "flip" (one bit of the body).
    """

    method: str
    place: str
    kind: int | str
    times: int


@dataclass
class ObjectStore:
    """The server and the proxy. Setting `released` ends requests that hang or are slow."""

    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    transfers: list[tuple[str, str, int]] = field(default_factory=list)
    """(method, path, bytes of the body that was sent or received)."""
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.server = ThreadedMotoServer(port=0, verbose=False)
        self.server.start()
        self.proxy = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Proxy,), {"store": self}))
        threading.Thread(target=self.proxy.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.proxy.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point a process here, without botocore's own retries, which would hide ours."""
        return KEYS | {"AWS_ENDPOINT_URL": self.endpoint, "AWS_MAX_ATTEMPTS": "1"}

    def bucket(self, name: str) -> Any:
        """Return an empty bucket of this name, created if necessary."""
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        server = "http://{}:{}".format(*self.server.get_host_and_port())
        made = boto3.resource("s3", endpoint_url=server, **keys).create_bucket(Bucket=name)
        made.objects.delete()
        return made

    def fail(self, kind: int | str, place: str, times: int = 1 << 30, method: str = "GET") -> None:
        self.faults.append(Fault(method, place, kind, times))

    def count(self, place: str, method: str = "GET") -> int:
        """Return the number of requests of a method whose path contains `place`."""
        return sum(asked == method and place in path for asked, path in self.requests)

    def transferred(self, place: str, method: str = "GET") -> int:
        """Return the bytes fetched from (or, with PUT, sent to) paths that contain `place`."""
        return sum(size for asked, path, size in self.transfers if asked == method and place in path)

    def reset(self) -> None:
        """Remove all faults and clear the logs. Hanging requests continue."""
        self.released.set()
        self.faults, self.requests, self.released = [], [], threading.Event()
        self.transfers = []

    def stop(self) -> None:
        self.released.set()
        self.proxy.shutdown()
        self.server.stop()

    def next_fault(self, method: str, path: str) -> int | str:
        with self.lock:
            self.requests.append((method, path))
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and fault.place in path:
                    fault.times -= 1
                    return fault.kind
        return ""


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: ObjectStore

    def _hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        released, fault = self.store.released, self.store.next_fault(self.command, self.path)
        if isinstance(fault, int):
            self._answer(fault, {}, f"<Error><Code>{CODES[fault]}</Code><Message>no</Message></Error>".encode())
            return
        if fault == "hang":
            released.wait(60)
        there = http.client.HTTPConnection(*self.store.server.get_host_and_port())
        there.request(self.command, self.path, body, dict(self.headers))
        answer = there.getresponse()
        data = answer.read()
        with self.store.lock:
            self.store.transfers.append((self.command, self.path, len(body) or len(data)))
        headers = dict(answer.getheaders())
        if fault == "flip":  # and drop the store's checksums, which would reveal it
            data = bytes([data[0] ^ 1]) + data[1:]
            headers = {name: value for name, value in headers.items() if "checksum" not in name.lower()}
        self._answer(answer.status, headers, data, fault)

    def _answer(self, status: int, headers: dict[str, str], data: bytes, fault: str = "") -> None:
        released = self.store.released
        self.send_response(status)
        length = headers.get("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
        dropped = ("content-length", "transfer-encoding", "connection", "date", "server")
        for name, value in headers.items():
            if name.lower() not in dropped:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "slow":
            for place in range(0, len(data), 1024):
                self.wfile.write(data[place : place + 1024])
                released.wait(0.1)
        elif fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        else:
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _hand_on

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the other side was killed
            super().handle()
