"""`python -m pipeline vocab`: words are counted on workers; the vocabulary is trained and published in the launcher."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.flags import recorded_options
from pipeline.options import VocabJob
from pipeline.runtime.engines import path_for_workers
from pipeline.runtime.execution import Execution, execute
from pipeline.runtime.publication import publish_output
from pipeline.runtime.runner import beam_options, is_dry_run
from pipeline.runtime.staging import Staging, plan_staging
from pipeline.steps.provenance import Provenance
from pipeline.steps.vocab import counts_name, read_sums
from pipeline.transforms.vocab import CountWords
from pipeline.vocab.counting import most_frequent_first, reported_sources
from pipeline.vocab.statistics import describe_vocabulary
from pipeline.vocab.tokenizer_files import vocabulary_files
from pipeline.vocab.train import TrainedVocabulary, VocabularyOptions, train_vocabulary
from schemas import FORMAT_VERSION, shards, storage
from schemas.errors import DataError
from schemas.manifest import Input, LedgerEntry, Manifest, Shard, read_manifest
from schemas.vocabulary import COUNTS_FILE, TOKENIZER_FILE, parse_vocabulary

NO_SEED = 0  # nothing here is random


def run(job: VocabJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return what it published, as `shard` does. Raises the same errors."""
    text = read_manifest(job.text, "text")
    source = Input(path=storage.printable(job.text), fingerprint=text.fingerprint)
    provenance = Provenance(recorded_options(job), [source], NO_SEED)
    options = beam_options(beam_arguments, known_flags, text.totals["text_bytes"])

    job = replace(
        job,
        text=path_for_workers("--text", job.text, options),
        output=path_for_workers("--output", job.output, options),
    )
    identity = {"options": provenance.options, "text": text.fingerprint}
    staging = plan_staging(job.output, "vocab", job.overwrite, identity, is_dry_run(options))

    sources = reported_sources(text.statistics["documents_by_source"])
    graph = CountWords(text.shards, job, sources, staging)
    weights = {f"{counts_name(shard)}.json": shard.bytes for shard in text.shards}
    work = Execution("vocab", "Count words", graph, options, staging, weights)
    finish = partial(_train_and_publish, job, sources, provenance, staging)
    return execute(work, "vocab", finish)


@dataclass(frozen=True)
class _Result:
    """What is published: a trained vocabulary, its files by name, and the word counts it was trained on."""

    trained: TrainedVocabulary
    files: dict[str, bytes]
    counts: pa.Table


def _train_and_publish(job: VocabJob, sources: list[str], provenance: Provenance, staging: Staging) -> None:
    """Train and publish in the launcher: the workers, and the memory they used, are gone by now."""
    counts = most_frequent_first(read_sums(staging))
    if counts.num_rows == 0:
        raise DataError(f"{job.text} holds no word to learn from. Look at it with `python -m pipeline inspect`.")

    options = VocabularyOptions(job.model, job.size, job.min_frequency, job.max_alphabet, job.pad_to_multiple)
    trained = train_vocabulary(counts, options)
    files = vocabulary_files(trained, job.model, job.lowercase) | {COUNTS_FILE: shards.encode_table(counts)}
    for name, data in files.items():
        staging.put(name, data)

    statistics = describe_vocabulary(files[TOKENIZER_FILE], read_sums(staging), sources)
    result = _Result(trained, files, counts)
    publish_output(staging, _manifest(result, statistics, provenance))


def _manifest(result: _Result, statistics: dict[str, Any], provenance: Provenance) -> Manifest:
    trained = result.trained
    return Manifest(
        format_version=FORMAT_VERSION,
        kind="vocab",
        options=provenance.options,
        inputs=provenance.inputs,
        seed=provenance.seed,
        fingerprint=parse_vocabulary(result.files[TOKENIZER_FILE], TOKENIZER_FILE).fingerprint,
        shards=_shards(result),
        totals={
            "tokens": len(trained.tokens),
            "merges": len(trained.merges),
            "words": int(pc.sum(result.counts["count"]).as_py()),  # type: ignore[attr-defined]
            "distinct_words": result.counts.num_rows,
        },
        statistics=statistics,
        ledger=_ledger(trained),
    )


def _shards(result: _Result) -> list[Shard]:
    """The manifest's entries: word counts have a row for each word, other files one for each token."""
    entries = []
    for name in sorted(result.files):
        rows = result.counts.num_rows if name == COUNTS_FILE else len(result.trained.tokens)
        entries.append(shard_entry_of_file(name, result.files[name], rows))
    return entries


def shard_entry_of_file(name: str, data: bytes, rows: int) -> Shard:
    """Return a file's entry in the manifest. The fingerprint of its content is that of its bytes."""
    digest = storage.sha256(data)
    return Shard(
        path=name,
        rows=rows,
        tokens=0,
        bytes=len(data),
        sha256=digest,
        fingerprint=digest[:32],
    )


def _ledger(trained: TrainedVocabulary) -> list[LedgerEntry]:
    """What --max_alphabet left out, in characters of the text."""
    left_out = sum(trained.cut_characters.values())
    if left_out == 0:
        return []

    entry = LedgerEntry(reason="character left out of the alphabet", source="all", count=left_out)
    return [entry]
