"""manifest.json: what a finished folder says of itself. It is written last; its presence means finished.

Every job (text, vocab, pairs) writes one of the same form, so that one `verify` and one reader serve all three.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas import FORMAT_VERSION, storage
from schemas.errors import DataError

NAME = "manifest.json"
Kind = Literal["text", "vocab", "pairs"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Input(_Strict):
    """One thing that the job read: a corpus file (with its bytes) or a finished folder (with its fingerprint)."""

    path: str
    bytes: int | None = None
    fingerprint: str | None = None


class Shard(_Strict):
    """One file of the folder. `tokens` is 0 where there are only words; `fingerprint` is of the rows alone."""

    path: str
    rows: int
    tokens: int
    bytes: int
    sha256: str
    fingerprint: str


class LedgerEntry(_Strict):
    """So many documents, sentences or chunks of one source were dropped or cut for one reason."""

    reason: str
    source: str
    count: int


class Manifest(_Strict):
    """The whole of manifest.json."""

    format_version: int
    kind: Kind
    options: dict[str, Any]
    inputs: list[Input]
    seed: int
    fingerprint: str
    shards: list[Shard]
    totals: dict[str, int]
    statistics: dict[str, Any]
    ledger: list[LedgerEntry]

    def to_json(self) -> bytes:
        return (json.dumps(self.model_dump(), indent=1, ensure_ascii=False) + "\n").encode()


def fingerprint(kind: Kind, shards: list[Shard], identity: str = "") -> str:
    """Of the content: equal content, equal fingerprint. `identity`, the vocabulary's, gives ids their meaning."""
    parts = [kind, str(FORMAT_VERSION), identity, *(f"{shard.path} {shard.fingerprint}" for shard in shards)]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def read_manifest(folder: str, kind: Kind) -> Manifest:
    """The manifest of a finished folder of this kind.

    Raises DataError when there is none, when it cannot be read, or when it is of another kind or a newer format.
    """
    url = storage.join(folder, NAME)
    if not storage.exists(url):
        raise DataError(f"{folder} holds no finished {kind}: {NAME} is missing. {_how_to_make(kind, folder)}")
    manifest = parse_manifest(storage.read(url), url)
    if manifest.kind != kind:
        raise DataError(f"{folder} holds {manifest.kind}, but {kind} was expected. {_how_to_make(kind, folder)}")
    return manifest


def parse_manifest(data: bytes, url: str) -> Manifest:
    """Check and read the bytes of a manifest. Raises DataError naming `url` and every fault."""
    try:
        fields = json.loads(data)
        version = fields.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise DataError(
                f"{url} has format version {version}, but this Clozeline reads up to {FORMAT_VERSION}. Upgrade it."
            )
        return Manifest.model_validate(fields)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise DataError(f"{url} is not a manifest of this version: {faults}.") from error
    except (ValueError, AttributeError) as error:
        raise DataError(f"{url} is not JSON of a manifest ({error}). Run the job that made it again.") from error


def read_shard_bytes(folder: str, shard: Shard) -> bytes:
    """A shard's bytes, equal in size and sha256 to what its manifest says. Raises DataError naming the shard."""
    url = storage.join(folder, shard.path)
    data = storage.read(url)
    if len(data) != shard.bytes:
        raise DataError(
            f"{url} has {len(data):,} bytes, but its manifest says {shard.bytes:,}: it was cut or replaced. "
            "Copy it again or rebuild the folder with --overwrite."
        )
    found = storage.sha256(data)
    if found != shard.sha256:
        raise DataError(
            f"{url} has sha256 {found[:12]}..., but its manifest says {shard.sha256[:12]}...: its bytes were changed. "
            "Copy it again or rebuild the folder with --overwrite."
        )
    return data


def _how_to_make(kind: Kind, folder: str) -> str:
    job = {"text": "shard", "vocab": "vocab", "pairs": "pairs"}[kind]
    return f"Make it with `python -m pipeline {job} --output {folder} ...`."
