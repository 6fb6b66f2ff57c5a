"""The steps that make a vocabulary from counts: learning, describing a partition of the words, and publishing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.options import VocabJob
from pipeline.runtime.counters import Report
from pipeline.runtime.publication import publish_output
from pipeline.runtime.staging import Staging
from pipeline.steps.provenance import Provenance
from pipeline.steps.word_counts import CountsPlace, encode_entry
from pipeline.vocab.counting import most_frequent_first
from pipeline.vocab.rare_words import (
    THRESHOLDS,
    Tally,
    WordAmounts,
    all_words,
    available_memory,
    check_fit,
    listed_from,
    words_below,
)
from pipeline.vocab.statistics import Usage, VocabularyUse, describe_usage
from pipeline.vocab.tokenizer_files import vocabulary_files
from pipeline.vocab.train import VocabularyOptions, train_vocabulary
from pipeline.vocab.words import Words
from schemas import FORMAT_VERSION, storage
from schemas.errors import DataError
from schemas.manifest import LedgerEntry, Manifest, Shard
from schemas.vocabulary import COUNTS_FILE, TOKENIZER_FILE, parse_vocabulary

MAX_LISTED_WORDS = 4_000_000
"""Most words in the vocabulary folder's own file of counts, some 50 MB. A larger corpus has its most frequent ones
there, down to a count that the manifest states; all of them are in a folder of counts (--counts)."""

LEARNED = "learned"
"""The report of the learning step in staging."""


@dataclass(frozen=True)
class VocabularyPlan:
    """What a vocabulary is made of. `sources` are those that the counts tell apart."""

    job: VocabJob
    counts: CountsPlace
    sources: list[str]
    staging: Staging


def learn_vocabulary(tally_rows: list[Any], plan: VocabularyPlan) -> Report:
    """Learn a vocabulary and stage its files. Returns their entries and what was left out.

    Raises DataError, before it learns, when there is no word or when the words do not fit into memory.
    """
    finished = plan.staging.report(LEARNED)
    if finished is not None:
        return finished

    job = plan.job
    tally = np.array(tally_rows, dtype=np.int64)
    if len(tally) == 0 or all_words(tally).words == 0:
        place = job.text or job.counts
        raise DataError(f"{place} holds no word to learn from. Look at it with `python -m pipeline inspect`.")

    left_out = _amounts_below(tally, job.min_word_count, plan)
    check_fit(tally, left_out, available_memory())

    listed_count = max(job.min_word_count, listed_from(tally, MAX_LISTED_WORDS))
    entries = [_stage_listed(listed_count, plan)]

    options = VocabularyOptions(job.model, job.size, job.min_frequency, job.max_alphabet, job.pad_to_multiple)
    trained = train_vocabulary(_read_words(plan), options)
    for name, data in vocabulary_files(trained, job.model, job.lowercase).items():
        plan.staging.put(name, data)
        entries.append(_entry_of_file(name, data, len(trained.tokens)))

    report = {
        "entries": entries,
        "tokens": len(trained.tokens),
        "merges": len(trained.merges),
        "cut_characters": sum(trained.cut_characters.values()),
        "listed_count": listed_count,
        "words": asdict(all_words(tally)),
        "left_out": asdict(left_out),
    }
    return plan.staging.keep_report(LEARNED, report)


def _amounts_below(tally: Tally, min_word_count: int, plan: VocabularyPlan) -> WordAmounts:
    """The amounts of the words that are too rare: out of the tally, or counted when the number is between two of it."""
    rows = np.flatnonzero(min_word_count == THRESHOLDS)
    if len(rows):
        return words_below(tally, int(rows[0]))

    amounts = np.zeros(3, dtype=np.int64)
    for partition in range(plan.counts.partitions):
        counts = plan.counts.read_words(partition)
        rare = counts.filter(pc.less(counts["count"], min_word_count))  # type: ignore[attr-defined]
        characters = pc.utf8_length(rare["word"]).to_numpy().sum()  # type: ignore[attr-defined]
        amounts += [rare.num_rows, characters, rare["count"].to_numpy().sum()]
    return WordAmounts(*amounts.tolist())


def _stage_listed(min_count: int, plan: VocabularyPlan) -> Report:
    """Stage the file of the words that occur at least `min_count` times, and return its entry."""
    tables = [_frequent(plan, partition, min_count) for partition in range(plan.counts.partitions)]
    listed = most_frequent_first(pa.concat_tables(tables))
    data, entry = encode_entry(COUNTS_FILE, listed)
    plan.staging.put(COUNTS_FILE, data)
    return entry | {"fingerprint": entry["sha256"][:32]}


def _read_words(plan: VocabularyPlan) -> Words:
    """Read the words to learn from, a partition at a time. Rare words leave before anything is put together."""
    parts = [
        Words.of(_frequent(plan, partition, plan.job.min_word_count)) for partition in range(plan.counts.partitions)
    ]
    return Words.concatenate(parts)


def _frequent(plan: VocabularyPlan, partition: int, min_count: int) -> pa.Table:
    counts = plan.counts.read_words(partition)
    if min_count == 1:
        return counts
    return counts.filter(pc.greater_equal(counts["count"], min_count))  # type: ignore[attr-defined]


def describe_partitions(partitions: list[int], _: Report, plan: VocabularyPlan) -> Usage:
    """Encode the words of some partitions with the vocabulary, which is learned by now."""
    use = VocabularyUse(plan.staging.piece(TOKENIZER_FILE), len(plan.sources))
    for partition in partitions:
        use.add(plan.counts.read(partition))
    return use.usage


def publish_vocabulary(learned: Report, usage: Usage, plan: VocabularyPlan, provenance: Provenance) -> None:
    """Publish a vocabulary with what it does to its text."""
    tokenizer_json = plan.staging.piece(TOKENIZER_FILE)
    vocabulary = parse_vocabulary(tokenizer_json, TOKENIZER_FILE)
    entries = sorted(learned["entries"], key=lambda entry: entry["path"])

    statistics = describe_usage(vocabulary, usage, plan.sources)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        kind="vocab",
        options=provenance.options,
        inputs=provenance.inputs,
        seed=provenance.seed,
        fingerprint=vocabulary.fingerprint,
        shards=[Shard(**entry) for entry in entries],
        totals={
            "tokens": learned["tokens"],
            "merges": learned["merges"],
            "words": learned["words"]["occurrences"],
            "distinct_words": learned["words"]["words"],
        },
        statistics={**statistics, "listed_from_count": learned["listed_count"]},
        ledger=_ledger(learned),
    )
    publish_output(plan.staging, manifest)


def _entry_of_file(name: str, data: bytes, rows: int) -> Report:
    """Return a file's entry in the manifest. The fingerprint of its content is that of its bytes."""
    digest = storage.sha256(data)
    return {
        "path": name,
        "rows": rows,
        "tokens": 0,
        "bytes": len(data),
        "sha256": digest,
        "fingerprint": digest[:32],
    }


def _ledger(learned: Report) -> list[LedgerEntry]:
    """What --max_alphabet left out, in characters of the text, and what --min_word_count left out."""
    left_out = {
        "character left out of the alphabet": learned["cut_characters"],
        "different word too rare to learn from": learned["left_out"]["words"],
        "occurrence of a word too rare to learn from": learned["left_out"]["occurrences"],
    }
    return [LedgerEntry(reason=reason, source="all", count=count) for reason, count in left_out.items() if count]


def add_usages(usages: Iterable[Usage]) -> Usage:
    """Add up how partitions are encoded, in any order and grouping. The sum of none is empty."""
    total = Usage.empty(0, 0)
    for usage in usages:
        total = total.plus(usage)
    return total
