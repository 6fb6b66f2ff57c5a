"""What readers need from the open tables of a manifest: options, totals and statistics, by kind of folder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.manifest_entries import Count, FolderKind, Hex


class _Needed(BaseModel):
    """Fields that readers need; a manifest may have others too."""

    model_config = ConfigDict(extra="allow", strict=True)


class _PairOptions(_Needed):
    objective: Literal["nsp", "sop", "full_sentences", "doc_sentences"]
    max_length: Annotated[int, Field(gt=0, lt=2**31)]
    static_masks: Count = 0
    vocabulary: Hex
    vocabulary_size: Annotated[int, Field(gt=0, lt=2**31)]


class _PairTotals(_Needed):
    rows: Count
    tokens: Count


class _PairStatistics(_Needed):
    lengths: list[Count]


class _Pairs(_Needed):
    options: _PairOptions
    totals: _PairTotals
    statistics: _PairStatistics


class _TextTotals(_Needed):
    text_bytes: Count


class _TextStatistics(_Needed):
    documents_by_source: dict[str, Count]


class _CountsOptions(_Needed):
    partitions: Annotated[int, Field(gt=0, lt=2**31)]


class _CountsStatistics(_Needed):
    sources: list[str]
    tallies: dict[str, list[list[Count]]]


class _Counts(_Needed):
    options: _CountsOptions
    statistics: _CountsStatistics


class _StatisticsOptions(_Needed):
    vocabulary: Hex
    vocabulary_size: Annotated[int, Field(gt=0, lt=2**31)]
    window: Annotated[int, Field(gt=0, lt=2**31)]


class _Statistics(_Needed):
    options: _StatisticsOptions


class _Text(_Needed):
    totals: _TextTotals
    statistics: _TextStatistics


NEEDED: dict[FolderKind, type[BaseModel]] = {
    "text": _Text,
    "counts": _Counts,
    "vocab": _Needed,
    "pairs": _Pairs,
    "statistics": _Statistics,
}
"""What readers of each kind need from a manifest's open tables, beyond the fields that all kinds share."""
