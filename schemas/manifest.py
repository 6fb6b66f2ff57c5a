"""manifest.json: the description of a finished folder. It is written last, so its presence means finished.

All jobs write manifests of the same form, so one `verify` and one reader serve all of them.

A manifest of more than PART_ENTRIES shards or inputs lists them in parts: files next to it, which it names with their
hashes. `open_manifest` and `read_manifest` return one Manifest with all entries, wherever they are.

There may be hundreds of thousands of files. So their entries are small objects that pydantic checks and builds without
Python code: 100,000 of them take 0.4 s and 50 MB.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.dataclasses import dataclass

from schemas import FORMAT_VERSION, storage
from schemas.errors import DataError
from schemas.folder_kinds import MANIFEST as NAME
from schemas.folder_kinds import UNFINISHED
from schemas.text_facts import DomainFacts, TextFacts

ADVICE = "Copy the folder again or rebuild it with --overwrite."

_COMMANDS = {
    "text": "shard --output",
    "counts": "vocab --text TEXT --counts",
    "vocab": "vocab --output",
    "pairs": "pairs --output",
    "statistics": "statistics --output",
}
"""The command that writes each kind of folder, up to the flag for the folder."""

_NO_PLAIN_NAME = ("string_pattern_mismatch", "string_unicode")  # pydantic's error types; the second: a lone surrogate

PART_ENTRIES = 4096
"""Maximum shards, or inputs, that manifest.json lists itself. Longer lists are in parts of this many entries."""

PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
"""The name of a file inside the folder. A path here would let a manifest name any file on the machine."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]*$")]
Objective = Literal["nsp", "sop", "full_sentences", "doc_sentences"]
FolderKind = Literal["text", "counts", "vocab", "pairs", "statistics"]
Listed = Literal["shards", "inputs"]
"""The lists of a manifest that may be in parts."""

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, config=_STRICT)
class Input:
    """One input of the job: a corpus file (with its bytes) or a finished folder (with its fingerprint)."""

    path: str
    bytes: Count | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True, config=_STRICT)
class Shard:
    """One file of the folder. `tokens` is 0 if there are only words.

    fingerprint: of the rows alone; in a vocabulary, the first half of `sha256`.
    """

    path: PlainName
    rows: Count
    tokens: Count
    bytes: Count
    sha256: Hex
    fingerprint: Hex


@dataclass(frozen=True, slots=True, config=_STRICT)
class LedgerEntry:
    """How many documents, sentences, tokens or words of one source were dropped or cut for one reason."""

    reason: str
    source: str
    count: int


@dataclass(frozen=True, slots=True, config=_STRICT)
class Part:
    """A file that holds `count` consecutive entries of one list of the manifest."""

    path: PlainName
    holds: Listed
    count: Count
    bytes: Count
    sha256: Hex


_ENTRIES: dict[Listed, TypeAdapter[Any]] = {"shards": TypeAdapter(list[Shard]), "inputs": TypeAdapter(list[Input])}


def encode_entries(entries: Sequence[Shard] | Sequence[Input]) -> bytes:
    """Return entries as a JSON list with one entry per line."""
    lines = [json.dumps(asdict(entry), ensure_ascii=False) for entry in entries]
    return ("[\n" + ",\n".join(lines) + "\n]\n").encode()


def decode_entries(data: bytes, holds: Listed) -> list[Any]:
    """Return the checked entries of a part: Shards or Inputs. Raises pydantic's ValidationError if they are invalid."""
    return _ENTRIES[holds].validate_json(data)


# What readers need from the open tables of a manifest, by kind of folder


def _needed(**types: Any) -> type[BaseModel]:
    fields: dict[str, Any] = {name: kind if isinstance(kind, tuple) else (kind, ...) for name, kind in types.items()}
    return create_model("Needed", __config__=ConfigDict(extra="allow", strict=True), **fields)


_Positive = Annotated[int, Field(gt=0, lt=2**31)]

NEEDED: dict[FolderKind, type[BaseModel]] = {
    "text": _needed(
        totals=_needed(text_bytes=Count),
        statistics=_needed(documents_by_source=dict[str, Count], domains=(DomainFacts | None, None)),
    ),
    "counts": _needed(
        options=_needed(partitions=_Positive),
        statistics=_needed(sources=list[str], tallies=dict[str, list[list[Count]]]),
    ),
    "vocab": _needed(),
    "pairs": _needed(
        options=_needed(
            objective=Objective,
            max_length=_Positive,
            static_masks=(Count, 0),
            vocabulary=Hex,
            vocabulary_size=_Positive,
        ),
        totals=_needed(rows=Count, tokens=Count),
        statistics=_needed(lengths=list[Count], text=(TextFacts | None, None)),
    ),
    "statistics": _needed(options=_needed(vocabulary=Hex, vocabulary_size=_Positive, window=_Positive)),
}


# Fingerprints: equal content has equal fingerprints, regardless of compression


def fingerprint(kind: str, shards: Sequence[Shard], identity: str = "") -> str:
    """Return the fingerprint of a folder's content.

    It is a hash of (kind, format version, identity, the digest of each PART_ENTRIES shards), so that the digests can be
    computed in parallel. identity: the vocabulary's fingerprint, which gives ids their meaning; it is empty for text.
    """
    digests = [digest_of_part(shards[at : at + PART_ENTRIES]) for at in range(0, len(shards), PART_ENTRIES)]
    return fingerprint_of_parts(kind, digests, identity)


def digest_of_part(shards: Iterable[Shard]) -> str:
    """Return the digest of up to PART_ENTRIES consecutive shards, which must begin at a multiple of PART_ENTRIES."""
    return _hash([f"{shard.path} {shard.fingerprint}" for shard in shards])


def fingerprint_of_parts(kind: str, digests: Iterable[str], identity: str = "") -> str:
    """Return what `fingerprint` returns, from the digests of all parts in order."""
    return _hash([kind, str(FORMAT_VERSION), identity, *digests])


def _hash(lines: list[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


# The manifest


class Manifest(BaseModel):
    """The whole of manifest.json.

    parts: the files with the shards or inputs, in order, if there are more than PART_ENTRIES of them. Until they are
    read, the corresponding lists are empty here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Annotated[int, Field(strict=True)]
    kind: FolderKind
    options: dict[str, Any]
    inputs: list[Input]
    seed: int
    fingerprint: Hex
    shards: list[Shard]
    totals: dict[str, Count]
    statistics: dict[str, Any]
    ledger: list[LedgerEntry]
    parts: list[Part] = []

    def parts_of(self, holds: Listed) -> list[Part]:
        """Return the parts that contain one of the lists; empty if manifest.json lists it itself."""
        return [part for part in self.parts if part.holds == holds]

    @property
    def num_shards(self) -> int:
        """The number of shards, whether or not their parts have been read."""
        return len(self.shards) or sum(part.count for part in self.parts_of("shards"))

    def to_json(self) -> bytes:
        """Return the bytes of manifest.json, without the entries of its parts."""
        content = self.model_dump()
        if not self.parts:
            del content["parts"]
        for part in self.parts:
            content[part.holds] = []
        return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def read_manifest(folder: str, kind: FolderKind) -> Manifest:
    """Return the manifest of a finished folder of this kind, with all its entries.

    Raises DataError if there is none, if it or a part of it cannot be read, or if it is of another kind or format.
    """
    return _with_parts(read_root(folder, kind), folder)


def open_manifest(folder: str) -> Manifest:
    """Return the manifest of a finished folder of any kind, with all its entries. Raises DataError if it is invalid."""
    url = storage.join(folder, NAME)
    return _with_parts(parse_manifest(storage.read(url), url), folder)


def read_root(folder: str, kind: FolderKind) -> Manifest:
    """Do what `read_manifest` does without reading parts, so that their entries are missing."""
    url = storage.join(folder, NAME)
    if not storage.exists(url):
        advice = f"Make it with `clozeline {_COMMANDS[kind]} {folder} ...`."
        if any(not (name.startswith(UNFINISHED) or name.endswith(".arrow")) for name in storage.names(folder)):
            remedy = f"`clozeline start {folder}` goes all the way, or `shard`, `vocab` and `pairs`"
            if kind == "text":
                remedy = f"give them to `clozeline shard --input {folder} --output ...` first"
            advice = f"If these are texts, {remedy}."
        what = f"{NAME} is missing" if storage.exists(folder) else "it does not exist"
        raise DataError(f"{folder} holds no finished {kind}: {what}. {advice}")
    root = parse_manifest(storage.read(url), url)
    if root.kind != kind:
        # The advice must not suggest this folder as an output.
        job = "vocab --counts" if kind == "counts" else _COMMANDS[kind].partition(" ")[0]
        raise DataError(
            f"{folder} holds {root.kind}, but {kind} was expected. Give a folder that `clozeline {job}` wrote."
        )
    return root


def check_unchanged(folder: str, manifest: Manifest, fingerprint: str) -> None:
    """Raise DataError if a folder no longer has the fingerprint that it had when a job began."""
    if manifest.fingerprint != fingerprint:
        raise DataError(
            f"{folder} has fingerprint {manifest.fingerprint}, but had {fingerprint} when this job began: it was "
            "replaced. Run the command again."
        )


def read_shards_of_part(folder: str, kind: FolderKind, fingerprint: str, part: int) -> tuple[int, list[Shard]]:
    """Return the number of shards before one part of a folder's manifest, and the part's own shards.

    A manifest without parts is one part. Raises DataError if the folder's fingerprint is another.
    """
    root = read_root(folder, kind)
    check_unchanged(folder, root, fingerprint)
    parts = root.parts_of("shards")
    if not parts:
        return 0, root.shards
    return sum(earlier.count for earlier in parts[:part]), read_part(folder, parts[part])


def parse_manifest(data: bytes, url: str) -> Manifest:
    """Parse and check the bytes of a manifest. Raises DataError naming `url` and every fault found.

    Parts are not read: their entries are missing, and whether they agree with the rest is not checked.
    """
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise ValueError("it is not an object")
        version = fields.get("format_version")
        if isinstance(version, int) and version != FORMAT_VERSION:
            advice = "Upgrade it" if version > FORMAT_VERSION else "Make the folder again with --overwrite"
            raise DataError(f"{url} has format version {version}, but this Clozeline reads {FORMAT_VERSION}. {advice}.")
        manifest = Manifest.model_validate(fields)
        NEEDED[manifest.kind].model_validate(manifest.model_dump(include={"options", "totals", "statistics"}))
    except ValidationError as error:
        raise DataError(f"{url} is not a manifest of this version: {_faults(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{url} is not JSON of a manifest ({error}). Run the job that made it again.") from error

    for holds in {part.holds for part in manifest.parts}:
        if getattr(manifest, holds):
            raise DataError(f"{url} lists {holds} itself and in parts. {ADVICE}")
    if not manifest.parts_of("shards"):
        _check_consistency(manifest, url)
    return manifest


def _faults(error: ValidationError) -> str:
    """Return the place of each fault and what is wrong there, as one string."""
    faults = []
    for fault in error.errors():
        place = ".".join(map(str, fault["loc"]))
        message = fault["msg"]
        if place.endswith("path") and fault["type"] in _NO_PLAIN_NAME:
            message = f"{fault['input']!r} is not a plain file name; files lie in the folder itself"
        faults.append(f"{place}: {message}")
    return "; ".join(faults)


def _with_parts(root: Manifest, folder: str) -> Manifest:
    if not root.parts:
        return root

    entries: dict[str, list[Any]] = {part.holds: [] for part in root.parts}
    read = storage.concurrently(lambda part: read_part(folder, part), root.parts)
    for part, listed in zip(root.parts, read, strict=True):
        entries[part.holds] += listed

    manifest = root.model_copy(update=entries)
    _check_consistency(manifest, storage.join(folder, NAME))
    return manifest


def read_part(folder: str, part: Part) -> list[Any]:
    """Return the entries of one part: Shards or Inputs. Raises DataError naming the part if it is not as stated."""
    url = storage.join(folder, part.path)
    try:
        data = storage.read(url)
    except DataError as error:
        message = f"{url} is missing, which {NAME} names: it lists {part.count:,} {part.holds}. {ADVICE}"
        raise DataError(message) from error
    check_bytes(data, part, url)

    try:
        entries = decode_entries(data, part.holds)
    except ValidationError as error:
        raise DataError(f"{url} is not a list of {part.holds} of this version: {_faults(error)}.") from error
    if len(entries) != part.count:
        raise DataError(f"{url} lists {len(entries):,} {part.holds}, but {NAME} says {part.count:,}. {ADVICE}")
    return entries


def _check_consistency(manifest: Manifest, url: str) -> None:
    """Raise DataError if a manifest contradicts itself, because it was edited or assembled from others."""
    paths = [shard.path for shard in manifest.shards]
    if len(set(paths)) < len(paths):
        name, _ = Counter(paths).most_common(1)[0]
        raise DataError(f"{url} names {name} twice. {ADVICE}")

    if manifest.kind == "pairs":
        _check_totals(manifest, url)

    if manifest.kind != "vocab":  # a vocabulary's fingerprint is that of tokenizer.json
        identity = manifest.options["vocabulary"] if manifest.kind == "pairs" else ""
        found = fingerprint(manifest.kind, manifest.shards, identity)
        if found != manifest.fingerprint:
            raise DataError(
                f"{url} states fingerprint {manifest.fingerprint}, but its shards have {found}: some were added, "
                f"removed or replaced. {ADVICE}"
            )


def _check_totals(manifest: Manifest, url: str) -> None:
    """Raise DataError if the totals of pairs are not the sums over their shards and over their histogram."""
    lengths = manifest.statistics["lengths"]
    by_length = {"rows": sum(lengths), "tokens": sum(length * rows for length, rows in enumerate(lengths))}
    for name, counted in by_length.items():
        stated = manifest.totals[name]
        in_shards = sum(getattr(shard, name) for shard in manifest.shards)
        if stated != in_shards:
            raise DataError(f"{url} has totals.{name} {stated:,}, but its shards have {in_shards:,}. {ADVICE}")
        if stated != counted:
            raise DataError(f"{url} has totals.{name} {stated:,}, but statistics.lengths counts {counted:,}. {ADVICE}")


def check_size(size: int, entry: Shard | Part, url: str) -> None:
    """Raise DataError unless a file has as many bytes as its entry says."""
    if size != entry.bytes:
        raise DataError(f"{url} has {size:,} bytes, but {NAME} says {entry.bytes:,}: it was cut or replaced. {ADVICE}")


def check_bytes(data: bytes, entry: Shard | Part, url: str) -> None:
    """Raise DataError unless the bytes of a file have the size and the sha256 of its entry."""
    check_size(len(data), entry, url)
    found = storage.sha256(data)
    if found != entry.sha256:
        raise DataError(
            f"{url} has sha256 {found[:12]}..., but {NAME} says {entry.sha256[:12]}...: its bytes were changed. "
            f"{ADVICE}"
        )
