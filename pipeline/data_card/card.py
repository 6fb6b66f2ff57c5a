"""card.html: one page about a folder of pairs, to check before training on it and to cite later.

This module computes the contents of the page; templates/card.html renders it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pipeline.data_card.charts import Bar, Coin, Part, bars, coin, histogram, split
from pipeline.data_card.facts import (
    FATES,
    coin_error,
    commonest_sources,
    has_labels,
    label_names,
    mask_rate,
    max_length,
    mean_length,
    objective_title,
    padded_share,
    padded_size,
)
from pipeline.data_card.facts import sampled_tokens as sampled_tokens  # the terminal's views import it from here
from pipeline.data_card.rows import RowView
from pipeline.data_card.rows import first_mask as first_mask  # the terminal's views import it from here
from schemas.manifest import Manifest
from schemas.pages import render
from schemas.vocabulary import Vocabulary

MAX_SAMPLE_ROWS = 12
"""Number of rows that the card shows."""


@dataclass(frozen=True)
class Labels:
    """The section about labels. coin: the share of label 0. contradicted: labels that the documents contradict."""

    parts: list[Part]
    coin: Coin
    rows: int
    contradicted: int


@dataclass(frozen=True)
class MaskSection:
    """The section about stored masks. ordinary_rate: the share of non-special tokens. Rates are None if unknown."""

    parts: list[Part]
    per_row: int
    kind: str
    chosen: int
    rate: float
    requested_rate: float | None
    ordinary_rate: float | None


def data_card(manifest: Manifest, sample: pa.Table, vocabulary: Vocabulary) -> str:
    """Return the page as HTML, from a folder's manifest and the rows of its shard with the most rows."""
    statistics = manifest.statistics
    row_view = RowView(vocabulary, label_names(manifest))

    return render(
        "pipeline.data_card",
        "card.html",
        title=f"{objective_title(manifest)}, at most {max_length(manifest):,} tokens",
        manifest=manifest,
        figures=_figures(manifest, vocabulary),
        lengths=histogram(statistics["lengths"]),
        padding=_padding(manifest),
        max_length=max_length(manifest),
        segment_a=histogram(statistics["segment_a_lengths"]) if has_labels(manifest) else None,
        labels=_labels(manifest) if has_labels(manifest) else None,
        masks=_masks(manifest) if "masks" in statistics else None,
        sources=bars(commonest_sources(manifest), sum(statistics["tokens_by_source"].values())),
        commonest_tokens=_commonest_tokens(manifest, sample),
        duplicate_rows=statistics.get("duplicate_rows"),
        ledger=[(entry.reason, entry.source, f"{entry.count:,}") for entry in manifest.ledger],
        options=_options(manifest),
        rows=[row_view.show(row) for row in sample.slice(0, MAX_SAMPLE_ROWS).to_pylist()],
        special={role: row_view.text(vocabulary.special_id(role)) for role in ("sep", "unk", "mask")},
    )


def _figures(manifest: Manifest, vocabulary: Vocabulary) -> dict[str, str]:
    """Return the figures that people cite, formatted, by name."""
    statistics = manifest.statistics
    tokens = manifest.totals["tokens"]
    unknown = vocabulary.tokens[vocabulary.special_id("unk")]

    figures = {
        "rows": f"{manifest.totals['rows']:,}",
        "tokens": f"{tokens:,}",
        "mean length": f"{mean_length(manifest):.1f}",
        f"padding at {max_length(manifest)}": f"{padded_share(manifest):.1%}",
        f"{unknown} rate": f"{statistics['unknown_tokens'] / max(tokens, 1):.3%}",
    }
    if "masks" in statistics:
        figures["mask rate"] = f"{mask_rate(manifest):.2%}"
    if "duplicate_rows" in statistics:
        figures["duplicate rows"] = f"{statistics['duplicate_rows']:,}"
    return figures


def _padding(manifest: Manifest) -> list[Part]:
    """Return the shares of tokens and padding if every row were padded to the maximum length."""
    tokens = manifest.totals["tokens"]
    padding = padded_size(manifest) - tokens
    return split([("tokens", tokens, "full"), ("padding", padding, "empty")])


def _labels(manifest: Manifest) -> Labels:
    counts = manifest.statistics["labels"]
    rows = sum(counts)
    name_0, name_1 = label_names(manifest)

    return Labels(
        parts=split([(f"0: {name_0}", counts[0], "a"), (f"1: {name_1}", counts[1], "b")]),
        coin=coin(counts[0] / rows, coin_error(rows)),
        rows=rows,
        contradicted=manifest.statistics["contradicted_labels"],
    )


def _masks(manifest: Manifest) -> MaskSection:
    counts = manifest.statistics["masks"]
    options = manifest.options

    # Early manifests record neither the requested rate nor how many tokens a mask may choose.
    requested_rate = float(options["mask_prob"]) if "mask_prob" in options else None
    ordinary_rate = counts["chosen"] / counts["eligible"] if counts.get("eligible") else None

    return MaskSection(
        parts=split([(name, counts[fate], fate) for fate, name in FATES.items()]),
        per_row=options["static_masks"],
        kind=str(options.get("masking", "token")).replace("_", " "),
        chosen=counts["chosen"],
        rate=mask_rate(manifest),
        requested_rate=requested_rate,
        ordinary_rate=ordinary_rate,
    )


def _commonest_tokens(manifest: Manifest, sample: pa.Table) -> list[Bar]:
    """Return bars of the most frequent tokens; none if the manifest, as an early one, does not count them."""
    counts = manifest.statistics.get("commonest_tokens")
    if not counts:
        return []
    return bars(counts, len(sample["input_ids"].combine_chunks().flatten()))


def _options(manifest: Manifest) -> dict[str, str]:
    """Return everything that determines the pairs, formatted, by name. Inputs are fingerprints, without paths."""
    options = manifest.options
    texts = [entry.fingerprint for entry in manifest.inputs if entry.fingerprint != options.get("vocabulary")]
    values = {
        "seed": manifest.seed,
        "shards": manifest.num_shards,
        **options,
        "text": ", ".join(text for text in texts if text),
    }

    shown = {}
    for name, value in values.items():
        text = "none" if value is None else str(value)
        if text:
            shown[name.replace("_", " ")] = text
    return shown
