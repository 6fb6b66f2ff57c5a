"""The pipeline on s3://, against a real S3 server on loopback, with requests that fail on the way to it."""

import hashlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


class Faulty(BaseHTTPRequestHandler):
    """Hands every request on to the S3 server, but answers the first `failures` for an object's bytes with 503."""

    protocol_version = "HTTP/1.1"
    server_port: int
    failures = 0
    failed = 0
    lock = threading.Lock()

    def _hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with Faulty.lock:
            fails = Faulty.failed < Faulty.failures and self.command in ("GET", "PUT") and ".arrow" in self.path
            Faulty.failed += fails
        if fails:
            self._answer(503, {}, b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>")
            return
        there = http.client.HTTPConnection("127.0.0.1", Faulty.server_port)
        there.request(self.command, self.path, body, dict(self.headers))
        answer = there.getresponse()
        self._answer(answer.status, dict(answer.getheaders()), answer.read())

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(status)
        length = headers.get("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
        dropped = ("content-length", "transfer-encoding", "connection", "date", "server")
        for name, value in headers.items():
            if name.lower() not in dropped:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _hand_on

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of the faulty proxy in front of the S3 server."""
    s3 = ThreadedMotoServer(port=0, verbose=False)
    s3.start()
    Faulty.server_port = s3.get_host_and_port()[1]
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Faulty)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{proxy.server_port}"
    proxy.shutdown()
    s3.stop()


@pytest.fixture
def bucket(endpoint: str, corpus: Path):
    """A fresh bucket that holds the corpus."""
    made = boto3.resource(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    ).create_bucket(Bucket="corpora")  # type: ignore[attr-defined]
    made.objects.delete()
    made.put_object(Key="raw/corpus.jsonl", Body=corpus.read_bytes())
    return made


def test_from_s3_to_s3_equals_local_through_two_failed_requests(run, endpoint, bucket, corpus, tmp_path) -> None:
    Faulty.failed, Faulty.failures = 0, 2
    s3 = KEYS | {"AWS_ENDPOINT_URL": endpoint}
    vocab, nsp = ("--model", "wordpiece", "--size", 160), ("--objective", "nsp")
    for place, source in ((tmp_path, corpus), ("s3://corpora", "s3://corpora/raw/*.jsonl")):
        for arguments in (
            ("shard", "--input", source, "--output", f"{place}/text", "--num_shards", 3),
            ("vocab", "--text", f"{place}/text", "--output", f"{place}/vocab", *vocab),
            ("pairs", "--text", f"{place}/text", "--vocab", f"{place}/vocab", "--output", f"{place}/pairs", *nsp),
            ("verify", f"{place}/pairs"),
        ):  # fmt: skip
            flags = [] if arguments[0] == "verify" else ["--direct_num_workers=2"]
            done = run("python", "-m", "pipeline", *arguments, *flags, **s3)
            assert done.returncode == 0, done.stderr
    assert Faulty.failed == 2
    local = {
        str(path.relative_to(tmp_path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in tmp_path.rglob("*.*")
        if path.is_file() and path.name not in ("manifest.json", "card.html")
    }
    remote = {
        item.key: hashlib.sha256(item.get()["Body"].read()).hexdigest()
        for item in bucket.objects.all()
        if not item.key.startswith("raw/") and not item.key.endswith(("manifest.json", "card.html"))
    }
    assert remote == local


def test_what_is_not_there_is_a_clear_error(run, endpoint, bucket) -> None:
    s3 = KEYS | {"AWS_ENDPOINT_URL": endpoint}
    shard = ("python", "-m", "pipeline", "shard", "--output", "s3://corpora/x", "--input")
    done = run(*shard, "s3://corpora/none/*.jsonl", **s3)
    assert done.returncode == 2 and "matches no file" in done.stderr
    done = run(*shard, "s3://nobucket/none.jsonl", **s3)
    assert done.returncode == 2 and "Traceback" not in done.stderr
