"""A stand-in for the Hugging Face Hub on this machine: as much of its HTTP API as uploads and reads of files need.

Tokens are `write`, of a user `me`, and `read`, which may not write. It takes every file in the commit itself, as the
Hub takes small ones. Large ones would go to a second store, whose protocol is huggingface_hub's matter.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from huggingface_hub import HfFileSystem


class Hub(ThreadingHTTPServer):
    """repositories: whether each is private. files: the content of their files. commits: how many were made.

    gated: repositories whose files need the token `read` or `write`. asked: the paths of requests with GET.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, bool] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []
        self.commits = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @staticmethod
    def fresh_clients() -> None:
        """Forget what this process knows of repositories, as a new one would."""
        HfFileSystem.clear_instance_cache()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/api/whoami-v2":
            known = self.token in ("read", "write")
            return self.answer(
                {"name": "me", "type": "user", "orgs": []} if known else {"error": "unknown"}, known, 401
            )

        self.hub.asked.append(self.path)
        repository, action = self.parts()
        if repository not in self.hub.repositories:
            return self.answer({"error": "Repository not found"}, False, 404, "RepoNotFound")
        kind, _, rest = action.partition("/")
        if kind in ("tree", "resolve") and re.split("[/?]", rest)[0] not in ("main", self.sha(repository)):
            return self.answer({"error": "Revision not found"}, False, 404, "RevisionNotFound")
        if kind == "tree":
            return self.answer(self.tree(repository, re.sub(r"^[^/?]+", "", rest)))
        if kind == "resolve":
            return self.send_file(repository, rest.partition("/")[2])
        files = self.hub.files[repository]
        header = files.get("README.md", b"").partition(b"\ntags:\n")[2].partition(b"\n---")[0].decode()
        tags = [line.removeprefix("- ") for line in header.splitlines()]
        siblings = [{"rfilename": path} for path in files]
        return self.answer(
            {"id": repository, "sha": self.sha(repository), "siblings": siblings, "tags": tags, "private": False}
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.token != "write":
            return self.answer({"error": "You don't have the rights to write here"}, False, 403)

        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            repository = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
            is_new = repository not in self.hub.repositories
            self.hub.repositories.setdefault(repository, wanted.get("visibility") == "private")
            self.hub.files.setdefault(repository, {})
            return self.answer({"url": f"{self.hub.url}/{repository}", "id": repository}, is_new, 409)

        if self.path == "/api/validate-yaml":
            is_fine = "license: my-own\n" not in json.loads(body)["content"]
            return self.answer({"errors": [{"message": '"license" must be one of [mit]'}]}, is_fine, 400)

        repository, action = self.parts()
        if action.startswith("preupload/"):
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
            return self.answer({"files": modes})
        if action.startswith("commit/"):
            self.commit(repository, [json.loads(line) for line in body.splitlines()])
            url = f"{self.hub.url}/{repository}/commit/{self.hub.commits:040}"
            return self.answer({"commitUrl": url, "commitOid": f"{self.hub.commits:040}", "success": True})
        return self.answer({"error": self.path}, False, 500)

    def commit(self, repository: str, lines: list[dict[str, Any]]) -> None:
        self.hub.commits += 1
        files = self.hub.files[repository]
        for line in lines:
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]

    @property
    def hub(self) -> Hub:
        assert isinstance(self.server, Hub)
        return self.server

    @property
    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def parts(self) -> tuple[str, str]:
        """Return OWNER/NAME and what follows it in /api/models/OWNER/NAME/... and /datasets/OWNER/NAME/..."""
        owner, name, action = [*self.path.removeprefix("/api").split("/", 4), "", "", ""][2:5]
        return f"{owner}/{name}", action

    def sha(self, repository: str) -> str:
        """Return the name of the only commit that is known: the state of the files."""
        return hashlib.sha1(repr(sorted(self.hub.files[repository].items())).encode()).hexdigest()

    def tree(self, repository: str, rest: str) -> list[dict[str, Any]]:
        """Return the entries of a folder and, if that is asked, of those in it."""
        folder, _, query = rest.strip("/").partition("?")
        files = self.hub.files[repository]
        names = {"/".join(name.split("/")[:depth]) for name in files for depth in range(1, name.count("/") + 2)}
        inside = sorted(name for name in names if name.startswith(f"{folder}/" if folder else ""))
        if "recursive=true" not in query.lower():
            inside = [name for name in inside if "/" not in name[len(folder) :].strip("/")]
        return [self.entry(name, files.get(name)) for name in inside]

    def entry(self, name: str, data: bytes | None) -> dict[str, Any]:
        if data is None:
            return {"type": "directory", "path": name, "size": 0, "oid": "0" * 40}
        return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

    def send_file(self, repository: str, name: str) -> None:
        """Send a file, or the range of it that is asked for."""
        if repository in self.hub.gated and not self.token:
            return self.answer({"error": "Access is restricted"}, False, 401, "GatedRepo")
        data = self.hub.files[repository][name]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        self.send_response(206 if wanted else 200)
        if wanted:
            data = data[int(wanted[1]) : int(wanted[2]) + 1]
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def answer(self, content: Any, is_fine: bool = True, status: int = 200, code: str = "") -> None:
        data = json.dumps(content).encode()
        self.send_response(200 if is_fine else status)
        self.send_header("Content-Type", "application/json")
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *values: Any) -> None:
        """Keep requests off the terminal."""


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Yield a hub that answers until the end of the block."""
    with Hub() as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()
