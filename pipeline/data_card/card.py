"""card.html: one self-contained page to look at before training on a folder of pairs, and to quote afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby
from math import sqrt
from typing import Any

import pyarrow as pa

from pipeline.data_card import charts
from schemas.manifest import Manifest
from schemas.vocabulary import Vocabulary

ROWS_SHOWN = 12
SOURCES_SHOWN = 24
TITLES = {
    "nsp": "Next-sentence pairs",
    "sop": "Sentence-order pairs",
    "full_sentences": "Full sentences",
    "doc_sentences": "Sentences of one document",
}
LABELS = {
    "nsp": ("B follows A", "B from another document"),
    "sop": ("A and B in order", "A and B exchanged"),
}
FATES = {"masked": "the mask token", "kept": "the token itself", "random": "another token"}
Row = dict[str, Any]


def data_card(manifest: Manifest, sample: pa.Table, vocabulary: Vocabulary) -> str:
    """The page, from the manifest and the rows of one shard."""
    title = f"{escape(objective_title(manifest))}, at most {max_length(manifest):,} tokens"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Clozeline data card: {title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>{charts.STYLE}</style></head><body><header>'
        f'<p class="brand">Clozeline data card</p><h1>{title}</h1><p>fingerprint <code>'
        f"{escape(manifest.fingerprint)}</code></p></header>{_figures(manifest, vocabulary)}"
        f"{''.join(_sections(manifest))}{_rows(manifest, sample, vocabulary)}</body></html>\n"
    )


def max_length(manifest: Manifest) -> int:
    return int(manifest.options["max_length"])


def objective_title(manifest: Manifest) -> str:
    objective = str(manifest.options["objective"])
    return TITLES.get(objective, objective)


def label_names(manifest: Manifest) -> tuple[str, str]:
    return LABELS.get(str(manifest.options["objective"]), ("label 0", "label 1"))


def has_labels(manifest: Manifest) -> bool:
    """False for objectives of one segment, whose rows carry no label."""
    return sum(manifest.statistics["labels"]) > 0


def padded_share(manifest: Manifest) -> float:
    """How much of a batch would be padding if every row were filled up to the maximum length."""
    return 1 - manifest.totals["tokens"] / max(manifest.totals["rows"] * max_length(manifest), 1)


def coin_error(rows: int) -> float:
    """How far from one half the share of a fair coin stays in 95% of all runs of that many throws."""
    return 0.98 / sqrt(max(rows, 1))


def mask_rate(manifest: Manifest) -> float:
    """The share of all tokens, special ones included, that the stored masks chose."""
    rate = manifest.statistics["masks"]["chosen"] / int(manifest.options["static_masks"])
    return rate / max(manifest.totals["tokens"], 1)


def sampled_tokens(manifest: Manifest) -> int:
    """The tokens of the fullest shard, the one whose commonest tokens and first rows are shown."""
    return max(manifest.shards, key=lambda shard: shard.rows).tokens


def commonest_sources(manifest: Manifest) -> list[tuple[str, int]]:
    """Tokens by source, the largest first, small sources beyond a page's worth in one."""
    found = sorted(manifest.statistics["tokens_by_source"].items(), key=lambda item: (-item[1], item[0]))
    rest = found[SOURCES_SHOWN:]
    return found[:SOURCES_SHOWN] + ([(f"{len(rest)} others", sum(n for _, n in rest))] if rest else [])


def _figures(manifest: Manifest, vocabulary: Vocabulary) -> str:
    """The figures that people quote, in large type."""
    rows, tokens, found = manifest.totals["rows"], manifest.totals["tokens"], manifest.statistics
    unknown = vocabulary.tokens[vocabulary.special_id("unk")]
    shown = {
        "rows": f"{rows:,}",
        "tokens": f"{tokens:,}",
        "mean length": f"{tokens / max(rows, 1):.1f}",
        f"padding at {max_length(manifest)}": f"{padded_share(manifest):.1%}",
        f"{unknown} rate": f"{found['unknown_tokens'] / max(tokens, 1):.3%}",
    }
    if "masks" in found:
        shown["mask rate"] = f"{mask_rate(manifest):.2%}"
    if "duplicate_rows" in found:
        shown["duplicate rows"] = f"{found['duplicate_rows']:,}"
    return charts.terms(shown, "figures")


def _sections(manifest: Manifest) -> Iterator[str]:
    found, rows = manifest.statistics, manifest.totals["rows"]
    yield _section("Lengths", "Tokens in a row, special tokens included.", _lengths(manifest))
    if has_labels(manifest):
        drawn = charts.figure(found["segment_a_lengths"], "Segments A")
        yield _section("Segment A", "Tokens of A alone, without special tokens.", drawn)
        yield _section("Labels", "A fair coin decides each.", _labels(manifest))
    if "masks" in found:
        yield _section("Masks", "Stored with the rows: what the model sees at the chosen places.", _masks(manifest))
    drawn = charts.bars(commonest_sources(manifest), sum(found["tokens_by_source"].values()))
    yield _section("Sources", "Tokens by the source of a row's first document.", drawn)
    if found.get("commonest_tokens"):
        drawn = charts.bars(found["commonest_tokens"], sampled_tokens(manifest), "columns")
        yield _section("Commonest tokens", "Of the fullest shard, which is a random sample of the corpus.", drawn)
    if "duplicate_rows" in found:
        same = found["duplicate_rows"]
        drawn = f"<p><b>{same:,}</b> of {rows:,} rows, {same / max(rows, 1):.3%}.</p>"
        yield _section("Duplicate rows", "With the very tokens of an earlier row of their shard.", drawn)
    yield _section("Left out", "What was dropped or cut, and why.", _ledger(manifest))
    yield _section("Made by", "The same text, options and seed give the same bytes.", _options(manifest))


def _section(title: str, note: str, content: str) -> str:
    return f"<section><div><h2>{title}</h2><p>{note}</p></div><div>{content}</div></section>"


def _lengths(manifest: Manifest) -> str:
    counts, tokens = manifest.statistics["lengths"], manifest.totals["tokens"]
    places = manifest.totals["rows"] * max_length(manifest)
    padding = [("tokens", tokens, "full"), ("padding", places - tokens, "empty")]
    padded = f"<h3>If every row were padded to {max_length(manifest):,}</h3>{charts.split(padding)}"
    return charts.figure(counts, "Rows") + padded


def _labels(manifest: Manifest) -> str:
    counts, contradicted = manifest.statistics["labels"], manifest.statistics["contradicted_labels"]
    rows, names = sum(counts), label_names(manifest)
    share, error = counts[0] / rows, coin_error(rows)
    verdict = "<b>within</b>" if abs(share - 0.5) <= error else '<b class="bad">outside of</b>'
    return (
        charts.split([(f"{i}: {names[i]}", counts[i], "ab"[i]) for i in (0, 1)])
        + f"<h3>Label 0 on a scale around one half</h3>{charts.coin(share, error)}<p>Its share is {verdict} the "
        f"50% &plusmn; {error:.2%} where {rows:,} throws of a fair coin end 95 times in 100.</p>"
        f'<p><b class="{"bad" if contradicted else "good"}">{contradicted:,}</b> labels are contradicted by the '
        "documents and places that their segments come from.</p>"
    )


def _masks(manifest: Manifest) -> str:
    found, options = manifest.statistics["masks"], manifest.options
    kind = escape(str(options.get("masking", "token")).replace("_", " "))
    asked = f", {float(options['mask_prob']):.2%} asked for" if "mask_prob" in options else ""
    ordinary = (
        f"; <b>{found['chosen'] / found['eligible']:.2%}</b> of those not special" if found.get("eligible") else ""
    )
    return (
        charts.split([(name, found[fate], fate) for fate, name in FATES.items()])
        + f"<p>Masks a row: <b>{options['static_masks']}</b>, of the kind <b>{kind}</b>. They choose "
        f"{found['chosen']:,} tokens, <b>{mask_rate(manifest):.2%}</b> of all{asked}{ordinary}.</p>"
    )


def _ledger(manifest: Manifest) -> str:
    lines = [(entry.reason, entry.source, f"{entry.count:,}") for entry in manifest.ledger]
    return charts.table(("reason", "source", "count"), lines) if lines else "<p>Nothing.</p>"


def _options(manifest: Manifest) -> str:
    options = manifest.options
    inputs = [entry.fingerprint for entry in manifest.inputs if entry.fingerprint != options.get("vocabulary")]
    named = {"seed": manifest.seed, "shards": len(manifest.shards), **options, "text": ", ".join(filter(None, inputs))}
    shown = {name.replace("_", " "): "none" if value is None else str(value) for name, value in named.items()}
    return charts.terms({name: value for name, value in shown.items() if value}, "options")


def _rows(manifest: Manifest, sample: pa.Table, vocabulary: Vocabulary) -> str:
    rows = sample.slice(0, ROWS_SHOWN).to_pylist()
    names = label_names(manifest)
    shown = "".join(
        f'<article><div class="row">{_head(row, names)}</div><p dir="auto">{_text(row, vocabulary)}</p></article>'
        for row in rows
    )
    return f'<section class="wide"><h2>{len(rows)} rows</h2>{_legend(rows, vocabulary)}{shown}</section>'


def _legend(rows: list[Row], vocabulary: Vocabulary) -> str:
    """What the colours mean, as far as the rows hold them."""
    sep, unk, mask = (_token(vocabulary, vocabulary.special_id(role)) for role in ("sep", "unk", "mask"))
    pairs = any(row["segment_b_start"] < len(row["input_ids"]) for row in rows)
    kinds = [f'<span class="a">{"segment A" if pairs else "text"}</span>']
    kinds += ['<span class="b">segment B</span>'] * pairs
    kinds.append('<span class="a">wo<i class="piece">rd</i></span>in two tokens')
    kinds.append(f'<span class="special">{sep}</span>special token')
    kinds.append(f"<mark>{unk}</mark>unknown to the vocabulary")
    if any(first_mask(row) for row in rows):
        kinds.append(f'<ruby><b class="masked">{mask}</b><rt>word</rt></ruby>masked, its token above')
        kinds.append('<b class="kept">word</b>chosen, but kept')
        kinds.append('<ruby><b class="random">other</b><rt>word</rt></ruby>replaced by another')
    return '<ul class="legend">' + "".join(f"<li>{kind}</li>" for kind in kinds) + "</ul>"


def _head(row: Row, names: tuple[str, str]) -> str:
    """The row's label, its length and where its segments came from."""
    label = "" if row["pair_label"] is None else f"<b>{row['pair_label']}: {escape(names[row['pair_label']])}</b> "
    a, b = (f"<code>{row[name]:016x}</code>" for name in ("document_a", "document_b"))
    documents = f"document {a}" if a == b else f"documents {a} {b}"
    return f"<span>{label}{len(row['input_ids'])} tokens</span> <span>{documents}</span>"


def first_mask(row: Row) -> dict[int, int]:
    """Position -> what the model sees there, in the first of the row's stored masks."""
    positions, tokens = ((row.get(name) or [[]])[0] for name in ("mask_positions", "mask_tokens"))
    return dict(zip(positions, tokens, strict=True))


def _text(row: Row, vocabulary: Vocabulary) -> str:
    """The row's segments in their colours, special tokens between them."""
    ids, starts, seen = row["input_ids"], row["word_starts"], first_mask(row)
    between = set(vocabulary.special_ids) - {vocabulary.special_id("unk")}

    def side(place: int) -> str:
        return "special" if ids[place] in between else "b" if place >= row["segment_b_start"] else "a"

    runs = []
    for kind, places in groupby(range(len(ids)), side):
        pieces = (
            (" " if starts[i] or kind == "special" else "") + _piece(ids[i], starts[i], seen.get(i), vocabulary)
            for i in places
        )
        runs.append(f'<span class="{kind}">{"".join(pieces).strip()}</span>')
    return " ".join(runs)


def _piece(token: int, starts: bool, seen: int | None, vocabulary: Vocabulary) -> str:
    """One token: as it is, marked when unknown or, when a mask chose it, what is seen under what was there."""
    text = _token(vocabulary, token)
    if seen is None:
        drawn = f"<mark>{text}</mark>" if token == vocabulary.special_id("unk") else text
    elif seen == token:
        drawn = f'<b class="kept">{text}</b>'
    else:
        kind = "masked" if seen == vocabulary.special_id("mask") else "random"
        drawn = f'<ruby><b class="{kind}">{_token(vocabulary, seen)}</b><rt>{text}</rt></ruby>'
    return drawn if starts or token in vocabulary.special_ids else f'<i class="piece">{drawn}</i>'


def _token(vocabulary: Vocabulary, token: int) -> str:
    return escape(vocabulary.readable(token) or "\u2423")  # a byte-level token may be a space alone
