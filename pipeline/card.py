"""card.html: one page about a folder of pairs, to check before training on it and to cite later.

This module computes the contents of the page; templates/card.html renders it. `inspect` shows the same facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.text_card import came_in
from schemas.charts import Part, bars, histogram, split
from schemas.manifest import Manifest
from schemas.pages import render
from schemas.text_facts import MAX_LISTED, facts_of, largest_first
from schemas.vocabulary import Vocabulary
from schemas.vocabulary_kinds import SPACE, SPACE_SIGN

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
"""What labels 0 and 1 mean, for objectives whose rows have labels."""

FATES = {"masked": "the mask token", "kept": "the token itself", "random": "another token"}
"""What the model sees at a chosen position, keyed by the name in the statistics."""

MAX_SAMPLE_ROWS = 12
"""Number of rows that the card shows."""


Row = dict[str, Any]
"""A row of a pair shard, values by column."""


def data_card(manifest: Manifest, sample: pa.Table, vocabulary: Vocabulary) -> str:
    """Return the page as HTML, from a folder's manifest and the rows of its shard with the most rows."""
    statistics = manifest.statistics
    sampled_tokens = len(sample["input_ids"].combine_chunks().flatten())
    row_view = RowView(vocabulary, label_names(manifest))
    text = facts_of(manifest.statistics)

    return render(
        "pipeline",
        "card.html",
        title=f"{TITLES[manifest.options['objective']]}, at most {max_length(manifest):,} tokens",
        manifest=manifest,
        figures=_figures(manifest, vocabulary),
        came_in=None if text is None else came_in(text),
        lengths=histogram(statistics["lengths"]),
        padding=split([("tokens", manifest.totals["tokens"], "full"), ("padding", padding(manifest), "empty")]),
        max_length=max_length(manifest),
        segment_a=histogram(statistics["segment_a_lengths"]) if has_labels(manifest) else None,
        labels=_labels(manifest) if has_labels(manifest) else None,
        masks=_masks(manifest) if "masks" in statistics else None,
        sources=bars(commonest_sources(manifest), sum(statistics["tokens_by_source"].values())),
        commonest_tokens=bars(statistics["commonest_tokens"], sampled_tokens),
        duplicate_rows=statistics["duplicate_rows"],
        ledger=_ledger(manifest),
        options=_options(manifest),
        rows=[row_view.show(row) for row in sample.slice(0, MAX_SAMPLE_ROWS).to_pylist()],
        special={role: row_view.text(vocabulary.special_id(role)) for role in ("sep", "unk", "mask")},
    )


def _ledger(manifest: Manifest) -> list[tuple[str, str, str]]:
    """Return (reason, source, count), of many the most frequent and a sum of the rest; ledger.parquet has them all."""
    entries = manifest.ledger
    if len(entries) > MAX_LISTED:
        entries = sorted(entries, key=lambda entry: -entry.count)
    shown = [(entry.reason, entry.source, f"{entry.count:,}") for entry in entries[:MAX_LISTED]]
    others = entries[MAX_LISTED:]
    return shown + ([(f"{len(others):,} others", "", f"{sum(one.count for one in others):,}")] if others else [])


# Facts


def max_length(manifest: Manifest) -> int:
    """Return the maximum number of tokens in a row."""
    return int(manifest.options["max_length"])


def label_names(manifest: Manifest) -> tuple[str, str]:
    """Return what labels 0 and 1 mean; empty names for rows without labels."""
    return LABELS.get(manifest.options["objective"], ("", ""))


def has_labels(manifest: Manifest) -> bool:
    """Return False for objectives with one segment, whose rows carry no label."""
    return sum(manifest.statistics["labels"]) > 0


def padding(manifest: Manifest) -> int:
    """Return the padding tokens if every row were padded to the maximum length."""
    return manifest.totals["rows"] * max_length(manifest) - manifest.totals["tokens"]


def padded_share(manifest: Manifest) -> float:
    """Return the share of padding if every row were padded to the maximum length."""
    return 1 - manifest.totals["tokens"] / max(manifest.totals["rows"] * max_length(manifest), 1)


def mask_rate(manifest: Manifest) -> float:
    """Return the share of all tokens, special ones included, that one stored mask chooses on average."""
    chosen_per_mask = manifest.statistics["masks"]["chosen"] / int(manifest.options["static_masks"])
    return chosen_per_mask / max(manifest.totals["tokens"], 1)


def mask_kind(manifest: Manifest) -> str:
    """Return the kind of the stored masks in words."""
    return str(manifest.options["masking"]).replace("_", " ")


def commonest_sources(manifest: Manifest) -> list[tuple[str, int]]:
    """Return (source, tokens), largest first, then a sum of the others."""
    return largest_first(manifest.statistics["tokens_by_source"].items())


# Sections


def _figures(manifest: Manifest, vocabulary: Vocabulary) -> dict[str, str]:
    statistics = manifest.statistics
    rows = manifest.totals["rows"]
    tokens = manifest.totals["tokens"]
    unknown = vocabulary.tokens[vocabulary.special_id("unk")]

    figures = {
        "rows": f"{rows:,}",
        "tokens": f"{tokens:,}",
        "mean length": f"{tokens / max(rows, 1):.1f}",
        f"padding at {max_length(manifest)}": f"{padded_share(manifest):.1%}",
        f"{unknown} rate": f"{statistics['unknown_tokens'] / max(tokens, 1):.3%}",
    }
    if "masks" in statistics:
        figures["mask rate"] = f"{mask_rate(manifest):.2%}"
    figures["duplicate rows"] = f"{statistics['duplicate_rows']:,}"
    return figures


def _labels(manifest: Manifest) -> list[Part]:
    counts = manifest.statistics["labels"]
    name_0, name_1 = label_names(manifest)
    return split([(f"0: {name_0}", counts[0], "a"), (f"1: {name_1}", counts[1], "b")])


def _masks(manifest: Manifest) -> dict[str, Any]:
    counts = manifest.statistics["masks"]
    options = manifest.options
    return {
        "parts": split([(name, counts[fate], fate) for fate, name in FATES.items()]),
        "per_row": options["static_masks"],
        "kind": mask_kind(manifest),
        "chosen": counts["chosen"],
        "rate": mask_rate(manifest),
        "requested_rate": options["mask_prob"],
        "ordinary_rate": counts["chosen"] / max(counts["eligible"], 1),
    }


def _options(manifest: Manifest) -> dict[str, str]:
    """Return everything that determines the pairs, formatted, by name. Inputs are fingerprints, without paths."""
    options = manifest.options
    texts = [entry.fingerprint for entry in manifest.inputs if entry.fingerprint != options["vocabulary"]]
    idle = () if options.get("static_masks") else ("static_masks", "masking", "mask_prob", "max_predictions")
    values = {
        "seed": manifest.seed,
        "shards": manifest.num_shards,
        **{name: value for name, value in options.items() if name not in idle},
        "text": ", ".join(text for text in texts if text),
    }

    shown = {name.replace("_", " "): "none" if value is None else str(value) for name, value in values.items()}
    return {name: text for name, text in shown.items() if text}


# Rows


@dataclass(frozen=True)
class Token:
    """One token of a row.

    has_space_before: whether a space separates it from the previous token. is_piece: whether it continues a word.
    fate: "masked", "kept" or "random" if the mask chose the token, otherwise None. seen: what the model sees.
    """

    text: str
    has_space_before: bool
    is_piece: bool
    is_unknown: bool
    fate: str | None
    seen: str


@dataclass(frozen=True)
class Run:
    """Neighboring tokens with one CSS class: "special", or "a" or "b" for their segment."""

    css_class: str
    tokens: list[Token]


class RowView:
    """Turns rows of pairs into the card's form: tokens with colors, and how the first stored mask changed them."""

    def __init__(self, vocabulary: Vocabulary, label_names: tuple[str, str]):
        self._vocabulary = vocabulary
        self._label_names = label_names
        self._unknown_id = vocabulary.special_id("unk")
        self._mask_id = vocabulary.special_id("mask")
        # [UNK] stands for a word, so it belongs to its segment. The other special tokens separate segments.
        self._ids_between_segments = set(vocabulary.special_ids) - {self._unknown_id}

    def show(self, row: Row) -> dict[str, Any]:
        """Return one row as the card shows it: its label, if it has one, and its documents' ids in hexadecimal."""
        label = row["pair_label"]
        # A set would lose the order of the two documents.
        documents = dict.fromkeys(f"{row[column]:016x}" for column in ("document_a", "document_b"))

        return {
            "label": None if label is None else f"{label}: {self._label_names[label]}",
            "length": len(row["input_ids"]),
            "documents": list(documents),
            "runs": self._runs(row),
            "has_segment_b": row["segment_b_start"] < len(row["input_ids"]),
            "has_mask": bool(first_mask(row)),
        }

    def text(self, token_id: int) -> str:
        """Return a token as text in which even a space can be seen."""
        return self._vocabulary.readable(token_id) or SPACE_SIGN

    def _runs(self, row: Row) -> list[Run]:
        texts = self._texts(row["input_ids"])
        seen_ids = first_mask(row)

        runs: list[Run] = []
        for position, token_id in enumerate(row["input_ids"]):
            css_class = self._css_class(row, position)
            begins_run = not runs or runs[-1].css_class != css_class
            if begins_run:
                runs.append(Run(css_class, []))

            starts_word = row["word_starts"][position]
            seen_id = seen_ids.get(position)
            token = Token(
                text=texts[position],
                # The template adds the spaces between runs.
                has_space_before=not begins_run and (starts_word or css_class == "special"),
                is_piece=not starts_word and token_id not in self._vocabulary.special_ids,
                is_unknown=token_id == self._unknown_id,
                fate=self._fate(token_id, seen_id),
                seen=texts[position] if seen_id is None or seen_id == token_id else self.text(seen_id),
            )
            runs[-1].tokens.append(token)
        return runs

    def _css_class(self, row: Row, position: int) -> str:
        if row["input_ids"][position] in self._ids_between_segments:
            return "special"
        return "a" if position < row["segment_b_start"] else "b"

    def _texts(self, ids: list[int]) -> list[str]:
        """Return the text of each token; empty for bytes whose character a later token completes."""
        texts = []
        for token_id, piece in zip(ids, self._vocabulary.readable_row(ids), strict=True):
            is_byte = self._vocabulary.kind.is_byte_level and self._vocabulary.tokens[token_id].strip(SPACE)
            texts.append(piece or ("" if is_byte else SPACE_SIGN))
        return texts

    def _fate(self, token_id: int, seen_id: int | None) -> str | None:
        if seen_id is None:
            return None
        if seen_id == token_id:
            return "kept"
        return "masked" if seen_id == self._mask_id else "random"


def first_mask(row: Row) -> dict[int, int]:
    """Return the first of the row's stored masks as {position: id that the model sees there}; empty without masks."""
    if not row.get("mask_positions"):
        return {}
    return dict(zip(row["mask_positions"][0], row["mask_tokens"][0], strict=True))
