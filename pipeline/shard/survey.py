"""Between the halves of the shuffle: what workers found, whether it may be published, how many shards it makes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.reports import Ledger, Report, add_by_name, add_ledgers, total
from pipeline.shard.spread import MAX_SHARDS
from schemas.errors import DataError

SHARD_CHARACTERS = 8 << 20  # a shard's worth of tokens and rows fits easily into one worker's memory


@dataclass(frozen=True)
class Corpus:
    """What `spread` found in all: enough to gather any shard. `rejected` names the runs that rejected records."""

    runs: tuple[str, ...]
    rejected: tuple[str, ...]
    buckets: int
    num_shards: int
    ledger: Ledger
    cleaning: dict[str, int]


def survey(reports: Iterable[list[Report]], num_shards: int | None, max_bad_ratio: float) -> Corpus:
    """Add up the runs and decide the number of shards from the cleaned text, which files and compression do not change.

    Raises DataError when there is no document, or when more than `max_bad_ratio` of the records were bad.
    """
    runs = sorted((run for report in reports for run in report), key=lambda run: run["run"])
    check_bad_ratio(runs, max_bad_ratio)
    if total(runs, "documents") == 0:
        raise DataError(
            "The input holds no document with any text in it. Check --format, --text_layout and --text_key."
        )
    return Corpus(
        runs=tuple(run["run"] for run in runs),
        rejected=tuple(run["run"] for run in runs if run["rejected"]),
        buckets=num_shards or MAX_SHARDS,
        num_shards=num_shards or shards_for(total(runs, "characters")),
        ledger=add_ledgers(run["ledger"] for run in runs),
        cleaning=add_by_name(runs, "cleaning"),
    )


def check_bad_ratio(runs: list[Report], max_bad_ratio: float) -> None:
    """Raises DataError with an example when too many records were rejected."""
    bad = total(runs, "rejected")
    ratio = bad / max(1, total(runs, "documents") + bad)
    if ratio > max_bad_ratio:
        example = next(run["first_rejected"] for run in runs if run["rejected"])
        raise DataError(
            f"{ratio:.2%} of the records are bad, above --max_bad_ratio {max_bad_ratio}. The first: "
            f"{example['reason']}, at {example['place']:,} of {example['path']}: {example['shown'][:80]!r}. "
            "Nothing was published. Mend the input, or raise --max_bad_ratio."
        )


def shards_for(characters: int) -> int:
    """A power of two, so that it divides MAX_SHARDS buckets: about SHARD_CHARACTERS a shard, more beyond 8 GB."""
    return min(MAX_SHARDS, 1 << max(0, (characters - 1) // SHARD_CHARACTERS).bit_length())
