"""`verify`: whether a finished folder matches its manifest. It does not use Beam."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from schemas import shards, storage
from schemas.errors import ClozelineError, DataError
from schemas.folder_kinds import is_pipeline_folder, what_is
from schemas.manifest import ADVICE, NAME, Manifest, Shard, open_manifest
from schemas.row_checks import PairLimits, check_pairs, check_row_count, read_pairs_vocabulary
from schemas.shards import read_shard_bytes
from schemas.statistics import read_file, unigrams_entry
from schemas.terminal import counted
from schemas.vocabulary import TOKENIZER_FILE, Vocabulary, read_vocabulary

WANTED = "Give a folder that a job of the pipeline wrote."

LISTED = 10
"""Bad files of a folder that are described."""

SCHEMAS = {
    "counts": shards.COUNTS_BY_SOURCE_SCHEMA,
    "vocab": shards.COUNTS_SCHEMA,
}


def verify_all(folders: Sequence[str]) -> Iterator[str]:
    """Yield the lines of `verify` on each folder. Raises an error as `of_each` does, or at once for a single folder."""
    yield from verify(folders[0]) if len(folders) == 1 else of_each(folders, verify, "did not pass")


def of_each(paths: Sequence[str], lines_of: Callable[[str], Iterator[str]], failure: str) -> Iterator[str]:
    """Yield the lines of each path, or the error that it ends with.

    Raises an error of the first one's kind at the end, which names all paths that failed.
    """
    failed: dict[str, ClozelineError] = {}
    for path in paths:
        try:
            yield from lines_of(path)
        except ClozelineError as error:
            failed.setdefault(path, error)
            yield from (str(error), "")
    if failed:
        first = next(iter(failed.values()))
        raise type(first)(f"{len(failed)} of {len(paths)} {failure}: {', '.join(failed)}.") from first


def verify(folder: str) -> Iterator[str]:
    """Check every file of a finished folder, and yield a line for each, and what is wrong if several are bad.

    Raises DataError at the end, which names the bad ones.
    """
    check_is_pipeline_folder(folder)
    manifest = open_manifest(folder)
    vocabulary = check_vocabulary(folder, manifest)
    if manifest.kind == "statistics":
        unigrams_entry(folder, manifest)
    bad: dict[str, DataError] = {}
    for shard in manifest.shards:
        try:
            check_shard(folder, shard, manifest, vocabulary)
            rows = f"  {counted(shard.rows, 'row')}" if shard.path.endswith(".arrow") else ""
            yield f"ok  {shard.path}{rows}"
        except DataError as error:
            bad[shard.path] = error
            yield f"bad {shard.path}"
    if len(bad) == 1:
        raise next(iter(bad.values()))
    if bad:
        yield from map(str, list(bad.values())[:LISTED])
        more = f" and {len(bad) - LISTED:,} more" if len(bad) > LISTED else ""
        names = ", ".join(list(bad)[:LISTED]) + more
        raise DataError(f"{len(bad):,} of {len(manifest.shards):,} files of {folder} are bad: {names}. {ADVICE}")


def check_shard(folder: str, shard: Shard, manifest: Manifest, vocabulary: Vocabulary | None) -> None:
    """Raise DataError unless a file of a folder has the bytes and rows that the manifest states."""
    if manifest.kind == "statistics":
        read_file(folder, shard, manifest)
        return
    data = read_shard_bytes(folder, shard)
    if shard.path.endswith(".arrow"):
        path = storage.join(folder, shard.path)
        check_rows(shards.decode_table(data, path, row_schema(manifest)), path, shard, manifest, vocabulary)


def check_is_pipeline_folder(path: str) -> None:
    """Raise DataError, which says what `path` is, unless it is a finished folder that a job of the pipeline wrote."""
    if is_pipeline_folder(path):
        return
    if not storage.exists(path):
        raise DataError(f"{path} does not exist. {WANTED}")
    what = what_is(path)
    if what:
        raise DataError(f"{path} is {what}, which has no shards to verify. `clozeline inspect` says more. {WANTED}")
    raise DataError(f"{path} is not a finished folder: it holds no {NAME}. {WANTED}")


def check_vocabulary(folder: str, manifest: Manifest) -> Vocabulary | None:
    """Return the vocabulary of a folder, None if its kind has none. Raises DataError if it is not the stated one."""
    if manifest.kind == "pairs":
        return read_pairs_vocabulary(folder, manifest)
    if manifest.kind != "vocab":
        return None

    vocabulary = read_vocabulary(folder)
    if vocabulary.fingerprint != manifest.fingerprint:
        raise DataError(
            f"{storage.join(folder, NAME)} states fingerprint {manifest.fingerprint}, but {TOKENIZER_FILE} has "
            f"{vocabulary.fingerprint}. Copy the folder again or rebuild it with --overwrite."
        )
    return vocabulary


def row_schema(manifest: Manifest) -> pa.Schema:
    """Return the schema that the shards of a folder must have."""
    if manifest.kind == "pairs":
        has_masks = bool(manifest.options.get("static_masks"))
        return shards.pairs_schema(int(manifest.options["vocabulary_size"]), has_masks)
    return shards.schema_of_text(manifest) if manifest.kind == "text" else SCHEMAS[manifest.kind]


def check_rows(table: pa.Table, path: str, shard: Shard, manifest: Manifest, vocabulary: Vocabulary | None) -> None:
    """Raise DataError unless a shard has the rows that the manifest counts, with values in range."""
    check_row_count(table, path, shard.rows)
    if manifest.kind == "pairs" and vocabulary is not None:
        check_pairs(table, path, PairLimits.of(manifest, vocabulary))
    # A vocabulary's files have no fingerprint of their rows; the sha256 of their bytes has been checked already.
    if manifest.kind != "vocab":
        shards.check_fingerprint(table, path, shard.fingerprint)
