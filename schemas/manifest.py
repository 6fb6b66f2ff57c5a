"""manifest.json: the description of a finished folder. It is written last, so its presence means finished.

The jobs shard, vocab and pairs write manifests of the same form, so one `verify` and one reader serve all three.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from schemas import FORMAT_VERSION, storage
from schemas.errors import DataError

NAME = "manifest.json"
FolderKind = Literal["text", "counts", "vocab", "pairs"]
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def _plain(name: str) -> str:
    if not PLAIN_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a plain file name; files lie in the folder itself")
    return name


PlainName = Annotated[str, AfterValidator(_plain)]
"""The name of a file inside the folder. A path here would let a manifest name any file of the machine."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]*$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Input(_Strict):
    """One input of the job: a corpus file (with its bytes) or a finished folder (with its fingerprint)."""

    path: str
    bytes: Count | None = None
    fingerprint: str | None = None


class Shard(_Strict):
    """One file of the folder. `tokens` is 0 where there are only words; `fingerprint` is of the rows alone."""

    path: PlainName
    rows: Count
    tokens: Count
    bytes: Count
    sha256: Hex
    fingerprint: Hex


class LedgerEntry(_Strict):
    """How many documents, sentences or chunks of one source were dropped or cut for one reason."""

    reason: str
    source: str
    count: int


class Manifest(_Strict):
    """The whole of manifest.json."""

    format_version: Annotated[int, Field(ge=1)]
    kind: FolderKind
    options: dict[str, Any]
    inputs: list[Input]
    seed: int
    fingerprint: Hex
    shards: list[Shard]
    totals: dict[str, Count]
    statistics: dict[str, Any]
    ledger: list[LedgerEntry]

    def to_json(self) -> bytes:
        """Return the bytes of manifest.json."""
        return (json.dumps(self.model_dump(), indent=1, ensure_ascii=False) + "\n").encode()


class _Needed(BaseModel):
    """Fields that readers need; a manifest may hold others as well."""

    model_config = ConfigDict(extra="allow", strict=True)


class _PairOptions(_Needed):
    objective: Literal["nsp", "sop", "full_sentences", "doc_sentences"]
    max_length: Annotated[int, Field(gt=0, lt=2**31)]
    static_masks: Count = 0
    vocabulary: Hex
    vocabulary_size: Annotated[int, Field(gt=0, lt=2**31)]


class _PairTotals(_Needed):
    rows: Count
    tokens: Count


class _PairStatistics(_Needed):
    lengths: list[Count]


class _Pairs(_Needed):
    options: _PairOptions
    totals: _PairTotals
    statistics: _PairStatistics


class _TextTotals(_Needed):
    text_bytes: Count


class _TextStatistics(_Needed):
    documents_by_source: dict[str, Count]


class _CountsOptions(_Needed):
    partitions: Annotated[int, Field(gt=0, lt=2**31)]


class _CountsStatistics(_Needed):
    sources: list[str]
    tallies: dict[str, list[list[Count]]]


class _Counts(_Needed):
    options: _CountsOptions
    statistics: _CountsStatistics


class _Text(_Needed):
    totals: _TextTotals
    statistics: _TextStatistics


NEEDED: dict[FolderKind, type[BaseModel]] = {"text": _Text, "counts": _Counts, "vocab": _Needed, "pairs": _Pairs}
"""What readers of each kind rely on in a manifest's open tables, beyond the fields that all kinds share."""


def fingerprint(kind: FolderKind, shards: list[Shard], identity: str = "", version: int = FORMAT_VERSION) -> str:
    """Return the fingerprint of a folder's content: equal content, equal fingerprint.

    `identity` is the vocabulary's fingerprint, which gives ids their meaning; text has none.
    """
    parts = [kind, str(version), identity, *(f"{shard.path} {shard.fingerprint}" for shard in shards)]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def read_manifest(folder: str, kind: FolderKind) -> Manifest:
    """Return the manifest of a finished folder of this kind.

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
    """Check and read the bytes of a manifest. Raises DataError naming `url` and every fault found."""
    try:
        fields = json.loads(data)
        version = fields.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise DataError(
                f"{url} has format version {version}, but this Clozeline reads up to {FORMAT_VERSION}. Upgrade it."
            )
        manifest = Manifest.model_validate(fields)
        NEEDED[manifest.kind].model_validate(manifest.model_dump(include={"options", "totals", "statistics"}))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise DataError(f"{url} is not a manifest of this version: {faults}.") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{url} is not JSON of a manifest ({error}). Run the job that made it again.") from error

    check_consistency(manifest, url)
    return manifest


def check_consistency(manifest: Manifest, url: str) -> None:
    """Raise DataError when parts of a manifest contradict each other: it was edited, or put together from others."""
    advice = "Copy the folder again or rebuild it with --overwrite."
    names = Counter(shard.path for shard in manifest.shards)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise DataError(f"{url} names {twice[0]} twice. {advice}")

    if manifest.kind == "pairs":
        check_totals(manifest, url, advice)

    if manifest.kind != "vocab":  # a vocabulary's fingerprint is of tokenizer.json
        identity = manifest.options["vocabulary"] if manifest.kind == "pairs" else ""
        found = fingerprint(manifest.kind, manifest.shards, identity, manifest.format_version)
        if found != manifest.fingerprint:
            raise DataError(
                f"{url} states fingerprint {manifest.fingerprint}, but its shards have {found}: some were added, "
                f"removed or replaced. {advice}"
            )


def check_totals(manifest: Manifest, url: str, advice: str) -> None:
    """Raise DataError when the totals of pairs are not the sums of their shards and of their histogram."""
    lengths = manifest.statistics["lengths"]
    by_length = {"rows": sum(lengths), "tokens": sum(length * rows for length, rows in enumerate(lengths))}
    for name, counted in by_length.items():
        stated = manifest.totals[name]
        in_shards = sum(getattr(shard, name) for shard in manifest.shards)
        if stated != in_shards:
            raise DataError(f"{url} has totals.{name} {stated:,}, but its shards have {in_shards:,}. {advice}")
        if stated != counted:
            raise DataError(f"{url} has totals.{name} {stated:,}, but statistics.lengths counts {counted:,}. {advice}")


def read_shard_bytes(folder: str, shard: Shard) -> bytes:
    """Return a shard's bytes after checking their size and sha256. Raises DataError naming the shard."""
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


def _how_to_make(kind: FolderKind, folder: str) -> str:
    if kind == "counts":
        return f"Make it with `python -m pipeline vocab --text TEXT --counts {folder} ...`."

    job = {"text": "shard", "vocab": "vocab", "pairs": "pairs"}[kind]
    return f"Make it with `python -m pipeline {job} --output {folder} ...`."
