"""The step of `vocab` that learns a vocabulary from word counts, or extends one: a single worker reads all words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.beam import steps
from pipeline.commit.publish import read_piece
from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from pipeline.options import VocabJob
from pipeline.pairs.published_tokenizer import without_dropout
from pipeline.vocab.counted_words import UnigramRules, Words, lower_words
from pipeline.vocab.counting import most_frequent_first, sum_counts
from pipeline.vocab.extend import extend_vocabulary
from pipeline.vocab.kinds import maker_of
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
from pipeline.vocab.train import VocabularyOptions, train_with_all_places
from pipeline.words.rules import Rules, rules_of
from schemas import shards, storage
from schemas.errors import DataError, StorageError
from schemas.manifest import LedgerEntry, Shard, check_unchanged, read_manifest
from schemas.shards import COUNTS_BY_SOURCE_SCHEMA, read_shard_bytes, shard_name
from schemas.storage import THREADS, concurrently
from schemas.vocabulary import COUNTS_FILE, TOKENIZER_FILE, TOKENIZER_FILES

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
    """What a vocabulary is made from.

    partitions: of the words. sources: those that the counts distinguish.
    counts: a finished folder of counts; empty if this job has counted, and the counts are in its staging.
    fingerprint: the folder's fingerprint when the job began.
    """

    job: VocabJob
    partitions: int
    sources: list[str]
    staging: Staging
    counts: str = ""
    fingerprint: str = ""

    @property
    def rules(self) -> Rules:
        return rules_of(self.job.model, self.job.lowercase, self.job.keep_accents)

    def open_counts(self) -> CountsReader:
        """Return a reader of the counts. Raises DataError if their folder was replaced since the job began."""
        if not self.counts:
            return CountsReader(self, {})

        manifest = read_manifest(self.counts, "counts")
        check_unchanged(self.counts, manifest, self.fingerprint)
        return CountsReader(self, {shard.path: shard for shard in manifest.shards})


@dataclass(frozen=True)
class CountsReader:
    """Reads the partitions of one set of rules and checks their bytes. Thread-safe.

    entries: the files of a finished folder by name; a file in staging has a report instead.
    """

    plan: VocabularyPlan
    entries: dict[str, Shard]

    def read(self, partition: int) -> pa.Table:
        """Return the counts of one partition (COUNTS_BY_SOURCE_SCHEMA).

        Raises DataError for a damaged or missing file of a finished folder, and StorageError for one in staging, which
        the next attempt makes again.
        """
        plan = self.plan
        name = shard_name(plan.rules.name, partition, plan.partitions)
        if plan.counts:
            data = read_shard_bytes(plan.counts, self.entries[name])
            return shards.decode_table(data, storage.join(plan.counts, name), COUNTS_BY_SOURCE_SCHEMA)

        report = plan.staging.report(name)
        if report is None:
            raise StorageError(f"The report of {plan.staging.url(name)} is missing. Run the same command again.")
        data = read_piece(plan.staging, Shard(**report["shard"]))
        return shards.decode_table(data, plan.staging.url(name), COUNTS_BY_SOURCE_SCHEMA)

    def each(self, function: Callable[[pa.Table], Result], readers: int) -> Iterator[Result]:
        """Yield the result of a function for the words (shards.COUNTS_SCHEMA) of each partition, in order.

        readers: how many partitions are read at a time. Raises as `read` does.
        """

        def of_partition(number: int) -> Result:
            return function(sum_counts(self.read(number), ["word"]))

        return concurrently(of_partition, range(self.plan.partitions), readers)


def learn_vocabulary(tallies: list[Any], plan: VocabularyPlan) -> Report:
    """Learn a vocabulary and stage its files, and update the job's counters.

    tallies: that of the vocabulary's set of rules; empty if there was nothing to count.
    Returns the files' manifest entries and what was left out. Raises DataError, before it learns, if there is no word
    or if the words do not fit into memory.
    """
    learned = plan.staging.report(LEARNED)
    if learned is None or not _are_whole(learned["entries"], plan.staging):
        tally = np.array(tallies[0] if tallies else [], dtype=np.int64)
        learned = plan.staging.keep_report(LEARNED, _learn(tally, plan))

    steps.count_all(totals_of(learned))
    steps.count_all({f"dropped/{entry.reason}": entry.count for entry in ledger_of(learned)})
    return learned


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


def _learn(tally: Tally, plan: VocabularyPlan) -> Report:
    job = plan.job
    place = storage.printable(str(job.text or job.counts))
    if len(tally) == 0 or all_words(tally).words == 0:
        raise DataError(f"{place} holds no word to learn from. Look at it with `clozeline inspect`.")

    counts = plan.open_counts()
    readers = _readers(tally, plan.partitions)
    left_out = _amounts_below(tally, job.min_word_count, counts, readers)
    if left_out.words == all_words(tally).words:
        raise DataError(
            f"No word of {place} occurs {job.min_word_count:,} times, so none is left to learn from. Lower "
            "--min_word_count."
        )
    check_fit(tally, left_out, available_memory(), job.model)

    listed_count = max(job.min_word_count, listed_from(tally, MAX_LISTED_WORDS))
    entries: dict[str, Report] = {}
    words = partial(_read_words, counts, readers, listed_count, entries)
    if job.model == "wordpiece" and job.lowercase and job.keep_accents:
        words = partial(_lowered, words)
    files, facts = _learn_files(job, words) if job.extend is None else _extend_files(job, words)
    for name, data in files.items():
        entries[name] = _keep_file(data, shards.shard_entry(name, data, facts["tokens"], ""), plan.staging)

    return {
        "entries": list(entries.values()),
        **facts,
        "listed_count": listed_count,
        "words": asdict(all_words(tally)),
        "left_out": asdict(left_out),
    }


def _readers(tally: Tally, partitions: int) -> int:
    """Return how many partitions to read at a time. `concurrently` holds twice as many in memory."""
    amounts = all_words(tally)
    bytes_of_partition = 1 + (24 * amounts.words + 3 * amounts.characters) // partitions
    return min(THREADS, max(1, READ_AHEAD_BYTES // (2 * bytes_of_partition)))


def _amounts_below(tally: Tally, min_word_count: int, counts: CountsReader, readers: int) -> WordAmounts:
    """Return the amounts of the words that are too rare: from the tally, or counted if it lacks that threshold."""
    rows = np.flatnonzero(min_word_count == THRESHOLDS)
    if len(rows):
        return words_below(tally, int(rows[0]))

    def amounts_in(words: pa.Table) -> list[int]:
        rare = words.filter(pc.less(words["count"], min_word_count))  # type: ignore[attr-defined]
        characters = pc.utf8_length(rare["word"]).to_numpy().sum()  # type: ignore[attr-defined]
        return [rare.num_rows, characters, rare["count"].to_numpy().sum()]

    amounts = np.zeros(3, dtype=np.int64)
    for of_partition in counts.each(amounts_in, readers):
        amounts += of_partition
    return WordAmounts(*amounts.tolist())


def _read_words(counts: CountsReader, readers: int, listed_count: int, entries: dict[str, Report]) -> Words:
    """Return the words to learn from. Each partition drops its rare words before the partitions are concatenated.

    Also stage a file of the words that occur at least `listed_count` times, unless an earlier call has, and put the
    file's manifest entry into `entries`. These words are a subset of the words to learn from.
    """
    min_word_count = counts.plan.job.min_word_count

    def frequent_in(words: pa.Table) -> tuple[Words, pa.Table]:
        frequent = _at_least(min_word_count, words)
        return Words.of(frequent), _at_least(listed_count, frequent)

    parts = []
    listed = []
    for words, most_frequent in counts.each(frequent_in, readers):
        parts.append(words)
        listed.append(most_frequent)

    if COUNTS_FILE not in entries:
        data, entry = shards.encode_shard(COUNTS_FILE, most_frequent_first(pa.concat_tables(listed)))
        entries[COUNTS_FILE] = _keep_file(data, entry, counts.plan.staging)
    return Words.concatenate(parts)


def _lowered(read_words: Callable[[], Words]) -> Words:
    return lower_words(read_words())


def _at_least(min_count: int, words: pa.Table) -> pa.Table:
    if min_count == 1:
        return words
    return words.filter(pc.greater_equal(words["count"], min_count))  # type: ignore[attr-defined]


def _keep_file(data: bytes, entry: Report, staging: Staging) -> Report:
    """Stage a file and return its manifest entry. Its fingerprint is the first half of the SHA-256 of its bytes."""
    return staging.keep(entry["path"], data, entry | {"fingerprint": entry["sha256"][:32]})


def _learn_files(job: VocabJob, read_words: Callable[[], Words]) -> tuple[dict[str, bytes], Report]:
    """Learn a vocabulary with the job's options. Returns its files by name, and the facts about it for the report."""
    rules = UnigramRules(job.special_tokens, job.lowercase, job.keep_accents)
    options = VocabularyOptions(
        model=job.model,
        size=job.size,
        min_frequency=job.min_frequency,
        max_alphabet=job.max_alphabet,
        pad_to_multiple=job.pad_to_multiple,
        rules=rules,
        text=storage.printable(str(job.text or job.counts)),
    )
    maker = maker_of(job.model)
    trained = train_with_all_places(maker.train, read_words, options)
    cut_characters = trained.left_out.cut_characters
    facts = {
        "tokens": len(trained.tokens),
        "merges": len(trained.merges),
        "cut_characters": [len(cut_characters), sum(cut_characters.values())],
        "long_words": trained.left_out.long_words,
    }
    return maker.files(trained, rules), facts


def _extend_files(job: VocabJob, read_words: Callable[[], Words]) -> tuple[dict[str, bytes], Report]:
    """Extend the vocabulary in job.extend, with counts of the text's tokens before and after. Returns the same."""
    folder = str(job.extend)
    files = {
        name: storage.read(storage.join(folder, name))
        for name in sorted(TOKENIZER_FILES)
        if storage.exists(storage.join(folder, name))
    }
    files[TOKENIZER_FILE], _ = without_dropout(files[TOKENIZER_FILE], folder)
    find = maker_of(job.model).find_new
    extended = extend_vocabulary(read_words(), files, find, int(job.add or 0), job.min_frequency)

    tokens = job.size - int(job.add or 0) + len(extended.new_tokens)
    extension = {
        "new_tokens": len(extended.new_tokens),
        "tokens_before": extended.tokens_before,
        "tokens_after": extended.tokens_after,
    }
    merges = sum(token.merge is not None for token in extended.new_tokens)
    facts = {
        "tokens": tokens,
        "merges": merges,
        "cut_characters": [0, 0],
        "long_words": extended.long_words,
        "extension": extension,
    }
    return extended.files, facts


def totals_of(learned: Report) -> dict[str, int]:
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
