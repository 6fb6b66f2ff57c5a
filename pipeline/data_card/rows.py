"""Rows of pairs as the data card shows them: each token with its color, and how the first stored mask changed it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from schemas.vocabulary import SPACE, SPACE_SIGN, Vocabulary

Row = dict[str, Any]
"""A row of a pair shard, values by column."""


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


@dataclass(frozen=True)
class ShownRow:
    """A row on the card. label: None for rows without one. documents: ids in hexadecimal; one if both are equal."""

    label: str | None
    length: int
    documents: list[str]
    runs: list[Run]
    has_segment_b: bool
    has_mask: bool


class RowView:
    """Turns rows of pairs into the card's form, given a vocabulary and the names of the two labels."""

    def __init__(self, vocabulary: Vocabulary, label_names: tuple[str, str]):
        self._vocabulary = vocabulary
        self._label_names = label_names
        self._unknown_id = vocabulary.special_id("unk")
        self._mask_id = vocabulary.special_id("mask")
        # [UNK] stands for a word, so it belongs to its segment. The other special tokens separate segments.
        self._ids_between_segments = set(vocabulary.special_ids) - {self._unknown_id}

    def show(self, row: Row) -> ShownRow:
        """Return one row as the card shows it."""
        label = row["pair_label"]
        # A set would lose the order of the two documents.
        documents = dict.fromkeys(f"{row[column]:016x}" for column in ("document_a", "document_b"))

        return ShownRow(
            label=None if label is None else f"{label}: {self._label_names[label]}",
            length=len(row["input_ids"]),
            documents=list(documents),
            runs=self._runs(row),
            has_segment_b=row["segment_b_start"] < len(row["input_ids"]),
            has_mask=bool(first_mask(row)),
        )

    def text(self, token_id: int) -> str:
        """Return a token as text in which even a space can be seen."""
        return self._vocabulary.readable(token_id) or SPACE_SIGN

    def _texts(self, ids: list[int]) -> list[str]:
        """Return the text of each token; empty for bytes whose character a later token completes."""
        texts = []
        for token_id, piece in zip(ids, self._vocabulary.readable_row(ids), strict=True):
            texts.append(piece or ("" if self._is_part_of_character(token_id) else SPACE_SIGN))
        return texts

    def _is_part_of_character(self, token_id: int) -> bool:
        return self._vocabulary.model == "bytebpe" and bool(self._vocabulary.tokens[token_id].strip(SPACE))

    def _runs(self, row: Row) -> list[Run]:
        ids = row["input_ids"]
        texts = self._texts(ids)
        seen_ids = first_mask(row)

        def css_class(position: int) -> str:
            if ids[position] in self._ids_between_segments:
                return "special"
            return "a" if position < row["segment_b_start"] else "b"

        runs = []
        for kind, positions in groupby(range(len(ids)), css_class):
            tokens = []
            for position in positions:
                starts_word = row["word_starts"][position]
                # The template adds the spaces between runs.
                has_space_before = len(tokens) > 0 and (starts_word or kind == "special")
                seen_id = seen_ids.get(position)
                tokens.append(self._token(ids[position], texts[position], seen_id, starts_word, has_space_before))
            runs.append(Run(kind, tokens))
        return runs

    def _token(self, token_id: int, text: str, seen_id: int | None, starts_word: bool, has_space_before: bool) -> Token:
        return Token(
            text=text,
            has_space_before=has_space_before,
            is_piece=not starts_word and token_id not in self._vocabulary.special_ids,
            is_unknown=token_id == self._unknown_id,
            fate=self._fate(token_id, seen_id),
            seen=text if seen_id in (None, token_id) else self.text(seen_id),
        )

    def _fate(self, token_id: int, seen_id: int | None) -> str | None:
        """Return what the mask did to a token, or None if the mask did not choose the token."""
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
