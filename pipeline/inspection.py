"""`inspect` and `verify`: what is in a folder or a shard, readable, and whether it is what its manifest says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from textwrap import wrap
from typing import Any

import pyarrow as pa

from pipeline.data_card import card, charts
from schemas import manifest, shards, storage
from schemas.errors import DataError
from schemas.manifest import Manifest
from schemas.row_checks import PairLimits, check_pairs, read_pairs_vocabulary
from schemas.vocabulary import COUNTS, FILE, FOLDER, Vocabulary, read_vocabulary

WIDTH = 100  # of a line in the terminal, as far as it is ours to break


def inspect(path: str, rows: int) -> Iterator[str]:
    """Lines that show a finished folder or one shard. Raises DataError when it is neither."""
    if path.endswith(".arrow"):
        yield from show_shard(path, rows)
        return
    url = storage.join(path, manifest.NAME)
    if not storage.exists(url):
        raise DataError(f"{path} is neither a shard (.arrow) nor a finished folder: it holds no {manifest.NAME}.")
    found = manifest.parse_manifest(storage.read(url), url)
    yield from describe_found(found, url)
    if found.kind != "vocab" and found.shards:
        yield from show_shard(storage.join(path, max(found.shards, key=lambda shard: shard.rows).path), rows)


def describe_found(found: Manifest, url: str) -> list[str]:
    """Return the lines of `show_manifest`. Raises DataError when the statistics are not those that a job writes."""
    try:
        return list(show_manifest(found))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{url} holds statistics that cannot be shown ({error!r}). "
            "Copy the folder again or rebuild it with --overwrite."
        ) from error


def compare(a: str, b: str) -> Iterator[str]:
    """Lines that tell two finished vocabularies apart, on the words of the first. Raises DataError."""
    from pipeline.vocab.statistics import compare_vocabularies

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
    yield _wrapped("options", "  ".join(f"{name}={value}" for name, value in found.options.items()))
    yield from show_pair_statistics(found) if found.kind == "pairs" else show_statistics(found.statistics)
    for entry in found.ledger:
        yield f"left out    {entry.count:,} x {entry.reason} ({entry.source})"
    yield f"shards      {len(found.shards)}, {sum(shard.bytes for shard in found.shards):,} bytes"


def show_statistics(statistics: dict[str, Any]) -> Iterator[str]:
    """Each on a line, tables a line for every entry."""
    for name, value in statistics.items():
        if not isinstance(value, dict):
            yield _wrapped(name, _in_words(value))
        else:
            yield name
            yield from (f"    {key:<26} {_in_words(part)}" for key, part in value.items())


def _wrapped(name: str, text: str) -> str:
    lines = wrap(text, WIDTH - 12, break_long_words=False, break_on_hyphens=False) or [""]
    return f"{name:<11} " + ("\n" + " " * 12).join(lines)


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {_in_words(part)}" for name, part in value.items())
    if isinstance(value, list):
        return "  ".join(map(_in_words, value))
    return f"{value:,}" if type(value) is int else str(value)


def show_pair_statistics(found: Manifest) -> Iterator[str]:
    """The facts of the data card."""
    told, tokens = found.statistics, max(found.totals["tokens"], 1)
    yield f"lengths     {_mean(told['lengths'])}; {card.padded_share(found):.1%} padding at {card.max_length(found)}"
    yield from charts.text_histogram(told["lengths"])
    if card.has_labels(found):
        yield f"segment A   {_mean(told['segment_a_lengths'])}"
        yield from charts.text_histogram(told["segment_a_lengths"])
        yield from show_labels(found)
    if "masks" in told:
        yield from show_masks(found)
    yield f"unknown     {told['unknown_tokens']:,} tokens, {told['unknown_tokens'] / tokens:.3%}"
    if "duplicate_rows" in told:
        yield f"duplicates  {told['duplicate_rows']:,} rows with the tokens of an earlier row of their shard"
    yield "sources     by the first document of each row"
    sources = card.commonest_sources(found)
    yield from charts.text_bars(sources, sum(n for _, n in sources))
    if told.get("commonest_tokens"):
        yield "commonest   tokens of the fullest shard, a random sample"
        yield from show_commonest(told["commonest_tokens"], card.sampled_tokens(found))


def _mean(lengths: list[int]) -> str:
    quartiles = ", ".join(f"{charts.quantile(lengths, share):,}" for share in (0.25, 0.5, 0.75))
    return f"mean {charts.mean(lengths):.1f} tokens, quartiles {quartiles}"


def show_labels(found: Manifest) -> Iterator[str]:
    counts = found.statistics["labels"]
    names = (f"{label}: {name}" for label, name in enumerate(card.label_names(found)))
    error = card.coin_error(sum(counts))
    yield f"labels      {found.statistics['contradicted_labels']:,} contradicted; a fair coin: 50% ± {error:.2%} (95%)"
    yield from charts.text_bars(list(zip(names, counts, strict=True)), sum(counts))


def show_masks(found: Manifest) -> Iterator[str]:
    counts, options = found.statistics["masks"], found.options
    kind = str(options.get("masking", "token")).replace("_", " ")
    yield f"masks       {options['static_masks']} a row, {kind}: {card.mask_rate(found):.2%} of all tokens chosen"
    yield from charts.text_bars([(name, counts[fate]) for fate, name in card.FATES.items()], counts["chosen"])


def show_commonest(counts: list[tuple[str, int]], whole: int) -> Iterator[str]:
    """Four tokens a line."""
    shown = [f"{token:<12} {n / max(whole, 1):>6.2%}" for token, n in counts]
    yield from ("    " + "    ".join(shown[i : i + 4]) for i in range(0, len(shown), 4))


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
        table = shards.decode_table(data, path, shards.schema_of_pairs(data, path, vocabulary.size))
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
    """Each row as words: a space where one begins, the segments on lines of their own, then its first stored mask."""
    for row in table.to_pylist():
        pieces = [
            (" " if starts or token in vocabulary.special_ids else "") + vocabulary.readable(token)
            for token, starts in zip(row["input_ids"], row["word_starts"], strict=True)
        ]
        cut, label = row["segment_b_start"], "no label" if row["pair_label"] is None else f"label {row['pair_label']}"
        head = f"{label}  {len(pieces)} tokens  {row['document_a']:016x} {row['document_b']:016x}"
        segment_b = f"\n  B {''.join(pieces[cut:])}" if cut < len(pieces) else ""
        seen = (f"{pieces[i].strip()}>{vocabulary.readable(token)}" for i, token in card.first_mask(row).items())
        mask = f"\n  M  {'  '.join(seen)}" if card.first_mask(row) else ""
        yield f"\n{head}\n  A {''.join(pieces[:cut])}{segment_b}{mask}"


def verify(folder: str) -> Iterator[str]:
    """Check every file of a finished folder, one line each. Raises DataError naming the first that is wrong."""
    url = storage.join(folder, manifest.NAME)
    if not storage.exists(url):
        raise DataError(f"{folder} is not finished: it holds no {manifest.NAME}.")
    found = manifest.parse_manifest(storage.read(url), url)
    vocabulary = check_vocabulary(folder, found)
    for shard in found.shards:
        data = manifest.read_shard_bytes(folder, shard)
        if shard.path.endswith(".arrow"):
            check_rows(folder, found, shard, data, vocabulary)
        yield f"ok  {shard.path}  {shard.rows:,} rows"


def check_vocabulary(folder: str, found: Manifest) -> Vocabulary | None:
    """Return the vocabulary of a folder, None for text. Raises DataError when it is not the one that is stated."""
    if found.kind == "text":
        return None

    if found.kind == "pairs":
        return read_pairs_vocabulary(folder, found)

    vocabulary = read_vocabulary(folder)
    if vocabulary.fingerprint != found.fingerprint:
        raise DataError(
            f"{storage.join(folder, manifest.NAME)} states fingerprint {found.fingerprint}, but {FILE} has "
            f"{vocabulary.fingerprint}. Copy the folder again or rebuild it with --overwrite."
        )
    return vocabulary


def check_rows(folder: str, found: Manifest, shard: manifest.Shard, data: bytes, vocabulary: Vocabulary | None) -> None:
    """Check that a shard has the layout of its kind, the rows that the manifest counts, and values in range."""
    path = storage.join(folder, shard.path)
    table = shards.decode_table(data, path, row_schema(found))
    if table.num_rows != shard.rows:
        raise DataError(
            f"{path} has {table.num_rows:,} rows, but its manifest says {shard.rows:,}. Rebuild the folder."
        )
    if found.kind == "pairs" and vocabulary is not None:
        check_pairs(table, path, PairLimits.of(found, vocabulary))
    if found.kind != "vocab":  # there the fingerprint of each file is part of its sha256
        shards.check_fingerprint(table, path, shard.fingerprint)


def row_schema(found: Manifest) -> pa.Schema:
    """Return the schema that the shards of a folder have."""
    if found.kind == "text":
        return shards.TEXT
    if found.kind == "vocab":
        return shards.COUNTS
    return shards.pairs_schema(int(found.options["vocabulary_size"]), bool(found.options.get("static_masks")))
