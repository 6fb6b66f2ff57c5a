"""Between the shuffle's halves: adds up what workers found, and decides whether it is published, in how many shards.

Reports are added up pairwise on workers (`add_runs`), so no worker needs the reports of all runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.commit.reports import Ledger, Report, add_by_name, add_ledgers, total
from pipeline.readers.formats import advice_on
from pipeline.readers.record import place_in_words
from pipeline.readers.table import remedy_of
from pipeline.readers.undecodable import refuse_undecodable, reports_by_file, undecodable_statistics
from pipeline.shard.run_buffer import add_encodings
from pipeline.shard.text_layout import paragraphs_among
from pipeline.shard.write_runs import RUN_BUCKETS
from schemas.errors import DataError

SMALL_SHARD_BYTES = 8 << 20
"""Bytes of text per shard of a small corpus, so that a machine with many cores has enough shards to work on."""

MANY_SHARDS = 1024
"""Once there are this many shards, they grow to --shard_megabytes before there are more of them."""

MAX_SHARD_BYTES = (1 << 31) - 1
"""Maximum bytes of text in a shard: Arrow's offsets into a column have 31 bits."""

MAX_READS = 4_000_000
"""Maximum ranges that all shards together read, one for each shard and run. Above it, runs are merged first."""

_EXCERPT_CHARACTERS = 80
_LISTED_REASONS = 5


@dataclass(frozen=True)
class CorpusSurvey:
    """What all runs contain together.

    documents: their number. merges_runs: whether runs are merged first, because there are many runs or shards.
    rejected_runs: names of the runs that have rejected records.
    undecodable: statistics of the files with undecodable bytes.
    encodings: with --encoding auto, {name: {"files": number, "first": path}}.
    unbroken: number and first of the documents with many lines but no blank line.
    paragraphs: as `paragraphs_among` returns them.
    domains: as `add_domains` returns them; None without URLs, and until they are added up.
    """

    documents: int
    num_shards: int
    merges_runs: bool
    rejected_runs: tuple[str, ...]
    ledger: Ledger
    cleaning: dict[str, int]
    undecodable: Report | None = None
    unbroken: Report | None = None
    encodings: dict[str, Report] = field(default_factory=dict)
    paragraphs: Report | None = None
    domains: Report | None = None


def add_runs(reports: Iterable[Report]) -> Report:
    """Add up reports of `write_runs`, or such sums, in any order and grouping. Returns a sum."""
    runs = sorted(reports, key=lambda run: run["run"])
    undecodable = [report for run in runs for report in run["undecodable"]]
    return {
        "run": runs[0]["run"] if runs else "",
        "runs": sum(run.get("runs", 1) for run in runs),
        "documents": total(runs, "documents"),
        "text_bytes": total(runs, "text_bytes"),
        "characters": total(runs, "characters"),
        "ledger": [list(entry) for entry in add_ledgers(run["ledger"] for run in runs)],
        "cleaning": add_by_name(runs, "cleaning"),
        "dropped": sum(run.get("dropped", 0) for run in runs),
        "rejected": total(runs, "rejected"),
        "bad": [list(entry) for entry in add_ledgers(run.get("bad", ()) for run in runs)],
        "first_rejected": _first(runs, "first_rejected"),
        "rejected_runs": sorted(name for run in runs for name in _runs_with_rejected(run)),
        "undecodable": reports_by_file(undecodable),
        "encodings": add_encodings(run.get("encodings", {}) for run in runs),
        "pieces": add_by_name([run for run in runs if "pieces" in run], "pieces"),
        "unbroken": total(runs, "unbroken"),
        "first_unbroken": _first(runs, "first_unbroken"),
    }


def _first(runs: list[Report], name: str) -> Report | None:
    """Return what the first run with such an entry reports. A sum has its first run's name, so order is kept."""
    found = [(run[name]["run"], run[name]) for run in runs if run[name]]
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _runs_with_rejected(run: Report) -> list[str]:
    if "rejected_runs" in run:
        return run["rejected_runs"]
    return [run["run"]] if run["rejected"] or run.get("listed") else []


def survey_corpus(
    added: Report, num_shards: int | None, shard_bytes: int, max_bad_ratio: float, max_undecodable_ratio: float = 1.0
) -> CorpusSurvey:
    """Choose the number of shards from the sum of all runs (`add_runs`), unless the user gave `num_shards`.

    shard_bytes: maximum mean size of a shard, in bytes of text.
    The choice follows from the amount of clean text, so neither the cut into files nor their compression affects it.
    Raises DataError if there is no document, if more records are bad or more bytes are not in a file's encoding than
    the shares allow, or if the number of shards that the user gave is too small for the text.
    """
    # A wrong encoding comes first, because it is also a cause of bad JSON records.
    refuse_undecodable(added["undecodable"], max_undecodable_ratio, added["characters"])
    check_bad_ratio(added, max_bad_ratio)
    if added["documents"] == 0:
        raise DataError(_no_document_message(added))

    text_bytes = added["text_bytes"]
    is_given = num_shards is not None
    num_shards = num_shards or shards_for(text_bytes, shard_bytes)
    if text_bytes > num_shards * MAX_SHARD_BYTES:
        raise _too_few_shards(num_shards, f"{text_bytes:,} bytes of text in {num_shards:,} shards", text_bytes)

    # Runs are cut into RUN_BUCKETS, or exactly into the shards that the user asked for.
    too_fine = not is_given and num_shards > RUN_BUCKETS
    too_many_reads = added["runs"] * num_shards > MAX_READS
    return CorpusSurvey(
        documents=added["documents"],
        num_shards=num_shards,
        merges_runs=too_fine or too_many_reads,
        rejected_runs=tuple(added["rejected_runs"]),
        ledger=add_ledgers([added["ledger"]]),
        cleaning=added["cleaning"],
        undecodable=undecodable_statistics(added["undecodable"]),
        unbroken=unbroken_documents(added),
        encodings=added["encodings"],
        paragraphs=paragraphs_among(added["pieces"]),
    )


def shards_for(text_bytes: int, shard_bytes: int) -> int:
    """Return the number of shards for this much text: the smallest power of two that satisfies these limits.

    A shard has at most SMALL_SHARD_BYTES on average until there are MANY_SHARDS, and never more than `shard_bytes`.
    """
    small_enough = _power_of_two(text_bytes, min(SMALL_SHARD_BYTES, shard_bytes))
    needed = _power_of_two(text_bytes, shard_bytes)
    return min(small_enough, max(MANY_SHARDS, needed))


def _power_of_two(text_bytes: int, shard_bytes: int) -> int:
    """Return the smallest power of two of shards with at most `shard_bytes` each on average."""
    shards = -(-text_bytes // shard_bytes)
    return 1 << max(0, shards - 1).bit_length()


def too_large_shard(name: str, text_bytes: int) -> DataError:
    """Return the error for a shard whose documents have more bytes of text than Arrow can hold."""
    shards = int(name.rpartition("-")[2].removesuffix(".arrow"))
    return _too_few_shards(shards, f"{name} has {text_bytes:,} bytes of text", text_bytes * shards)


def _too_few_shards(num_shards: int, found: str, total_text_bytes: int) -> DataError:
    """Return the error for shards with more text than Arrow holds. `total_text_bytes` may be an estimate."""
    # Advise shards that are half full on average, because shards differ in size.
    half_full = -(-total_text_bytes // (MAX_SHARD_BYTES // 2))
    advised = max(num_shards + 1, half_full)
    return DataError(
        f"--num_shards {num_shards} is too few: {found}, and a shard holds up to {MAX_SHARD_BYTES:,}. Nothing was "
        f"published. Give --num_shards {advised} or more, or leave the flag out. If one text occurs very often, give "
        "--dedup exact: all its copies belong to one shard."
    )


def unbroken_documents(added: Report) -> Report | None:
    """Return the number and the first of the plain-text documents with many lines but no blank one, or None."""
    first = added["first_unbroken"]
    if first is None:
        return None
    return {"count": added["unbroken"], "first": {name: value for name, value in first.items() if name != "run"}}


def _no_document_message(added: Report) -> str:
    sentences = ["The input holds no document with any text in it."]
    if added["ledger"]:
        most = sorted(added["ledger"], key=lambda entry: -entry[2])[:_LISTED_REASONS]
        causes = [f"{count:,} x {reason} ({source}){advice_on(reason, source)}" for reason, source, count in most]
        further = len(added["ledger"]) - len(most)
        causes += [f"{further:,} further kinds"] if further else []
        sentences.append(f"Left out: {', '.join(causes)}.")
    if added["cleaning"]:
        sentences.append(f"Cleaning: {', '.join(f'{rule}: {count:,}' for rule, count in added['cleaning'].items())}.")

    first = added["first_rejected"]
    if added["cleaning"].get("long words removed"):
        sentences.append("Very long words are removed, as in encoded files; put spaces between words.")
    elif first and ("keys" in first or remedy_of(first["reason"], first["shown"])):
        sentences.append(_advice_for_rejected(first))
    else:
        sentences.append("Check --format, --text_layout, --text_key and --filters.")
    return " ".join(sentences)


def check_bad_ratio(added: Report, max_bad_ratio: float) -> None:
    """Raise DataError with an example if more than `max_bad_ratio` of all records were rejected.

    All records are those that became documents, whether these were kept or dropped, and the rejected ones.
    """
    bad = added["rejected"]
    ratio = bad / max(1, added["documents"] + added["dropped"] + bad)
    if ratio <= max_bad_ratio:
        return

    first = added["first_rejected"]
    raise DataError(
        f"{ratio:.2%} of the records are bad, above --max_bad_ratio {max_bad_ratio}.{_list_bad(added)} The first: "
        f"{_describe_rejected(first)}. Nothing was published. {_advice_for_rejected(first)}"
    )


def _list_bad(added: Report) -> str:
    """Return how many records are bad for which reason, unless all are so for one."""
    if len(added["bad"]) < 2:
        return ""
    most = sorted(added["bad"], key=lambda entry: -entry[2])[:_LISTED_REASONS]
    listed = ", ".join(f"{count:,} x {reason} ({source})" for reason, source, count in most)
    further = len(added["bad"]) - len(most)
    return f" They are {listed}{f' and {further:,} further kinds' if further else ''}."


def _describe_rejected(rejected: Report) -> str:
    place = place_in_words(rejected["place"], rejected)
    description = f"{rejected['reason']}, at {place} of {rejected['path']}"
    if rejected["shown"]:
        description += f": {rejected['shown'][:_EXCERPT_CHARACTERS]!r}"
    return description


def _advice_for_rejected(rejected: Report) -> str:
    if "keys" in rejected:
        keys = rejected["keys"]
        return (
            f"That record has strings under {', '.join(keys)}: give the key of the text, as in --text_key {keys[0]}, "
            "or raise --max_bad_ratio if only a few records lack it."
        )

    return f"Fix the input, or raise --max_bad_ratio. {remedy_of(rejected['reason'], rejected['shown'])}".rstrip()
