"""The steps that make a vocabulary from counts: learning, describing partitions of the words, and publishing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.options import VocabJob
from pipeline.runtime.counters import Report
from pipeline.runtime.publication import publish_output
from pipeline.runtime.staging import Staging
from pipeline.steps.counts_reader import CountsPlace, CountsReader
from pipeline.steps.provenance import Provenance
from pipeline.steps.vocab_files import extend_files, learn_files
from pipeline.steps.word_counts import encode_entry
from pipeline.vocab.counted_words import Words
from pipeline.vocab.counting import most_frequent_first
from pipeline.vocab.memory import (
    THRESHOLDS,
    Tally,
    WordAmounts,
    all_words,
    available_memory,
    check_fit,
    listed_from,
    words_below,
)
from pipeline.vocab.report import Usage, VocabularyUse, describe_usage
from schemas import FORMAT_VERSION, storage
from schemas.errors import DataError
from schemas.manifest import LedgerEntry, Manifest, Shard
from schemas.storage import THREADS, concurrently
from schemas.vocabulary import COUNTS_FILE, TOKENIZER_FILE, parse_vocabulary

MAX_LISTED_WORDS = 4_000_000
"""Maximum words in the vocabulary folder's own file of counts, some 50 MB. For a larger corpus it lists the most
frequent ones, down to a count that the manifest states; a folder of counts (--counts) has all of them."""

LEARNED = "learned"
"""Name of the learning step's report in staging."""

READ_AHEAD_BYTES = 128 << 20
"""Bytes of counts that are read ahead while others are merged. Learning itself needs far more memory."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class VocabularyPlan:
    """What a vocabulary is made from. `sources` are those that the counts distinguish."""

    job: VocabJob
    counts: CountsPlace
    sources: list[str]
    staging: Staging


def learn_vocabulary(tally_rows: list[Any], plan: VocabularyPlan) -> Report:
    """Learn a vocabulary and stage its files. Returns their manifest entries and what was left out.

    Raises DataError, before it learns, if there is no word or if the words do not fit into memory.
    """
    finished = plan.staging.report(LEARNED)
    if finished is not None and _are_whole(finished["entries"], plan.staging):
        return finished

    job = plan.job
    tally = np.array(tally_rows, dtype=np.int64)
    place = storage.printable(str(job.text or job.counts))
    if len(tally) == 0 or all_words(tally).words == 0:
        raise DataError(f"{place} holds no word to learn from. Look at it with `clozeline inspect`.")

    counts = _Partitions(plan.counts.open(), _readers(tally, plan.counts.partitions))
    left_out = _amounts_below(tally, job.min_word_count, counts)
    if left_out.words == all_words(tally).words:
        raise DataError(
            f"No word of {place} occurs {job.min_word_count:,} times, so none is left to learn from. Lower "
            "--min_word_count."
        )
    check_fit(tally, left_out, available_memory(), job.model)

    listed_count = max(job.min_word_count, listed_from(tally, MAX_LISTED_WORDS))
    entries: dict[str, Report] = {}
    words = partial(_read_words, counts, listed_count, plan, entries)
    made = learn_files(job, words) if job.extend is None else extend_files(job, words)
    for name, data in made.files.items():
        entries[name] = _keep_file(name, data, made.facts["tokens"], plan.staging)

    report = {
        "entries": list(entries.values()),
        **made.facts,
        "listed_count": listed_count,
        "words": asdict(all_words(tally)),
        "left_out": asdict(left_out),
    }
    return plan.staging.keep_report(LEARNED, report)


def _are_whole(entries: list[Report], staging: Staging) -> bool:
    """Whether all files of an earlier attempt have the bytes that it wrote. A machine crash may have damaged some."""
    for entry in entries:
        try:
            data = staging.piece(entry["path"])
        except DataError:  # it no longer exists
            return False
        if storage.sha256(data) != entry["sha256"]:
            return False
    return True


@dataclass(frozen=True)
class _Partitions:
    """The partitions of the words, of which up to `readers` are read at a time."""

    reader: CountsReader
    readers: int

    def each(self, function: Callable[[pa.Table], Result]) -> Iterator[Result]:
        """Yield the result of a function for the words (shards.COUNTS_SCHEMA) of each partition, in order."""
        numbers = range(self.reader.place.partitions)
        return concurrently(lambda number: function(self.reader.read_words(number)), numbers, self.readers)


def _readers(tally: Tally, partitions: int) -> int:
    """Return how many partitions to read at a time. `concurrently` holds twice as many in memory."""
    amounts = all_words(tally)
    bytes_of_partition = 1 + (24 * amounts.words + 3 * amounts.characters) // partitions
    return min(THREADS, max(1, READ_AHEAD_BYTES // (2 * bytes_of_partition)))


def _amounts_below(tally: Tally, min_word_count: int, counts: _Partitions) -> WordAmounts:
    """Return the amounts of the words that are too rare: from the tally, or counted if it lacks that threshold."""
    rows = np.flatnonzero(min_word_count == THRESHOLDS)
    if len(rows):
        return words_below(tally, int(rows[0]))

    def amounts_in(words: pa.Table) -> list[int]:
        rare = words.filter(pc.less(words["count"], min_word_count))  # type: ignore[attr-defined]
        characters = pc.utf8_length(rare["word"]).to_numpy().sum()  # type: ignore[attr-defined]
        return [rare.num_rows, characters, rare["count"].to_numpy().sum()]

    amounts = np.zeros(3, dtype=np.int64)
    for of_partition in counts.each(amounts_in):
        amounts += of_partition
    return WordAmounts(*amounts.tolist())


def _read_words(counts: _Partitions, listed_count: int, plan: VocabularyPlan, entries: dict[str, Report]) -> Words:
    """Return the words to learn from. Each partition drops its rare words before the partitions are concatenated.

    Also stage a file of the words that occur at least `listed_count` times, unless an earlier call has, and put the
    file's manifest entry into `entries`. These words are a subset of the words to learn from.
    """

    def frequent_in(words: pa.Table) -> tuple[Words, pa.Table]:
        frequent = _at_least(plan.job.min_word_count, words)
        return Words.of(frequent), _at_least(listed_count, frequent)

    parts = []
    listed = []
    for words, most_frequent in counts.each(frequent_in):
        parts.append(words)
        listed.append(most_frequent)

    if COUNTS_FILE not in entries:
        data, entry = encode_entry(COUNTS_FILE, most_frequent_first(pa.concat_tables(listed)))
        entry |= {"fingerprint": entry["sha256"][:32]}
        entries[COUNTS_FILE] = plan.staging.keep(COUNTS_FILE, data, entry)
    return Words.concatenate(parts)


def _at_least(min_count: int, words: pa.Table) -> pa.Table:
    if min_count == 1:
        return words
    return words.filter(pc.greater_equal(words["count"], min_count))  # type: ignore[attr-defined]


def describe_partitions(partitions: list[int], _: Report, plan: VocabularyPlan) -> Usage:
    """Encode the words of some partitions with the learned vocabulary, and return how often its tokens are used."""
    use = VocabularyUse(plan.staging.piece(TOKENIZER_FILE), len(plan.sources))
    reader = plan.counts.open()
    for partition in partitions:
        use.add(reader.read(partition))
    return use.usage


def publish_vocabulary(learned: Report, usage: Usage, plan: VocabularyPlan, provenance: Provenance) -> None:
    """Publish a vocabulary, with statistics of how it encodes its text."""
    tokenizer_json = plan.staging.piece(TOKENIZER_FILE)
    vocabulary = parse_vocabulary(tokenizer_json, TOKENIZER_FILE)
    entries = sorted(learned["entries"], key=lambda entry: entry["path"])

    statistics = describe_usage(vocabulary, usage, plan.sources)
    extension = {"extension": learned["extension"]} if "extension" in learned else {}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        kind="vocab",
        options=provenance.options,
        inputs=provenance.inputs,
        seed=provenance.seed,
        fingerprint=vocabulary.fingerprint,
        shards=[Shard(**entry) for entry in entries],
        totals=totals_of(learned),
        statistics={**statistics, **extension, "listed_from_count": learned["listed_count"]},
        ledger=ledger_of(learned),
    )
    publish_output(plan.staging, manifest)


def _keep_file(name: str, data: bytes, rows: int, staging: Staging) -> Report:
    """Stage a file and return its manifest entry. Its fingerprint is the first half of the SHA-256 of its bytes."""
    digest = storage.sha256(data)
    entry = {
        "path": name,
        "rows": rows,
        "tokens": 0,
        "bytes": len(data),
        "sha256": digest,
        "fingerprint": digest[:32],
    }
    return staging.keep(name, data, entry)


def totals_of(learned: Report) -> dict[str, int]:
    """Return the totals of a vocabulary's manifest."""
    return {
        "tokens": learned["tokens"],
        "merges": learned["merges"],
        "words": learned["words"]["occurrences"],
        "distinct_words": learned["words"]["words"],
    }


def ledger_of(learned: Report) -> list[LedgerEntry]:
    """Return what learning left out: characters and words, how many different ones and how often they occur."""
    distinct_characters, characters = learned["cut_characters"]
    long_words, long_occurrences = learned["long_words"]
    left_out = {
        "different character left out of the alphabet": distinct_characters,
        "character left out of the alphabet": characters,
        "different word too long for WordPiece, which becomes [UNK]": long_words,
        "occurrence of a word too long for WordPiece": long_occurrences,
        "different word too rare to learn from": learned["left_out"]["words"],
        "occurrence of a word too rare to learn from": learned["left_out"]["occurrences"],
    }
    return [LedgerEntry(reason=reason, source="all", count=count) for reason, count in left_out.items() if count]


def add_usages(usages: Iterable[Usage]) -> Usage:
    """Sum the usages of partitions, in any order and grouping. The sum of no usages is an empty Usage."""
    total = Usage.empty(0, 0)
    for usage in usages:
        total = total.plus(usage)
    return total
