"""Between the halves of the shuffle: add up what workers found, decide whether it may be published, and in how many
shards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.runtime.counters import Ledger, Report, add_by_name, add_ledgers, total
from pipeline.shard.cleaning import MAX_UNBROKEN_CHARACTERS
from pipeline.shard.partition import MAX_SHARDS
from pipeline.shard.record import byte_in_words
from pipeline.shard.undecodable import refuse_undecodable, undecodable_statistics
from schemas.errors import DataError

SHARD_CHARACTERS = 8 << 20
"""Text per shard if --num_shards is not given. Its tokens and rows fit easily into one worker's memory."""

MAX_SHARD_BYTES = (1 << 31) - 1
"""Text in the largest shard: Arrow's offsets into a column have 31 bits."""

_EXCERPT_CHARACTERS = 80


@dataclass(frozen=True)
class CorpusSurvey:
    """What all runs hold together: enough to merge any shard.

    runs: names of all runs, sorted.
    rejected: names of the runs that have rejected records.
    buckets: number of buckets in each run.
    undecodable: statistics of the files with undecodable bytes.
    unbroken: count and first of the documents with many lines and no blank line.
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
    """Add up the reports of `write_runs` and choose the number of shards if `num_shards` is None.

    The choice follows from the amount of clean text, so neither the cut into files nor their compression changes it.
    Raises DataError if there is no document, if more than `max_bad_ratio` of the records are bad, if more than
    `max_undecodable_ratio` of a file's bytes are not in its encoding, or if `num_shards` is too small for the text.
    """
    runs = sorted((run for split_runs in reports for run in split_runs), key=lambda run: run["run"])
    characters = total(runs, "characters")
    text_bytes = total(runs, "text_bytes")

    # A wrong encoding comes first, because it is also a cause of bad JSON records.
    undecodable = [report for run in runs for report in run["undecodable"]]
    refuse_undecodable(undecodable, max_undecodable_ratio, characters)
    check_bad_ratio(runs, max_bad_ratio)
    if total(runs, "documents") == 0:
        raise DataError(_no_document_message(runs))

    num_shards_made = num_shards or shards_for(characters)
    if text_bytes > num_shards_made * MAX_SHARD_BYTES:
        raise _too_few_shards(num_shards_made, f"{text_bytes:,} bytes of text in {num_shards_made:,}", text_bytes)

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


def shards_for(characters: int) -> int:
    """Return the number of shards for this much text: about SHARD_CHARACTERS each, more beyond 8 GB of text.

    It is a power of two up to MAX_SHARDS, so that every shard has the same number of buckets.
    """
    power = max(0, (characters - 1) // SHARD_CHARACTERS).bit_length()
    return min(MAX_SHARDS, 1 << power)


def check_shard_bytes(text_bytes: int, name: str, num_shards: int) -> None:
    """Raise DataError if the documents of a shard have more bytes of text than Arrow holds."""
    if text_bytes > MAX_SHARD_BYTES:
        found = f"{name} has {text_bytes:,} bytes of text in one of the"
        raise _too_few_shards(num_shards, found, text_bytes * num_shards)


def _too_few_shards(num_shards: int, found: str, total_text_bytes: int) -> DataError:
    """Return the error for shards of more text than Arrow holds.

    `found` reads "... of N shards" in the message; `total_text_bytes` is the text of all shards, or an estimate.
    """
    # Half full on average, because shards differ in size.
    half_full = -(-total_text_bytes // (MAX_SHARD_BYTES // 2))
    advised = max(num_shards + 1, half_full)
    return DataError(
        f"--num_shards {num_shards} is too few: {found} shards, and a shard holds up to {MAX_SHARD_BYTES:,}. Nothing "
        f"was published. Give --num_shards {advised} or more, or leave the flag out."
    )


def unbroken_documents(runs: list[Report]) -> Report | None:
    """Return how many documents of plain text have many lines and no blank one, and the first; None without any."""
    first = next((run["first_unbroken"] for run in runs if run["unbroken"]), None)
    if first is None:
        return None
    return {"count": total(runs, "unbroken"), "first": first}


def _no_document_message(runs: list[Report]) -> str:
    """Return the error message for a corpus without documents, with what became of its records."""
    dropped = add_ledgers(run["ledger"] for run in runs)
    cleaned = add_by_name(runs, "cleaning")

    sentences = ["The input holds no document with any text in it."]
    if dropped:
        causes = ", ".join(f"{count:,} x {reason} ({source})" for reason, source, count in dropped)
        sentences.append(f"Left out: {causes}.")
    if cleaned:
        sentences.append(f"Cleaning: {', '.join(f'{rule}: {count:,}' for rule, count in cleaned.items())}.")

    if cleaned.get("long words removed"):
        sentences.append(
            f"Words of more than {MAX_UNBROKEN_CHARACTERS:,} characters without a space are removed; "
            "put spaces between words."
        )
    else:
        sentences.append("Check --format, --text_layout and --text_key.")
    return " ".join(sentences)


def check_bad_ratio(runs: list[Report], max_bad_ratio: float) -> None:
    """Raise DataError with an example if more than `max_bad_ratio` of all records were rejected."""
    bad = total(runs, "rejected")
    ratio = bad / max(1, total(runs, "documents") + bad)
    if ratio <= max_bad_ratio:
        return

    first = next(run["first_rejected"] for run in runs if run["rejected"])
    raise DataError(
        f"{ratio:.2%} of the records are bad, above --max_bad_ratio {max_bad_ratio}. The first: "
        f"{_describe_rejected(first)}. Nothing was published. {_advice_for_rejected(first)}"
    )


def _describe_rejected(rejected: Report) -> str:
    is_row = rejected["path"].endswith(".parquet")
    place = f"row {rejected['place']:,}" if is_row else byte_in_words(rejected["place"], rejected)
    description = f"{rejected['reason']}, at {place} of {rejected['path']}"
    if rejected["shown"]:
        description += f": {rejected['shown'][:_EXCERPT_CHARACTERS]!r}"
    return description


def _advice_for_rejected(rejected: Report) -> str:
    advice = "Fix the input, or raise --max_bad_ratio."
    if rejected["reason"].startswith("record above"):
        advice += " --max_document_bytes allows longer documents; --text_layout line makes each line a document."
    if rejected["reason"].startswith("line is not") and rejected["shown"].startswith(("[", "{")):
        advice += " JSON must have one object per line: jq -c '.[]' turns an array into such lines, jq -c . an object."
    return advice
