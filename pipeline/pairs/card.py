"""card.html: one self-contained page to look at before training on a folder of pairs."""

from __future__ import annotations

from html import escape
from itertools import islice

import pyarrow as pa

from schemas.manifest import Manifest
from schemas.vocabulary import Vocabulary

ROWS_SHOWN = 12
_STYLE = """
:root{--back:#fff;--text:#1c1c22;--dim:#6b6b76;--line:#e3e3ea;--a:#dbe8ff;--b:#ffe6d1;--bar:#4c7be0;--mark:#b3261e}
@media(prefers-color-scheme:dark){:root{--back:#15161a;--text:#e9e9ee;--dim:#9a9aa6;--line:#2d2e36;--a:#1f3358;
--b:#4d3113;--bar:#6f9bff;--mark:#ff8a80}}
body{font:16px/1.5 system-ui,sans-serif;background:var(--back);color:var(--text);
max-width:60rem;margin:auto;padding:1rem}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.dim{color:var(--dim)}table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid var(--line);padding:.25rem .5rem;text-align:left}
td:last-child,th:last-child{text-align:right;font-variant-numeric:tabular-nums}
.facts{display:flex;flex-wrap:wrap;gap:1rem 2rem}.facts b{display:block;font-size:1.3rem}
svg{width:100%;height:auto;display:block}rect{fill:var(--bar)}svg text{fill:var(--dim);font-size:11px}
.row{border-bottom:1px solid var(--line);padding:.6rem 0;overflow-wrap:anywhere}
.row span{border-radius:3px;padding:0 1px}.a{background:var(--a)}.b{background:var(--b)}.s{color:var(--mark)}
"""


def data_card(manifest: Manifest, sample: pa.Table, vocabulary: Vocabulary) -> str:
    """The page, from the manifest and the rows of one shard."""
    sections = [
        _facts(manifest),
        "<h2>Lengths</h2>" + _lengths(manifest),
        "<h2>Tokens by source</h2>"
        + _table(("source", "tokens"), list(manifest.statistics["tokens_by_source"].items())),
        "<h2>Left out</h2>" + _ledger(manifest),
        f"<h2>{min(ROWS_SHOWN, sample.num_rows)} rows</h2>" + _rows(sample, vocabulary),
    ]
    title = f"Clozeline pairs: {escape(str(manifest.options['objective']))} at {manifest.options['max_length']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style><h1>{title}</h1>"
        f'<p class="dim">fingerprint {manifest.fingerprint} &middot; seed {manifest.seed}</p>' + "".join(sections)
    )


def _facts(manifest: Manifest) -> str:
    rows, tokens = manifest.totals["rows"], manifest.totals["tokens"]
    padded = rows * int(manifest.options["max_length"])
    follows, other = manifest.statistics["labels"]
    facts = {
        "rows": f"{rows:,}",
        "tokens": f"{tokens:,}",
        "shards": f"{len(manifest.shards)}",
        "padding if padded to the full length": f"{1 - tokens / padded:.1%}",
        "label 0 (in order)": f"{follows / (follows + other):.2%}",
        "label 1 (random or exchanged)": f"{other / (follows + other):.2%}",
        "labels that documents contradict": f"{manifest.statistics['contradicted_labels']}",
        "unknown tokens": f"{manifest.statistics['unknown_tokens'] / tokens:.3%}",
    }
    return (
        '<div class="facts">' + "".join(f"<div>{name}<b>{value}</b></div>" for name, value in facts.items()) + "</div>"
    )


def _lengths(manifest: Manifest) -> str:
    """A histogram of row lengths in at most 64 bars."""
    counts = manifest.statistics["lengths"]
    width = -(-len(counts) // 64)
    bars = [sum(counts[i : i + width]) for i in range(0, len(counts), width)]
    top = max(bars)
    step = 640 / len(bars)
    drawn = "".join(
        f'<rect x="{i * step:.1f}" y="{100 - 100 * n / top:.1f}" width="{step * 0.8:.1f}" height="{100 * n / top:.1f}">'
        f"<title>{i * width} to {i * width + width - 1} tokens: {n:,} rows</title></rect>"
        for i, n in enumerate(bars)
    )
    ends = f'<text x="0" y="114">0</text><text x="640" y="114" text-anchor="end">{len(counts) - 1} tokens</text>'
    return f'<svg viewBox="0 0 640 120" role="img" aria-label="Rows by length">{drawn}{ends}</svg>'


def _table(head: tuple[str, ...], rows: list[tuple[str, int]] | list[tuple[str, str, int]]) -> str:
    cells = "".join(
        "<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row[:-1]) + f"<td>{row[-1]:,}</td></tr>" for row in rows
    )
    return "<table><tr>" + "".join(f"<th>{name}</th>" for name in head) + f"</tr>{cells}</table>"


def _ledger(manifest: Manifest) -> str:
    if not manifest.ledger:
        return '<p class="dim">Nothing.</p>'
    return _table(("reason", "source", "count"), [(e.reason, e.source, e.count) for e in manifest.ledger])


def _rows(sample: pa.Table, vocabulary: Vocabulary) -> str:
    specials = set(vocabulary.special_ids)
    shown = []
    for row in islice(sample.slice(0, ROWS_SHOWN).to_pylist(), ROWS_SHOWN):
        pieces = []
        for place, token in enumerate(row["input_ids"]):
            kind = "s" if token in specials else "b" if place >= row["segment_b_start"] else "a"
            space = " " if row["word_starts"][place] or token in specials else ""
            pieces.append(f'{space}<span class="{kind}">{escape(vocabulary.readable(token))}</span>')
        shown.append(
            f'<div class="row"><div class="dim">label {row["pair_label"]} &middot; {len(row["input_ids"])} tokens '
            f"&middot; documents {row['document_a']:016x}, {row['document_b']:016x}</div>{''.join(pieces)}</div>"
        )
    return "".join(shown)
