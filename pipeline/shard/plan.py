"""Between the halves of the shuffle: what workers found, whether it may be published, how many shards it makes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.runtime.counters import Ledger, Report, add_by_name, add_ledgers, total
from pipeline.shard.cleaning import MAX_WORD
from pipeline.shard.partition import MAX_SHARDS
from pipeline.shard.undecodable import refuse_undecodable, undecodable_statistics
from schemas.errors import DataError

SHARD_CHARACTERS = 8 << 20  # a shard's worth of tokens and rows fits easily into one worker's memory
MAX_SHARD_BYTES = (1 << 31) - 1  # of text: Arrow's offsets into a column have 31 bits


@dataclass(frozen=True)
class CorpusSurvey:
    """What `spread` found in all: enough to gather any shard. `rejected` names the runs that rejected records.

    `undecodable` names the files with a few undecodable bytes, `unbroken` describes documents of many lines.
    """

    runs: tuple[str, ...]
    rejected: tuple[str, ...]
    buckets: int
    num_shards: int
    ledger: Ledger
    cleaning: dict[str, int]
    undecodable: Report | None = None
    unbroken: Report | None = None


def plan_shards(
    reports: Iterable[list[Report]],
    num_shards: int | None,
    max_bad_ratio: float,
    max_undecodable_ratio: float = 1.0,
) -> CorpusSurvey:
    """Add up the runs and decide the number of shards from the cleaned text, which files and compression do not change.

    Raises DataError when there is no document, when more than `max_bad_ratio` of the records were bad, when more than
    `max_undecodable_ratio` of a file's bytes are not in its encoding, or when `num_shards` are too few for the text.
    """
    runs = sorted((run for report in reports for run in report), key=lambda run: run["run"])
    undecodable = [report for run in runs for report in run["undecodable"]]
    # First, for it is why records of JSON are bad.
    refuse_undecodable(undecodable, max_undecodable_ratio, total(runs, "characters"))
    check_bad_ratio(runs, max_bad_ratio)
    if total(runs, "documents") == 0:
        raise DataError(nothing_left(runs))

    num_shards_made = num_shards or shards_for(total(runs, "characters"))
    text_bytes = total(runs, "text_bytes")
    if text_bytes > num_shards_made * MAX_SHARD_BYTES:
        raise too_few_shards(num_shards_made, f"{text_bytes:,} bytes of text in {num_shards_made:,}", text_bytes)
    return CorpusSurvey(
        runs=tuple(run["run"] for run in runs),
        rejected=tuple(run["run"] for run in runs if run["rejected"]),
        buckets=num_shards or MAX_SHARDS,
        num_shards=num_shards_made,
        ledger=add_ledgers(run["ledger"] for run in runs),
        cleaning=add_by_name(runs, "cleaning"),
        undecodable=undecodable_statistics(undecodable),
        unbroken=unbroken_documents(runs),
    )


def too_few_shards(num_shards: int, found: str, text_bytes: int) -> DataError:
    """The error for shards of more text than Arrow holds; `text_bytes` is the text of all shards, or an estimate."""
    advised = max(num_shards + 1, -(-text_bytes // (MAX_SHARD_BYTES // 2)))  # half full, for shards differ
    return DataError(
        f"--num_shards {num_shards} is too few: {found} shards, and a shard holds up to {MAX_SHARD_BYTES:,}. Nothing "
        f"was published. Give --num_shards {advised} or more, or leave the flag out."
    )


def check_shard_bytes(text_bytes: int, name: str, num_shards: int) -> None:
    """Raise DataError when the documents of a shard have more bytes of text than Arrow holds."""
    if text_bytes > MAX_SHARD_BYTES:
        raise too_few_shards(
            num_shards, f"{name} has {text_bytes:,} bytes of text in one of the", text_bytes * num_shards
        )


def unbroken_documents(runs: list[Report]) -> Report | None:
    """How many documents of plain text have many lines and no blank one, and the first of them."""
    first = next((run["first_unbroken"] for run in runs if run["unbroken"]), None)
    return None if first is None else {"count": total(runs, "unbroken"), "first": first}


def nothing_left(runs: list[Report]) -> str:
    """Why no document is left, out of what became of the records."""
    causes = [f"{count:,} x {reason} ({source})" for reason, source, count in add_ledgers(r["ledger"] for r in runs)]
    cleaning = [f"{rule}: {count:,}" for rule, count in add_by_name(runs, "cleaning").items()]
    message = "The input holds no document with any text in it. "
    if causes:
        message += f"Left out: {', '.join(causes)}. "
    if cleaning:
        message += f"Cleaning: {', '.join(cleaning)}. "
    if any(run["cleaning"].get("long words removed") for run in runs):
        return (
            message
            + f"A word of more than {MAX_WORD:,} characters without a space is removed; put spaces between words."
        )
    return message + "Check --format, --text_layout and --text_key."


def check_bad_ratio(runs: list[Report], max_bad_ratio: float) -> None:
    """Raises DataError with an example when too many records were rejected."""
    bad = total(runs, "rejected")
    ratio = bad / max(1, total(runs, "documents") + bad)
    if ratio > max_bad_ratio:
        example = next(run["first_rejected"] for run in runs if run["rejected"])
        where = (
            f"at {'row' if example['path'].endswith('.parquet') else 'byte'} {example['place']:,} of {example['path']}"
        )
        looks = f": {example['shown'][:80]!r}" if example["shown"] else ""
        advice = "Fix the input, or raise --max_bad_ratio."
        if example["reason"].startswith("record above"):
            advice += " Documents may be longer with --max_document_bytes; --text_layout line makes each line one."
        if example["reason"].startswith("line is not") and example["shown"].startswith(("[", "{")):
            advice += (
                " JSON must have one object a line: jq -c '.[]' turns an array into such lines, jq -c . an object."
            )
        raise DataError(
            f"{ratio:.2%} of the records are bad, above --max_bad_ratio {max_bad_ratio}. The first: "
            f"{example['reason']}, {where}{looks}. Nothing was published. {advice}"
        )


def shards_for(characters: int) -> int:
    """A power of two, so that it divides MAX_SHARDS buckets: about SHARD_CHARACTERS a shard, more beyond 8 GB."""
    return min(MAX_SHARDS, 1 << max(0, (characters - 1) // SHARD_CHARACTERS).bit_length())
