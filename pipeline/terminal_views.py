"""Formats manifests, rows of text and rows of pairs as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data_card import card, charts
from pipeline.summary import ledger_lines
from schemas.manifest import Manifest
from schemas.vocabulary import Vocabulary, text_of_bytes

WIDTH = 100  # maximum characters of a wrapped line
LABEL_WIDTH = 12  # width of the name before a line's content
SHOWN_SENTENCES = 5  # of a document
SHOWN_WORD_COUNTS = (2, 3, 5, 10)
LOG2 = "log2_"  # begins the names of histograms over powers of two
TOKENS_PER_LINE = 4  # in the list of the most frequent tokens


def show_manifest(manifest: Manifest) -> Iterator[str]:
    """Yield the lines that describe a finished folder: totals, options, statistics, what was left out, shards."""
    yield f"{manifest.kind}  fingerprint {manifest.fingerprint}  seed {manifest.seed}"
    yield _labeled("totals", "  ".join(f"{name} {count:,}" for name, count in manifest.totals.items()))
    yield _wrapped("options", "  ".join(f"{name}={value}" for name, value in manifest.options.items()))

    if manifest.kind == "pairs":
        yield from show_pair_statistics(manifest)
    elif manifest.kind == "counts":
        yield from show_rare_words(manifest)
    else:
        yield from show_statistics(manifest.statistics)

    for line in ledger_lines(manifest):
        yield _labeled("ledger", line)
    total_bytes = sum(shard.bytes for shard in manifest.shards)
    yield _labeled("shards", f"{len(manifest.shards)}, {total_bytes:,} bytes")


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
        if name.startswith(LOG2):
            name = name.removeprefix(LOG2)
            value = _by_range(value)
        if not isinstance(value, dict):
            yield _wrapped(name, _as_text(value))
            continue

        yield name
        for key, entry in value.items():
            yield f"    {key:<26} {_as_text(entry)}"


def _by_range(counts: list[int]) -> dict[str, int]:
    """Return a histogram over powers of two with its ranges. Example: `[1, 0, 3]` -> `{"1": 1, "2-3": 0, "4-7": 3}`."""
    return {"1" if i == 0 else f"{2**i:,}-{2 ** (i + 1) - 1:,}": count for i, count in enumerate(counts)}


def _labeled(name: str, text: str) -> str:
    """Return a name and its text, which starts at the same column in every line."""
    return f"{name:<{LABEL_WIDTH - 1}} {text}"


def _wrapped(name: str, text: str) -> str:
    """Return a name and its text as `_labeled` does, with long text wrapped and indented to the same column."""
    lines = wrap(text, WIDTH - LABEL_WIDTH, break_long_words=False, break_on_hyphens=False)
    indentation = "\n" + " " * LABEL_WIDTH
    return _labeled(name, indentation.join(lines))


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
    statistics = manifest.statistics
    padding = f"{card.padded_share(manifest):.1%} padding at {card.max_length(manifest)}"
    yield _labeled("lengths", f"{_mean_and_quartiles(statistics['lengths'])}; {padding}")
    yield from charts.text_histogram(statistics["lengths"])

    if card.has_labels(manifest):
        yield _labeled("segment A", _mean_and_quartiles(statistics["segment_a_lengths"]))
        yield from charts.text_histogram(statistics["segment_a_lengths"])
        yield from _show_labels(manifest)
    if "masks" in statistics:
        yield from _show_masks(manifest)

    yield from _show_unknown_and_duplicates(manifest)
    yield from _show_sources(manifest)
    if statistics.get("commonest_tokens"):
        yield _labeled("commonest", "tokens of the fullest shard, a random sample")
        yield from _show_commonest_tokens(statistics["commonest_tokens"], card.sampled_tokens(manifest))


def _mean_and_quartiles(lengths: list[int]) -> str:
    quartiles = ", ".join(f"{charts.quantile(lengths, share):,}" for share in (0.25, 0.5, 0.75))
    return f"mean {charts.mean(lengths):.1f} tokens, quartiles {quartiles}"


def _show_labels(manifest: Manifest) -> Iterator[str]:
    counts = manifest.statistics["labels"]
    rows = sum(counts)
    contradicted = manifest.statistics["contradicted_labels"]
    yield _labeled("labels", f"{contradicted:,} contradicted; a fair coin: 50% ± {card.coin_error(rows):.2%} (95%)")

    names = [f"{label}: {name}" for label, name in enumerate(card.label_names(manifest))]
    yield from charts.text_bars(list(zip(names, counts, strict=True)), rows)


def _show_masks(manifest: Manifest) -> Iterator[str]:
    counts = manifest.statistics["masks"]
    options = manifest.options
    kind = str(options.get("masking", "token")).replace("_", " ")
    rate = card.mask_rate(manifest)
    yield _labeled("masks", f"{options['static_masks']} a row, {kind}: {rate:.2%} of all tokens chosen")

    fates = [(name, counts[fate]) for fate, name in card.FATES.items()]
    yield from charts.text_bars(fates, counts["chosen"])


def _show_unknown_and_duplicates(manifest: Manifest) -> Iterator[str]:
    statistics = manifest.statistics
    unknown = statistics["unknown_tokens"]
    tokens = max(manifest.totals["tokens"], 1)
    yield _labeled("unknown", f"{unknown:,} tokens, {unknown / tokens:.3%}")

    # Manifests of early versions do not count duplicates.
    if "duplicate_rows" in statistics:
        duplicates = statistics["duplicate_rows"]
        yield _labeled("duplicates", f"{duplicates:,} rows with the tokens of an earlier row of their shard")


def _show_sources(manifest: Manifest) -> Iterator[str]:
    yield _labeled("sources", "by the first document of each row")
    sources = card.commonest_sources(manifest)
    yield from charts.text_bars(sources, sum(tokens for _, tokens in sources))


def _show_commonest_tokens(counts: list[tuple[str, int]], sampled_tokens: int) -> Iterator[str]:
    total = max(sampled_tokens, 1)
    shares = [f"{token:<12} {count / total:>6.2%}" for token, count in counts]
    for start in range(0, len(shares), TOKENS_PER_LINE):
        yield "    " + "    ".join(shares[start : start + TOKENS_PER_LINE])


def show_counts(table: pa.Table, is_bytebpe: bool) -> Iterator[str]:
    """Yield a line for each row of word counts, whose words may be spelled as byte-level BPE does."""
    for row in table.to_pylist():
        word = text_of_bytes(row["word"]) if is_bytebpe else row["word"]
        yield f"{row['count']:>12,}  {word}"


def show_unigrams(table: pa.Table, rows: int, tokens: Sequence[str] | None) -> Iterator[str]:
    """Yield a line for each of the most frequent tokens: its count, and the token, or its id if it is unknown."""
    counts_V = table["count"].to_numpy()
    for token in np.argsort(-counts_V, kind="stable")[:rows]:
        yield f"{counts_V[token]:>12,}  {_token(token, tokens)}"


def show_cooccurrences(table: pa.Table, rows: int, tokens: Sequence[str] | None) -> Iterator[str]:
    """Yield a line for each of the token pairs with the largest weights: the weight and the two tokens.

    A token is shown by its id if `tokens` is None or does not have it.
    """
    order = [("weight", "descending"), ("first", "ascending"), ("second", "ascending")]
    # A file may have 50 million pairs, so select the rows in Arrow: only these become Python objects.
    largest = table.take(pc.call_function("select_k_unstable", [table], pc.SelectKOptions(rows, order)))
    for row in largest.to_pylist():
        yield f"{row['weight']:>12,}  {_token(row['first'], tokens)}  {_token(row['second'], tokens)}"


def _token(number: int, tokens: Sequence[str] | None) -> str:
    if tokens is None or number >= len(tokens):
        return f"token {number}"
    return tokens[number]


def show_text(table: pa.Table) -> Iterator[str]:
    """Yield the lines of each document: its id, its source and its first sentences."""
    for row in table.to_pylist():
        sentences = row["sentences"]
        head = f"\n{row['document']:016x}  {row['source']}  {len(sentences)} sentences"
        yield "\n".join([head, *(f"    {sentence}" for sentence in sentences[:SHOWN_SENTENCES])])


def show_pairs(table: pa.Table, vocabulary: Vocabulary) -> Iterator[str]:
    """Yield the lines of each row: its label and documents, segment A, segment B, then its first stored mask."""
    for row in table.to_pylist():
        pieces = _readable_pieces(row, vocabulary)
        cut = row["segment_b_start"]

        label = "no label" if row["pair_label"] is None else f"label {row['pair_label']}"
        documents = f"{row['document_a']:016x} {row['document_b']:016x}"
        lines = ["", f"{label}  {len(pieces)} tokens  {documents}"]

        lines.append("  A " + "".join(pieces[:cut]))
        if cut < len(pieces):
            lines.append("  B " + "".join(pieces[cut:]))

        mask = card.first_mask(row)
        if mask:
            ids = row["input_ids"]
            texts = {place: pieces[place].strip() or vocabulary.readable(ids[place]) for place in mask}
            lines.append("  M  " + "  ".join(f"{texts[i]}>{vocabulary.readable(token)}" for i, token in mask.items()))
        yield "\n".join(lines)


def _readable_pieces(row: dict[str, Any], vocabulary: Vocabulary) -> list[str]:
    """Return the tokens of a row as text, with a space before each token that begins a word."""
    ids = row["input_ids"]
    pieces = []
    for token, piece, starts_word in zip(ids, vocabulary.readable_row(ids), row["word_starts"], strict=True):
        is_apart = starts_word or token in vocabulary.special_ids
        space = " " if is_apart else ""
        pieces.append(space + piece)
    return pieces
