"""A small job whose pieces are made, published and cleaned up as by a real one, and the death of a process in it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest

from pipeline.commit import leases, publish
from pipeline.commit.parts import part_of_report, summarize_folder, summarize_part
from pipeline.commit.publish import publish_output
from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from schemas import FORMAT_VERSION, shards, storage
from schemas.manifest import Manifest, read_manifest
from schemas.shards import read_shard_bytes

SHARDS = 5
PART = 2
CHANGING = ("publish", "move", "copy", "remove", "remove_files")
"""The functions of `storage` that change a folder."""


class Killed(BaseException):
    """Stands for a process that ends at once: nothing catches it."""


def names_of(count: int = SHARDS) -> list[str]:
    return [shards.shard_name("text", index, count) for index in range(count)]


def data_of(job: str, name: str) -> bytes:
    return f"{job} {name}".encode()


def build(staging: Staging, name: str) -> Report:
    """Make a shard unless it is finished, as a worker does."""
    done = staging.report(name)
    if done is not None:
        return done

    data = data_of(staging.job, name)
    digest = storage.sha256(data)
    entry = {"path": name, "rows": 1, "tokens": 0, "bytes": len(data), "sha256": digest, "fingerprint": digest[:32]}
    return staging.keep(name, data, {"shard": entry})


def add_up(reports: list[Report]) -> Report:
    return {}


def finish(staging: Staging, reports: list[Report]) -> None:
    by_part: dict[int, list[Report]] = {}
    for report in reports:
        by_part.setdefault(part_of_report(report), []).append(report)
    folder = summarize_folder([summarize_part(part, add_up, staging) for part in by_part.items()], add_up)

    staging.put("rejected.jsonl", b"{}\n")
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        kind="text",
        options={},
        inputs=[],
        seed=0,
        fingerprint=folder.fingerprint("text"),
        shards=folder.shards,
        totals={"text_bytes": 0},
        statistics={"documents_by_source": {}},
        ledger=[],
        parts=folder.parts,
    )
    publish_output(staging, manifest, {"rejected.jsonl": "rejected/a.jsonl"})


def attempt(out: str, job: str, count: int = SHARDS, built: int | None = None) -> None:
    """One run of a job, which dies after `built` shards if a number is given."""
    staging = Staging(out, job, token=uuid.uuid4().hex)
    with leases.held(out, staging.token):
        reports = [build(staging, name) for name in names_of(count)[:built]]
        if built is None:
            finish(staging, reports)
            publish.clean_up(staging)


def files(out: str) -> dict[str, bytes]:
    fs, path = storage.filesystem(out)
    return {name.removeprefix(f"{path}/"): fs.cat_file(name) for name in fs.find(path)}


def check_result(out: str, job: str, count: int = SHARDS) -> None:
    """The folder holds this job's result and nothing else."""
    manifest = read_manifest(out, "text")
    assert [read_shard_bytes(out, shard) for shard in manifest.shards] == [data_of(job, n) for n in names_of(count)]
    parts = {part.path for part in manifest.parts}
    assert set(files(out)) == {*names_of(count), *parts, "manifest.json", "rejected/a.jsonl"}


def spy(monkeypatch: pytest.MonkeyPatch, name: str, seen: Callable[[str, str], object]) -> None:
    real = getattr(storage, name)

    def call(*arguments, **options):
        seen(name, arguments[1] if name in ("copy", "move") else arguments[0])
        return real(*arguments, **options)

    monkeypatch.setattr(storage, name, call)


def die_at(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process end just before the n-th change of the store, in whichever thread."""
    changes: list[str] = []
    lock = threading.Lock()

    def dying(name: str, target: str) -> None:
        if "_lease-" in target:
            return
        with lock:
            changes.append(target)
            if len(changes) > call:
                raise Killed

    for name in CHANGING:
        spy(monkeypatch, name, dying)
