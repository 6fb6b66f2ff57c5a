"""`inspect` and `verify`: what a folder or a shard contains, and whether it matches its manifest.

Neither needs Beam. terminal_views.py formats the lines for a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa

from pipeline.terminal_views import show_cooccurrences, show_counts, show_manifest, show_pairs, show_text, show_unigrams
from schemas import shards, storage
from schemas.errors import DataError, StorageError
from schemas.manifest import NAME, Manifest, Shard, open_manifest, read_manifest, read_shard_bytes
from schemas.row_checks import PairLimits, check_pairs, check_row_count, read_pairs_vocabulary
from schemas.statistics import (
    COOCCURRENCES_SCHEMA,
    UNIGRAMS_SCHEMA,
    check_statistics,
    schema_of_file,
    unigrams_entry,
)
from schemas.vocabulary import COUNTS_FILE, TOKENIZER_FILE, VOCABULARY_FOLDER, Vocabulary, read_vocabulary

WANTED = "Give a folder that a job wrote; `inspect` also takes a shard (.arrow)."

CHECKPOINT = "state.json"

OTHER_FOLDERS = {
    CHECKPOINT: "a checkpoint. `clozeline export RUN --step N` checks it and writes its model",
    "recipe.toml": "the folder of a run. `clozeline train` checks its checkpoints when it resumes, and `clozeline "
    "export` the one that it reads; report.html shows what the run did",
    "results.json": "the results of a fine-tuning or a suite; report.html shows them",
    "config.json": "a model in the Hugging Face format. `clozeline finetune` and transformers open it",
}
"""What a folder is that holds a file of this name, and what to do with it."""


def inspect(path: str, rows: int) -> Iterator[str]:
    """Yield lines that show a finished folder, or the first rows of one shard. Raises DataError if it is neither."""
    if path.endswith(".arrow"):
        yield from show_shard(path, rows)
        return

    url = storage.join(path, NAME)
    check_is_pipeline_folder(path)
    manifest = open_manifest(path)
    yield from _manifest_lines(manifest, url)
    if manifest.kind != "vocab" and manifest.shards:
        largest = max(manifest.shards, key=lambda shard: shard.rows)
        yield from show_shard(storage.join(path, largest.path), rows)


def check_is_pipeline_folder(path: str) -> None:
    """Raise DataError, which says what `path` is, unless it is a finished folder that a job of the pipeline wrote."""
    is_finished = storage.exists(storage.join(path, NAME))
    if is_finished and not storage.exists(storage.join(path, CHECKPOINT)):
        return
    if not storage.exists(path):
        raise DataError(f"{path} does not exist. {WANTED}")

    files = storage.sizes(path)
    for name, what in OTHER_FOLDERS.items():
        if name in files:
            raise DataError(f"{path} is {what}.")
    raise DataError(f"{path} is not a finished folder: it holds no {NAME}. {WANTED}")


def _manifest_lines(manifest: Manifest, url: str) -> list[str]:
    """Return the lines of `show_manifest`. Raises DataError if the statistics are not in the form that a job writes."""
    try:
        return list(show_manifest(manifest))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{url} holds statistics that cannot be shown ({error!r}). "
            "Copy the folder again or rebuild it with --overwrite."
        ) from error


def show_shard(path: str, rows: int) -> Iterator[str]:
    """Yield the first rows of a shard, decoded. Raises DataError if it is not a readable shard."""
    data = storage.read(path)
    columns = shard_columns(data, path)
    folder, _, name = path.rpartition("/")
    folder = folder or "."
    yield f"\n{path}"

    if columns == shards.TEXT_SCHEMA.names:
        documents = shards.decode_table(data, path, shards.TEXT_SCHEMA)
        yield from islice(show_text(documents), rows)
    elif columns == shards.COUNTS_BY_SOURCE_SCHEMA.names:
        by_source = shards.decode_table(data, path, shards.COUNTS_BY_SOURCE_SCHEMA)
        yield from show_counts(by_source.slice(0, rows), is_bytebpe=name.startswith("bytebpe-"))
    elif columns == shards.COUNTS_SCHEMA.names:
        counts = shards.decode_table(data, path, shards.COUNTS_SCHEMA)
        yield from show_counts(counts.slice(0, rows), read_vocabulary(folder).model == "bytebpe")
    elif columns == UNIGRAMS_SCHEMA.names:
        unigrams = shards.decode_table(data, path, UNIGRAMS_SCHEMA)
        yield from show_unigrams(unigrams, rows, counted_tokens(path))
    elif columns == COOCCURRENCES_SCHEMA.names:
        cooccurrences = shards.decode_table(data, path, COOCCURRENCES_SCHEMA)
        yield from show_cooccurrences(cooccurrences, rows, counted_tokens(path))
    else:
        vocabulary = read_vocabulary(storage.join(folder, VOCABULARY_FOLDER))
        schema = shards.schema_of_pairs(data, path, vocabulary.size)
        pairs = shards.decode_table(data, path, schema)
        yield from islice(show_pairs(pairs, vocabulary), rows)


def counted_tokens(path: str) -> tuple[str, ...] | None:
    """Return the tokens that a file of statistics counts, by id, or None if they cannot be found.

    Statistics contain no vocabulary. The pairs that were counted do, if they are still where they were.
    """
    try:
        manifest = read_manifest(path.rpartition("/")[0] or ".", "statistics")
        vocabulary = read_vocabulary(storage.join(manifest.inputs[0].path, VOCABULARY_FOLDER))
    except (DataError, StorageError, LookupError):
        return None
    if vocabulary.fingerprint != manifest.options.get("vocabulary"):
        return None
    return tuple(vocabulary.shown(i) for i in range(vocabulary.size))


def shard_columns(data: bytes, path: str) -> list[str]:
    """Return the names of the columns of an Arrow file. Raises DataError if it is not readable."""
    try:
        return pa.ipc.open_file(pa.py_buffer(data)).schema.names
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is not a readable Arrow file ({error}). Rebuild or copy it again.") from error


def compare(a: str, b: str) -> Iterator[str]:
    """Yield lines on what two finished vocabularies share, and how each encodes the words of the first one's text.

    Raises DataError if one of them is not a finished vocabulary.
    """
    from pipeline.vocab.report import compare_vocabularies

    for folder in (a, b):
        read_manifest(folder, "vocab")
    a_json = storage.read(storage.join(a, TOKENIZER_FILE))
    b_json = storage.read(storage.join(b, TOKENIZER_FILE))

    url = storage.join(a, COUNTS_FILE)
    counts = shards.decode_table(storage.read(url), url, shards.COUNTS_SCHEMA)
    words = zip(counts["word"].to_pylist(), counts["count"].to_pylist(), strict=True)
    yield from compare_vocabularies((a_json, b_json), (a, b), words)


def verify(folder: str) -> Iterator[str]:
    """Check every file of a finished folder, and yield a line for each. Raises DataError for the first bad one."""
    check_is_pipeline_folder(folder)
    manifest = open_manifest(folder)
    vocabulary = check_vocabulary(folder, manifest)
    if manifest.kind == "statistics":
        unigrams_entry(folder, manifest)
    for shard in manifest.shards:
        data = read_shard_bytes(folder, shard)
        if shard.path.endswith(".arrow"):
            path = storage.join(folder, shard.path)
            table = shards.decode_table(data, path, row_schema(manifest, shard.path))
            check_rows(table, path, shard, manifest, vocabulary)
        yield f"ok  {shard.path}  {shard.rows:,} rows"


def check_vocabulary(folder: str, manifest: Manifest) -> Vocabulary | None:
    """Return the vocabulary of a folder, None if its kind has none. Raises DataError if it is not the stated one."""
    if manifest.kind in ("text", "counts", "statistics"):
        return None
    if manifest.kind == "pairs":
        return read_pairs_vocabulary(folder, manifest)

    vocabulary = read_vocabulary(folder)
    if vocabulary.fingerprint != manifest.fingerprint:
        raise DataError(
            f"{storage.join(folder, NAME)} states fingerprint {manifest.fingerprint}, but {TOKENIZER_FILE} has "
            f"{vocabulary.fingerprint}. Copy the folder again or rebuild it with --overwrite."
        )
    return vocabulary


def row_schema(manifest: Manifest, path: str) -> pa.Schema:
    """Return the schema that a folder's file must have."""
    if manifest.kind == "text":
        return shards.TEXT_SCHEMA
    if manifest.kind == "statistics":
        return schema_of_file(path)
    if manifest.kind == "counts":
        return shards.COUNTS_BY_SOURCE_SCHEMA
    if manifest.kind == "vocab":
        return shards.COUNTS_SCHEMA

    has_masks = bool(manifest.options.get("static_masks"))
    return shards.pairs_schema(int(manifest.options["vocabulary_size"]), has_masks)


def check_rows(table: pa.Table, path: str, shard: Shard, manifest: Manifest, vocabulary: Vocabulary | None) -> None:
    """Raise DataError unless a shard has the rows that the manifest counts, with values in range."""
    check_row_count(table, path, shard.rows)
    if manifest.kind == "pairs" and vocabulary is not None:
        check_pairs(table, path, PairLimits.of(manifest, vocabulary))
    if manifest.kind == "statistics":
        check_statistics(table, path, int(manifest.options["vocabulary_size"]))

    # A vocabulary's files have no fingerprint of their rows; the sha256 of their bytes has been checked already.
    if manifest.kind != "vocab":
        shards.check_fingerprint(table, path, shard.fingerprint)
