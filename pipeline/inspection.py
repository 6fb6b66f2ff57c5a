"""`inspect`: what a folder or a shard contains. It does not use Beam."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from textwrap import wrap
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.recognition import explain
from pipeline.summary import ledger_lines
from pipeline.verification import of_each
from schemas import shards, storage
from schemas.charts import bins, mean, quantile
from schemas.errors import DataError, StorageError
from schemas.folder_kinds import RESULTS_OF_JOBS, is_pipeline_folder, what_is
from schemas.manifest import ADVICE, NAME, Manifest, open_manifest, read_manifest
from schemas.shards import check_sizes
from schemas.statistics import COOCCURRENCES_SCHEMA, UNIGRAMS_SCHEMA
from schemas.terminal import LABEL_WIDTH, counted, labeled, next_is, padded
from schemas.text_facts import MAX_LISTED, DomainFacts, TextFacts, facts_of, largest_first, with_others
from schemas.urls import READ_ONLY
from schemas.vocabulary import COUNTS_FILE, TOKENIZER_FILE, VOCABULARY_FOLDER, Vocabulary, read_vocabulary
from schemas.vocabulary_kinds import VOCABULARY_KINDS

NEXT = {
    "text": "clozeline vocab --text {path} --output DIR --model wordpiece --size {size}",
    "counts": "clozeline vocab --counts {path} --output DIR --model wordpiece --size 30522",
    "vocab": "clozeline pairs --text TEXT --vocab {path} --output DIR --objective full_sentences",
    "pairs": "clozeline train --config cpu_minutes --set data.pairs={path} --set run.output=DIR",
    "statistics": "clozeline train --config RECIPE --set data.statistics={path} ...",
}
"""What to do with a finished folder, by its kind."""

WIDTH = 100  # maximum characters of a wrapped line
SHOWN_SENTENCES = 5  # of a document
SHOWN_WORD_COUNTS = (2, 3, 5, 10)
LOG2 = "log2_"  # begins the names of histograms over powers of two
TOKENS_PER_LINE = 4  # in the list of the most frequent tokens
MAX_BARS = 8  # of a histogram
BAR_WIDTH = 32  # characters of the longest bar

VOCABULARY_SIZES = ((2_000_000, 4_000), (50_000_000, 8_000), (500_000_000, 16_000))
"""(bytes of text, entries) up to which that many entries suffice."""
LARGE_VOCABULARY = 30_522

ARROW_STREAM = b"\xff" * 4
"""The first bytes of Arrow's streams, as datasets writes them. Ours are files."""


def entries_for(text_bytes: int) -> int:
    """Return the size of a vocabulary for this much text."""
    return next((entries for most, entries in VOCABULARY_SIZES if text_bytes <= most), LARGE_VOCABULARY)


def inspect_all(paths: Sequence[str], rows: int) -> Iterator[str]:
    """Yield lines on each path; for two vocabularies, on what they share.

    Raises an error as `of_each` does, or at once for a single path.
    """
    if len(paths) == 1:
        yield from inspect(paths[0], rows)
        return
    if len(paths) == 2 and all(what_is(path) == RESULTS_OF_JOBS["vocab"] for path in paths):
        yield from compare(*paths)
        return

    yield from of_each(paths, lambda path: chain(inspect(path, rows), [""]), "cannot be shown")


def inspect(path: str, rows: int) -> Iterator[str]:
    """Yield lines that say what a folder or a file is, show what is in it, and what to do next.

    Raises DataError if it does not exist, or is damaged.
    """
    is_writable = not path.startswith(READ_ONLY)  # and so may be ours
    if is_writable and path.endswith(".arrow"):
        yield from show_shard(path, rows)
        return
    if not is_writable or not is_pipeline_folder(path):
        yield from explain(path, rows)
        return

    manifest = open_manifest(path)
    try:
        yield from list(show_manifest(manifest))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{storage.join(path, NAME)} holds statistics that cannot be shown ({error!r}). {ADVICE}"
        ) from error

    try:
        check_sizes(path, manifest)
    except DataError as error:
        raise DataError(f"{error} `clozeline verify {shlex.quote(path)}` checks every file.") from error
    if manifest.kind != "vocab" and manifest.shards:
        largest = max(manifest.shards, key=lambda shard: shard.rows)
        yield from show_shard(storage.join(path, largest.path), rows)
    yield ""
    size = entries_for(manifest.totals.get("text_bytes", 0))
    yield from next_is(NEXT[manifest.kind].format(path=shlex.quote(path), size=size))


def show_shard(path: str, rows: int) -> Iterator[str]:
    """Yield the first rows of a shard, decoded. Raises DataError if it is not a readable shard."""
    data = storage.read(path)
    if data.startswith(ARROW_STREAM):  # a corpus: none of ours is one
        yield from explain(path, rows)
        return
    columns = shards.columns_of(data, path)
    folder, _, name = path.rpartition("/")
    folder = folder or "."
    yield f"\n{path}"

    if columns[: len(shards.TEXT_SCHEMA)] == shards.TEXT_SCHEMA.names:
        yield from show_text(shards.decode_text(data, path).slice(0, rows))
    elif columns == shards.COUNTS_BY_SOURCE_SCHEMA.names:
        by_source = shards.decode_table(data, path, shards.COUNTS_BY_SOURCE_SCHEMA)
        rules = name.partition("-")[0]
        shown = (kind.shown for kind in VOCABULARY_KINDS.values() if rules in kind.counted_as.values())
        yield from show_counts(by_source.slice(0, rows), next(shown, str))
    elif columns == shards.COUNTS_SCHEMA.names:
        counts = shards.decode_table(data, path, shards.COUNTS_SCHEMA)
        yield from show_counts(counts.slice(0, rows), read_vocabulary(folder).kind.shown)
    elif columns == UNIGRAMS_SCHEMA.names:
        yield from show_unigrams(shards.decode_table(data, path, UNIGRAMS_SCHEMA), rows, counted_tokens(folder))
    elif columns == COOCCURRENCES_SCHEMA.names:
        table = shards.decode_table(data, path, COOCCURRENCES_SCHEMA)
        yield from show_cooccurrences(table, rows, counted_tokens(folder))
    elif "input_ids" not in columns:
        yield from explain(path, rows)
    else:
        vocabulary = read_vocabulary(storage.join(folder, VOCABULARY_FOLDER))
        pairs = shards.decode_table(data, path, shards.schema_of_pairs(data, path, vocabulary.size))
        yield from show_pairs(pairs.slice(0, rows), vocabulary)


def counted_tokens(folder: str) -> tuple[str, ...]:
    """Return the tokens that a folder of statistics counts, by id; none if they cannot be found.

    Statistics contain no vocabulary. The pairs that were counted do, if they are still where they were.
    """
    try:
        manifest = read_manifest(folder, "statistics")
        vocabulary = read_vocabulary(storage.join(manifest.inputs[0].path, VOCABULARY_FOLDER))
    except (DataError, StorageError, LookupError):
        return ()
    if vocabulary.fingerprint != manifest.options.get("vocabulary"):
        return ()
    return tuple(vocabulary.shown(i) for i in range(vocabulary.size))


def compare(a: str, b: str) -> Iterator[str]:
    """Yield lines on what two finished vocabularies share, and how each encodes the words of the first one's text.

    Raises DataError if one of them is not a finished vocabulary.
    """
    from pipeline.vocab.report import compare_vocabularies

    for folder in (a, b):
        read_manifest(folder, "vocab")
    jsons = (storage.read(storage.join(a, TOKENIZER_FILE)), storage.read(storage.join(b, TOKENIZER_FILE)))
    url = storage.join(a, COUNTS_FILE)
    counts = shards.decode_table(storage.read(url), url, shards.COUNTS_SCHEMA)
    words = zip(counts["word"].to_pylist(), counts["count"].to_pylist(), strict=True)
    yield from compare_vocabularies(jsons, (a, b), words)


# Lines that describe a folder


def show_manifest(manifest: Manifest) -> Iterator[str]:
    """Yield the lines that describe a finished folder: totals, options, statistics, what was left out, shards."""
    yield f"{manifest.kind}  fingerprint {manifest.fingerprint}  seed {manifest.seed}"
    yield labeled("totals", "  ".join(f"{name} {count:,}" for name, count in manifest.totals.items()))
    yield _wrapped("options", "  ".join(f"{name}={value}" for name, value in manifest.options.items()))

    if manifest.kind == "pairs":
        yield from show_pair_statistics(manifest)
    elif manifest.kind == "counts":
        yield from show_rare_words(manifest)
    else:
        yield from show_statistics(manifest.statistics)

    for line in ledger_lines(manifest):
        yield labeled("ledger", line)
    total_bytes = sum(shard.bytes for shard in manifest.shards)
    yield labeled("shards", f"{len(manifest.shards)}, {total_bytes:,} bytes")


def show_rare_words(manifest: Manifest) -> Iterator[str]:
    """Yield the sources, then for each set of rules how many words each --min_word_count would leave out."""
    from pipeline.vocab.memory import THRESHOLDS, all_words, words_below  # not needed for other kinds

    yield _wrapped("sources", _as_text(manifest.statistics["sources"]))
    for name, rows in manifest.statistics["tallies"].items():
        tally = np.array(rows, dtype=np.int64)
        total = all_words(tally)
        yield f"{name}: {total.words:,} different words, {total.occurrences:,} occurrences"

        for threshold in SHOWN_WORD_COUNTS:
            below = words_below(tally, int(np.flatnonzero(threshold == THRESHOLDS)[0]))
            share = below.occurrences / max(total.occurrences, 1)
            yield f"    --min_word_count {threshold:<2} leaves out {below.words:,} of them, {share:.3%} of the text"


def show_statistics(statistics: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each statistic that is present. A table also gets a line for each entry."""
    for name, value in statistics.items():
        if value is None:
            continue
        if name == "domains":
            yield from _show_domains(DomainFacts.model_validate(value))
            continue
        if name.startswith(LOG2):
            # Example: [1, 0, 3] -> {"1": 1, "2-3": 0, "4-7": 3}
            name = name.removeprefix(LOG2)
            value = {"1" if i == 0 else f"{2**i:,}-{2 ** (i + 1) - 1:,}": count for i, count in enumerate(value)}
        if not isinstance(value, dict):
            yield _wrapped(name, _as_text(value))
            continue

        yield name
        shown = value.items()
        if len(value) > MAX_LISTED and all(isinstance(entry, int) for entry in value.values()):
            shown = largest_first(shown)
        for key, entry in shown:
            yield f"    {key:<26} {_as_text(entry)}"


def _wrapped(name: str, text: str) -> str:
    """Return a name and its text as `labeled` does, with long text wrapped and indented to the same column."""
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    lines = wrap(text, max(width - LABEL_WIDTH, 20), break_long_words=False, break_on_hyphens=False)
    return labeled(name, ("\n" + " " * LABEL_WIDTH).join(lines))


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {_as_text(entry)}" for name, entry in value.items())
    if isinstance(value, list):
        return "  ".join(map(_as_text, value))
    if type(value) is int:  # not a bool, which is an int as well
        return f"{value:,}"
    return str(value)


def show_pair_statistics(manifest: Manifest) -> Iterator[str]:
    """Yield the facts of the data card as lines."""
    from pipeline import card  # not needed for other kinds

    statistics = manifest.statistics
    text = facts_of(statistics)
    if text is not None:
        yield from _show_text_facts(text)
    padding = f"{card.padded_share(manifest):.1%} padding at {card.max_length(manifest)}"
    yield from _show_lengths("lengths", statistics["lengths"], f"; {padding}")

    if card.has_labels(manifest):
        yield from _show_lengths("segment A", statistics["segment_a_lengths"])
        yield "labels"
        names = [f"{label}: {name}" for label, name in enumerate(card.label_names(manifest))]
        yield from _bars(list(zip(names, statistics["labels"], strict=True)))
    if "masks" in statistics:
        rate = f"{card.mask_rate(manifest):.2%} of all tokens chosen"
        yield labeled("masks", f"{manifest.options['static_masks']} a row, {card.mask_kind(manifest)}: {rate}")
        yield from _bars([(name, statistics["masks"][fate]) for fate, name in card.FATES.items()])

    unknown = statistics["unknown_tokens"]
    yield labeled("unknown", f"{counted(unknown, 'token')}, {unknown / max(manifest.totals['tokens'], 1):.3%}")
    duplicates = f"{counted(statistics['duplicate_rows'], 'row')} with the tokens of an earlier row of their shard"
    yield labeled("duplicates", duplicates)
    yield labeled("sources", "by the first document of each row")
    yield from _bars(card.commonest_sources(manifest))
    if statistics["commonest_tokens"]:
        yield labeled("commonest", "tokens of the fullest shard, a random sample")
        yield from _show_commonest_tokens(manifest)


def _show_text_facts(text: TextFacts) -> Iterator[str]:
    left_out = ", ".join(f"{stage.stage} {stage.count:,}" for stage in text.left_out) or "nothing"
    documents = f"{counted(text.documents, 'document')} of {counted(text.files, 'file')}"
    yield labeled("text", f"{documents}; left out: {left_out}")
    for corpus in text.corpora:
        said = "  ".join(filter(None, [corpus.license or "license not stated", corpus.url, corpus.date]))
        yield f"    {padded(corpus.name, 26)} {corpus.documents:>15,}  {said}"
    if text.domains is not None:
        yield from _show_domains(text.domains)


def _show_domains(domains: DomainFacts) -> Iterator[str]:
    hosts = f"{counted(domains.hosts, 'host')} of {counted(domains.documents, 'document')}"
    yield labeled("domains", f"{hosts}, before copies are dropped")
    yield from _bars(with_others(domains))


def _show_lengths(name: str, lengths: list[int], more: str = "") -> Iterator[str]:
    quartiles = ", ".join(f"{quantile(lengths, share):,}" for share in (0.25, 0.5, 0.75))
    yield labeled(name, f"mean {mean(lengths):.1f} tokens, quartiles {quartiles}{more}")
    yield from _bars([(f"{first}-{last} tokens", count) for first, last, count in bins(lengths, MAX_BARS)])


def _bars(counts: Sequence[tuple[str, int]]) -> Iterator[str]:
    whole = max(sum(count for _, count in counts), 1)
    longest = max((count for _, count in counts), default=1)
    for name, count in counts:
        bar = "█" * round(BAR_WIDTH * count / max(longest, 1)) or ("▏" if count > 0 else "")
        yield f"    {name:<26} {count:>15,} {count / whole:>7.2%}  {bar}".rstrip()


def _show_commonest_tokens(manifest: Manifest) -> Iterator[str]:
    # The sample is the shard with the most rows.
    total = max(manifest.shards, key=lambda shard: shard.rows).tokens
    shares = [f"{token:<12} {count / total:>6.2%}" for token, count in manifest.statistics["commonest_tokens"]]
    for start in range(0, len(shares), TOKENS_PER_LINE):
        yield "    " + "    ".join(shares[start : start + TOKENS_PER_LINE])


# Rows


def show_counts(table: pa.Table, shown: Callable[[str], str]) -> Iterator[str]:
    """Yield a line for each row of word counts. shown: makes text of a word, as it is spelled in the counts."""
    for row in table.to_pylist():
        yield f"{row['count']:>12,}  {shown(row['word'])}"


def show_unigrams(table: pa.Table, rows: int, tokens: Sequence[str]) -> Iterator[str]:
    """Yield a line for each of the most frequent tokens: its count, and the token, or its id if it is unknown."""
    counts_V = table["count"].to_numpy()
    for token in np.argsort(-counts_V, kind="stable")[:rows]:
        yield f"{counts_V[token]:>12,}  {_token(token, tokens)}"


def show_cooccurrences(table: pa.Table, rows: int, tokens: Sequence[str]) -> Iterator[str]:
    """Yield a line for each of the token pairs with the largest weights: the weight and the two tokens.

    A token is shown by its id if `tokens` does not have it.
    """
    import pyarrow.compute as pc  # not needed for other kinds

    order = [("weight", "descending"), ("first", "ascending"), ("second", "ascending")]
    # A file may have 50 million pairs, so select the rows in Arrow: only these become Python objects.
    largest = table.take(pc.call_function("select_k_unstable", [table], pc.SelectKOptions(rows, order)))
    for row in largest.to_pylist():
        yield f"{row['weight']:>12,}  {_token(row['first'], tokens)}  {_token(row['second'], tokens)}"


def _token(number: int, tokens: Sequence[str]) -> str:
    return tokens[number] if number < len(tokens) else f"token {number}"


def show_text(table: pa.Table) -> Iterator[str]:
    """Yield the lines of each document: its id, source, language and first sentences."""
    for row in table.to_pylist():
        sentences = row["sentences"]
        language = f"  {row['language']} {row['confidence']:.2f}" if "language" in row else ""
        head = f"\n{row['document']:016x}  {row['source']}{language}  {counted(len(sentences), 'sentence')}"
        yield "\n".join([head, *(f"    {sentence}" for sentence in sentences[:SHOWN_SENTENCES])])


def show_pairs(table: pa.Table, vocabulary: Vocabulary) -> Iterator[str]:
    """Yield the lines of each row: its label and documents, segment A, segment B, then its first stored mask."""
    from pipeline.card import first_mask  # not needed for other kinds

    for row in table.to_pylist():
        pieces = _readable_pieces(row, vocabulary)
        cut = row["segment_b_start"]

        label = "no label" if row["pair_label"] is None else f"label {row['pair_label']}"
        documents = f"{row['document_a']:016x} {row['document_b']:016x}"
        lines = ["", f"{label}  {counted(len(pieces), 'token')}  {documents}"]

        lines.append("  A " + "".join(pieces[:cut]))
        if cut < len(pieces):
            lines.append("  B " + "".join(pieces[cut:]))

        mask = first_mask(row)
        if mask:
            ids = row["input_ids"]
            texts = {place: pieces[place].strip() or vocabulary.readable(ids[place]) for place in mask}
            lines.append("  M  " + "  ".join(f"{texts[i]}>{vocabulary.readable(token)}" for i, token in mask.items()))
        yield "\n".join(lines)


def _readable_pieces(row: dict[str, Any], vocabulary: Vocabulary) -> list[str]:
    """Return the tokens of a row as text, with a space before each token that begins a word."""
    ids = row["input_ids"]
    return [
        " " + piece if starts_word or token in vocabulary.special_ids else piece
        for token, piece, starts_word in zip(ids, vocabulary.readable_row(ids), row["word_starts"], strict=True)
    ]
