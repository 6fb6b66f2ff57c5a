"""`inspect` and `verify`: what is in a folder or a shard, readable, and whether it is what its manifest says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa

from schemas import manifest, shards, storage
from schemas.errors import DataError
from schemas.manifest import Manifest
from schemas.vocabulary import COUNTS, FILE, FOLDER, Vocabulary, read_vocabulary


def inspect(path: str, rows: int) -> Iterator[str]:
    """Lines that show a finished folder or one shard. Raises DataError when it is neither."""
    if path.endswith(".arrow"):
        yield from show_shard(path, rows)
        return
    url = storage.join(path, manifest.NAME)
    if not storage.exists(url):
        raise DataError(f"{path} is neither a shard (.arrow) nor a finished folder: it holds no {manifest.NAME}.")
    found = manifest.parse_manifest(storage.read(url), url)
    yield from show_manifest(found)
    if found.kind != "vocab" and found.shards:
        yield from show_shard(storage.join(path, max(found.shards, key=lambda shard: shard.rows).path), rows)


def compare(a: str, b: str) -> Iterator[str]:
    """Lines that tell two finished vocabularies apart, on the words of the first. Raises DataError."""
    from pipeline.vocab.report import compare_vocabularies

    for folder in (a, b):
        manifest.read_manifest(folder, "vocab")
    jsons = tuple(storage.read(storage.join(folder, FILE)) for folder in (a, b))
    counts = shards.decode_table(storage.read(storage.join(a, COUNTS)), storage.join(a, COUNTS), shards.COUNTS)
    words = zip(counts["word"].to_pylist(), counts["count"].to_pylist(), strict=True)
    yield from compare_vocabularies((jsons[0], jsons[1]), (a, b), words)


def show_manifest(found: Manifest) -> Iterator[str]:
    """Totals, options, statistics and ledger, a line each."""
    yield f"{found.kind}  fingerprint {found.fingerprint}  seed {found.seed}"
    yield "totals      " + "  ".join(f"{name} {count:,}" for name, count in found.totals.items())
    yield "options     " + "  ".join(f"{name}={value}" for name, value in found.options.items())
    for name, value in found.statistics.items():
        yield f"{name:<11} " + ("" if isinstance(value, dict) else str(value))
        if isinstance(value, dict):
            yield from (f"    {key:<20} {_in_words(part)}" for key, part in value.items())
    for entry in found.ledger:
        yield f"left out    {entry.count:,} x {entry.reason} ({entry.source})"
    yield f"shards      {len(found.shards)}, {sum(shard.bytes for shard in found.shards):,} bytes"


def _in_words(value: object) -> str:
    return "  ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else str(value)


def show_shard(path: str, rows: int) -> Iterator[str]:
    """The first rows of a shard, decoded."""
    with storage.open_input(path) as file:
        data = file.read()
    names = shard_columns(data, path)
    yield f"\n{path}"
    if names == shards.TEXT.names:
        yield from islice(show_text(shards.decode_table(data, path, shards.TEXT)), rows)
    elif names == shards.COUNTS.names:
        table = shards.decode_table(data, path, shards.COUNTS)
        yield from (f"{row['count']:>12,}  {row['word']}" for row in table.slice(0, rows).to_pylist())
    else:
        vocabulary = read_vocabulary(storage.join(path.rpartition("/")[0] or ".", FOLDER))
        table = shards.decode_table(data, path, shards.pairs_schema(vocabulary.size))
        yield from islice(show_pairs(table, vocabulary), rows)


def shard_columns(data: bytes, path: str) -> list[str]:
    try:
        return pa.ipc.open_file(pa.py_buffer(data)).schema.names
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is not a readable Arrow file ({error}). Rebuild or copy it again.") from error


def show_text(table: pa.Table) -> Iterator[str]:
    for row in table.to_pylist():
        yield f"\n{row['document']:016x}  {row['source']}  {len(row['sentences'])} sentences\n" + "\n".join(
            f"    {sentence}" for sentence in row["sentences"][:5]
        )


def show_pairs(table: pa.Table, vocabulary: Vocabulary) -> Iterator[str]:
    """Each row as words: a space where one begins, the segments on lines of their own."""
    for row in table.to_pylist():
        pieces = [
            (" " if starts or token in vocabulary.special_ids else "") + vocabulary.readable(token)
            for token, starts in zip(row["input_ids"], row["word_starts"], strict=True)
        ]
        cut = row["segment_b_start"]
        head = f"label {row['pair_label']}  {len(pieces)} tokens  {row['document_a']:016x} {row['document_b']:016x}"
        yield f"\n{head}\n  A {''.join(pieces[:cut])}\n  B {''.join(pieces[cut:])}"


def verify(folder: str) -> Iterator[str]:
    """Check every file of a finished folder, one line each. Raises DataError naming the first that is wrong."""
    url = storage.join(folder, manifest.NAME)
    if not storage.exists(url):
        raise DataError(f"{folder} is not finished: it holds no {manifest.NAME}.")
    found = manifest.parse_manifest(storage.read(url), url)
    for shard in found.shards:
        data = manifest.read_shard_bytes(folder, shard)
        if shard.path.endswith(".arrow"):
            check_rows(folder, found, shard, data)
        yield f"ok  {shard.path}  {shard.rows:,} rows"


def check_rows(folder: str, found: Manifest, shard: manifest.Shard, data: bytes) -> None:
    """The shard opens with the layout of its kind and holds the rows that the manifest counts."""
    schema = {
        "text": lambda: shards.TEXT,
        "vocab": lambda: shards.COUNTS,
        "pairs": lambda: shards.pairs_schema(int(found.options["vocabulary_size"])),
    }[found.kind]()
    path = storage.join(folder, shard.path)
    table = shards.decode_table(data, path, schema)
    if table.num_rows != shard.rows:
        raise DataError(
            f"{path} has {table.num_rows:,} rows, but its manifest says {shard.rows:,}. Rebuild the folder."
        )
    if found.kind == "pairs":
        shards.check_pairs(table, path, int(found.options["vocabulary_size"]))
