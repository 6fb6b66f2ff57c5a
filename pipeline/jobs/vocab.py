"""`python -m pipeline vocab`: the job's options and the folder it writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.runtime import runner as beam_runner
from pipeline.runtime.engines import path_for_workers
from pipeline.runtime.execution import Execution, execute
from pipeline.runtime.staging import Staging, plan_staging, publish_folder
from pipeline.transforms import CountWords
from pipeline.vocab.counting import (
    BY_SOURCE,
    PARTITIONS,
    add_partition,
    commonest_first,
    count_shard,
    encode_partitions,
    sources_told_apart,
)
from pipeline.vocab.pretokenize import word_cutter
from pipeline.vocab.statistics import describe_vocabulary
from pipeline.vocab.tokenizer_files import vocabulary_files
from pipeline.vocab.train import TrainedVocabulary, train_vocabulary
from schemas import FORMAT_VERSION, shards, storage
from schemas.errors import DataError
from schemas.manifest import Input, LedgerEntry, Manifest, Shard, read_manifest, read_shard_bytes
from schemas.vocabulary import COUNTS, FILE, Model, parse_vocabulary


@dataclass(frozen=True, kw_only=True)
class VocabJob:
    """The flags of the job; the command line gives each its default and its help."""

    text: str
    output: str
    model: Model
    size: int
    lowercase: bool
    min_frequency: int
    max_alphabet: int | None
    pad_to_multiple: int
    overwrite: bool


def run(job: VocabJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return what it published, as `shard` does. Raises the same errors."""
    text = read_manifest(job.text, "text")
    source = Input(path=storage.shown(job.text), fingerprint=text.fingerprint)
    options = beam_runner.beam_options(beam_arguments, known_flags, text.totals["text_bytes"])
    recorded = {name: value for name, value in asdict(job).items() if name not in ("text", "output", "overwrite")}
    job = replace(
        job,
        text=path_for_workers("--text", job.text, options),
        output=path_for_workers("--output", job.output, options),
    )
    identity = {"options": recorded, "text": text.fingerprint}
    dry_run = beam_runner.is_dry_run(options)
    staging = plan_staging(job.output, "vocab", job.overwrite, identity, dry_run)

    sources = sources_told_apart(text.statistics["documents_by_source"])
    graph = CountWords(
        shards=text.shards,
        partitions=list(range(PARTITIONS)),
        count=partial(_count, job, sources, staging),
        add=partial(_add, staging),
    )
    weights = {f"{counts_of(shard)}.json": shard.bytes for shard in text.shards}
    work = Execution("vocab", "Count words", graph, options, staging, weights)
    return execute(work, "vocab", finish=partial(_finish, job, recorded, source, sources, staging))


def counts_of(shard: Shard) -> str:
    """The name of the staged counts of a text shard."""
    return f"counts-{shard.path}"


def _count(job: VocabJob, sources: list[str], staging: Staging, shard: Shard) -> str:
    name = counts_of(shard)
    if staging.report(name) is None:
        text = shards.decode_table(read_shard_bytes(job.text, shard), storage.join(job.text, shard.path), shards.TEXT)
        counts = count_shard(text, sources, word_cutter(job.model, job.lowercase))
        staging.keep(name, encode_partitions(counts), {"words": counts.num_rows})
    return name


def sum_of(partition: int) -> str:
    """The name of a partition's staged sum."""
    return f"sum-{partition:05d}.arrow"


def _add(staging: Staging, partition: int, names: list[str]) -> str:
    name = sum_of(partition)
    if staging.report(name) is None:
        added = add_partition(partition, sorted(names), staging)
        staging.keep(name, shards.encode_table(added), {"words": added.num_rows})
    return name


def _finish(job: VocabJob, recorded: dict[str, Any], source: Input, sources: list[str], staging: Staging) -> None:
    """Learn and publish, in the process that started the job: the workers, and their memory, are gone by now."""
    counts = commonest_first(_sums(staging))
    if counts.num_rows == 0:
        raise DataError(f"{job.text} holds no word to learn from. Look at it with `python -m pipeline inspect`.")
    learnt = train_vocabulary(counts, job.model, job.size, job.min_frequency, job.max_alphabet, job.pad_to_multiple)
    files = vocabulary_files(learnt, job.model, job.lowercase) | {COUNTS: shards.encode_table(counts)}
    for name, data in files.items():
        staging.put(name, data)
    statistics = describe_vocabulary(files[FILE], _sums(staging), sources)
    publish_folder(staging, _manifest(recorded, source, files, learnt, counts, statistics))


def _sums(staging: Staging) -> Iterator[pa.Table]:
    """The counts of each partition, one at a time."""
    for name in map(sum_of, range(PARTITIONS)):
        yield shards.decode_table(staging.piece(name), staging.url(name), BY_SOURCE)


def describe_shard(name: str, data: bytes, rows: int) -> Shard:
    """A file's entry in the manifest; its bytes are its content."""
    digest = storage.sha256(data)
    return Shard(path=name, rows=rows, tokens=0, bytes=len(data), sha256=digest, fingerprint=digest[:32])


def _manifest(
    recorded: dict[str, Any],
    source: Input,
    files: dict[str, bytes],
    learnt: TrainedVocabulary,
    counts: pa.Table,
    statistics: dict[str, Any],
) -> Manifest:
    rows = {COUNTS: counts.num_rows}
    cut = sum(learnt.cut_characters.values())
    return Manifest(
        format_version=FORMAT_VERSION,
        kind="vocab",
        options=recorded,
        inputs=[source],
        seed=0,  # nothing here is random
        fingerprint=parse_vocabulary(files[FILE], FILE).fingerprint,
        shards=[describe_shard(name, files[name], rows.get(name, len(learnt.tokens))) for name in sorted(files)],
        totals={
            "tokens": len(learnt.tokens),
            "merges": len(learnt.merges),
            "words": int(pc.sum(counts["count"]).as_py()),  # type: ignore[attr-defined]
            "distinct_words": counts.num_rows,
        },
        statistics=statistics,
        ledger=[LedgerEntry(reason="character left out of the alphabet", source="all", count=cut)] if cut else [],
    )
