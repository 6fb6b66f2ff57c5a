"""manifest.json: the description of a finished folder. It is written last, so its presence means finished.

All jobs write manifests of the same form, so one `verify` and one reader serve all of them.

A manifest of more than PART_ENTRIES shards or inputs lists them in parts: files next to it, which it names with their
hashes. `open_manifest` and `read_manifest` return one Manifest with all entries, wherever they are.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas import FORMAT_VERSION, storage
from schemas.errors import DataError
from schemas.fingerprints import fingerprint
from schemas.manifest_entries import Count, FolderKind, Hex, Input, LedgerEntry, Listed, Part, Shard, decode_entries
from schemas.manifest_needs import NEEDED
from schemas.many_files import concurrently

# Re-exported, so that callers need only this module.
__all__ = ["FolderKind", "Input", "LedgerEntry", "Part", "Shard", "fingerprint"]

NAME = "manifest.json"
ADVICE = "Copy the folder again or rebuild it with --overwrite."
JOBS: dict[FolderKind, str] = {"text": "shard", "vocab": "vocab", "pairs": "pairs", "statistics": "statistics"}
"""The job that writes each kind of folder. Counts are also written by `vocab`, but with --counts."""

NO_PLAIN_NAME = ("string_pattern_mismatch", "string_unicode")
"""Pydantic's error types for a string that is not a PlainName; the second is for a lone surrogate."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Manifest(_Strict):
    """The whole of manifest.json.

    parts: the files with the shards or inputs, in order, if there are more than PART_ENTRIES of them. Until they are
    read, the corresponding lists are empty here.
    """

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
            del content["parts"]  # folders without parts have no such field, as before parts existed
        for part in self.parts:
            content[part.holds] = []
        return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def read_manifest(folder: str, kind: FolderKind) -> Manifest:
    """Return the manifest of a finished folder of this kind, with all its entries.

    Raises DataError if there is none, if it or a part of it cannot be read, or if it is of another kind or a newer
    format.
    """
    root = read_root(folder, kind)
    return _with_parts(root, folder)


def open_manifest(folder: str) -> Manifest:
    """Return the manifest of a finished folder of any kind, with all its entries. Raises DataError if it is invalid."""
    url = storage.join(folder, NAME)
    return _with_parts(parse_manifest(storage.read(url), url), folder)


def read_root(folder: str, kind: FolderKind) -> Manifest:
    """Do what `read_manifest` does without reading parts, so that their entries are missing."""
    url = storage.join(folder, NAME)
    if not storage.exists(url):
        raise DataError(f"{folder} holds no finished {kind}: {NAME} is missing. {_how_to_make(kind, folder)}")
    root = parse_manifest(storage.read(url), url)
    if root.kind != kind:
        raise DataError(f"{folder} holds {root.kind}, but {kind} was expected. {_who_writes(kind)}")
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
        version = fields.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise DataError(
                f"{url} has format version {version}, but this Clozeline reads up to {FORMAT_VERSION}. Upgrade it."
            )
        manifest = Manifest.model_validate(fields)
        NEEDED[manifest.kind].model_validate(manifest.model_dump(include={"options", "totals", "statistics"}))
    except ValidationError as error:
        raise DataError(f"{url} is not a manifest of this version: {_faults(error)}.") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{url} is not JSON of a manifest ({error}). Run the job that made it again.") from error

    for holds in {part.holds for part in manifest.parts}:
        if getattr(manifest, holds):
            raise DataError(f"{url} lists {holds} itself and in parts. {ADVICE}")
    if not manifest.parts_of("shards"):
        check_consistency(manifest, url)
    return manifest


def _faults(error: ValidationError) -> str:
    """Return the place of each fault and what is wrong there, as one string."""
    faults = []
    for fault in error.errors():
        place = ".".join(map(str, fault["loc"]))
        message = fault["msg"]
        if place.endswith("path") and fault["type"] in NO_PLAIN_NAME:
            message = f"{fault['input']!r} is not a plain file name; files lie in the folder itself"
        faults.append(f"{place}: {message}")
    return "; ".join(faults)


def _with_parts(root: Manifest, folder: str) -> Manifest:
    """Return the manifest with the entries of its parts, which are read concurrently. Raises DataError."""
    if not root.parts:
        return root

    entries: dict[str, list[Any]] = {part.holds: [] for part in root.parts}
    read = concurrently(lambda part: read_part(folder, part), root.parts)
    for part, listed in zip(root.parts, read, strict=True):
        entries[part.holds] += listed

    manifest = root.model_copy(update=entries)
    check_consistency(manifest, storage.join(folder, NAME))
    return manifest


def read_part(folder: str, part: Part) -> list[Any]:
    """Return the entries of one part: Shards or Inputs. Raises DataError naming the part if it is not as stated."""
    url = storage.join(folder, part.path)
    try:
        data = storage.read(url)
    except DataError as error:
        message = f"{url} is missing, which {NAME} names: it lists {part.count:,} {part.holds}. {ADVICE}"
        raise DataError(message) from error
    if len(data) != part.bytes:
        raise DataError(
            f"{url} has {len(data):,} bytes, but {NAME} says {part.bytes:,}: it was cut or replaced. {ADVICE}"
        )
    if storage.sha256(data) != part.sha256:
        raise DataError(f"{url} has another sha256 than {NAME} says: its bytes were changed. {ADVICE}")

    try:
        entries = decode_entries(data, part.holds)
    except ValidationError as error:
        raise DataError(f"{url} is not a list of {part.holds} of this version: {_faults(error)}.") from error
    if len(entries) != part.count:
        raise DataError(f"{url} lists {len(entries):,} {part.holds}, but {NAME} says {part.count:,}. {ADVICE}")
    return entries


def check_consistency(manifest: Manifest, url: str) -> None:
    """Raise DataError if a manifest contradicts itself, because it was edited or assembled from others."""
    paths = [shard.path for shard in manifest.shards]
    if len(set(paths)) < len(paths):
        name, _ = Counter(paths).most_common(1)[0]
        raise DataError(f"{url} names {name} twice. {ADVICE}")

    if manifest.kind == "pairs":
        check_totals(manifest, url)

    if manifest.kind != "vocab":  # a vocabulary's fingerprint is that of tokenizer.json
        identity = manifest.options["vocabulary"] if manifest.kind == "pairs" else ""
        found = fingerprint(manifest.kind, manifest.shards, identity, manifest.format_version)
        if found != manifest.fingerprint:
            raise DataError(
                f"{url} states fingerprint {manifest.fingerprint}, but its shards have {found}: some were added, "
                f"removed or replaced. {ADVICE}"
            )


def check_totals(manifest: Manifest, url: str) -> None:
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


def _who_writes(kind: FolderKind) -> str:
    """Return the advice for a folder of the wrong kind. It must not suggest that folder's path as an output."""
    if kind == "counts":
        return "Give a folder that `clozeline vocab --counts` wrote."
    return f"Give a folder that `clozeline {JOBS[kind]}` wrote."


def _how_to_make(kind: FolderKind, folder: str) -> str:
    if kind == "counts":
        return f"Make it with `clozeline vocab --text TEXT --counts {folder} ...`."

    return f"Make it with `clozeline {JOBS[kind]} --output {folder} ...`."
