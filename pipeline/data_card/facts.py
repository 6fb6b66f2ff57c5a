"""Facts about a folder of pairs, computed from its manifest: what the data card and `inspect` show."""

from __future__ import annotations

from math import sqrt

from schemas.manifest import Manifest

TITLES = {
    "nsp": "Next-sentence pairs",
    "sop": "Sentence-order pairs",
    "full_sentences": "Full sentences",
    "doc_sentences": "Sentences of one document",
}
"""Title of each objective on the card."""

LABELS = {
    "nsp": ("B follows A", "B from another document"),
    "sop": ("A and B in order", "A and B swapped"),
}
"""What labels 0 and 1 mean."""

FATES = {"masked": "the mask token", "kept": "the token itself", "random": "another token"}
"""What the model sees at a chosen position, keyed by the name in the statistics."""

MAX_LISTED_SOURCES = 24


def max_length(manifest: Manifest) -> int:
    """Return the maximum number of tokens in a row."""
    return int(manifest.options["max_length"])


def objective_title(manifest: Manifest) -> str:
    """Return the objective's title on the card; an unknown objective is its own title."""
    objective = str(manifest.options["objective"])
    return TITLES.get(objective, objective)


def label_names(manifest: Manifest) -> tuple[str, str]:
    """Return what labels 0 and 1 mean."""
    return LABELS.get(str(manifest.options["objective"]), ("label 0", "label 1"))


def has_labels(manifest: Manifest) -> bool:
    """Return False for objectives with one segment, whose rows carry no label."""
    return sum(manifest.statistics["labels"]) > 0


def mean_length(manifest: Manifest) -> float:
    """Return the tokens per row."""
    return manifest.totals["tokens"] / max(manifest.totals["rows"], 1)


def padded_size(manifest: Manifest) -> int:
    """Return the tokens of all rows if every row were padded to the maximum length."""
    return manifest.totals["rows"] * max_length(manifest)


def padded_share(manifest: Manifest) -> float:
    """Return the share of padding if every row were padded to the maximum length."""
    return 1 - manifest.totals["tokens"] / max(padded_size(manifest), 1)


def coin_error(rows: int) -> float:
    """Return the half-width of the 95% interval around 1/2 for the share of heads in `rows` tosses of a fair coin.

    Uses the normal approximation: 1.96 standard deviations of sqrt(1/4 / rows).
    """
    return 0.98 / sqrt(max(rows, 1))


def mask_rate(manifest: Manifest) -> float:
    """Return the share of all tokens, special ones included, that one stored mask chooses on average."""
    chosen_per_mask = manifest.statistics["masks"]["chosen"] / int(manifest.options["static_masks"])
    return chosen_per_mask / max(manifest.totals["tokens"], 1)


def sampled_tokens(manifest: Manifest) -> int:
    """Return the tokens of the shard with the most rows, whose most frequent tokens and first rows are shown."""
    return max(manifest.shards, key=lambda shard: shard.rows).tokens


def commonest_sources(manifest: Manifest) -> list[tuple[str, int]]:
    """Return (source, tokens), largest first. A last entry sums all but the first MAX_LISTED_SOURCES."""
    # Sources of equal size are sorted by name, so that the order is deterministic.
    sources = sorted(manifest.statistics["tokens_by_source"].items(), key=lambda item: (-item[1], item[0]))
    shown = sources[:MAX_LISTED_SOURCES]
    others = sources[MAX_LISTED_SOURCES:]

    if others:
        shown.append((f"{len(others)} others", sum(tokens for _, tokens in others)))
    return shown
