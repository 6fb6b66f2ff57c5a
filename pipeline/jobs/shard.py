"""`python -m pipeline shard`: the job's options, what is checked before it starts, and the manifest it ends with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.runtime import runner as beam_runner
from pipeline.runtime.counters import Report, add_by_name, add_histograms, add_ledgers, total
from pipeline.runtime.engines import path_for_workers
from pipeline.runtime.execution import Execution, execute
from pipeline.runtime.staging import Staging, plan_staging, publish_folder
from pipeline.shard import near_duplicates
from pipeline.shard.encodings import canonical_encoding
from pipeline.shard.formats import Format
from pipeline.shard.inputs import Split, matching_files, plan_splits, version_of
from pipeline.shard.languages import find_language
from pipeline.shard.merge import Dedup, merge_shard
from pipeline.shard.partition import ReadOptions, report_name, write_runs
from pipeline.shard.plan import CorpusSurvey, plan_shards
from pipeline.shard.records import TextLayout
from pipeline.shard.sentences import Splitter
from pipeline.transforms import NearDuplicates, ShardCorpora
from schemas import FORMAT_VERSION, manifest, storage
from schemas.manifest import Input, LedgerEntry, Manifest, Shard

JUDGED_AT_THE_END = ("max_bad_ratio", "max_undecodable_ratio")
"""Options that decide whether the result is published, and nothing else."""


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """The flags of the job; the command line gives each its default and its help."""

    input: str
    output: str
    format: Format | Literal["auto"]
    text_layout: TextLayout
    text_key: str
    encoding: str
    language: str
    sentence_splitter: Splitter
    dedup: Dedup
    num_shards: int | None
    max_bad_ratio: float
    max_undecodable_ratio: float
    max_document_bytes: int
    max_decompression_ratio: int
    seed: int
    overwrite: bool


def run(job: ShardJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return what it published; None after a dry run.

    Raises UsageError before anything starts (nothing matches, a flag is unknown, the output is finished), DataError
    when the input is too bad to publish, and StorageError when a disk or a store refuses.
    """
    job = replace(job, encoding=canonical_encoding(job.encoding), language=find_language(job.language).code)
    files = matching_files(job.input)
    options = beam_runner.beam_options(beam_arguments, known_flags, sum(size for _, size in files))
    recorded = {name: v for name, v in asdict(job).items() if name not in ("input", "output", "seed", "overwrite")}
    versions = [[path, size, version_of(path)] for path, size in files]
    # Limits that are judged once all pieces are made change no piece, so a job with others reuses them.
    shaping = {name: value for name, value in recorded.items() if name not in JUDGED_AT_THE_END}
    identity = {"options": shaping, "seed": job.seed, "files": versions}
    output = path_for_workers("--output", job.output, options)
    staging = plan_staging(output, "text", job.overwrite, identity, beam_runner.is_dry_run(options))

    near = job.dedup == "minhash"
    reading = ReadOptions(
        text_key=job.text_key,
        text_layout=job.text_layout,
        language=job.language,
        sentence_splitter=job.sentence_splitter,
        near_duplicates=near,
        seed=job.seed,
        max_undecodable_ratio=job.max_undecodable_ratio,
        max_document_bytes=job.max_document_bytes,
        max_decompression_ratio=job.max_decompression_ratio,
    )
    splits = [_for_workers(split, options) for split in plan_splits(files, job.format, job.encoding)]
    inputs = [Input(path=storage.shown(path), bytes=size) for path, size in files]
    graph = ShardCorpora(
        splits=splits,
        spread=partial(write_runs, reading=reading, num_shards=job.num_shards, staging=staging),
        survey=partial(_survey, job),
        near=_near_duplicates(staging) if near else None,
        gather=partial(_gather, job, staging),
        finish=partial(_finish, job, recorded, inputs, staging),
    )
    weights = {report_name(split) + ".json": split.weight for split in splits}
    return execute(Execution("text", "Shard corpora", graph, options, staging, weights), "shard")


def _for_workers(split: Split, options: PipelineOptions) -> Split:
    """The split with paths that workers can open; `given` keeps them as the user wrote them, for what is published."""
    pieces = (
        replace(piece, path=path_for_workers("--input", piece.path, options), path_as_written=piece.path)
        for piece in split.pieces
    )
    return replace(split, pieces=tuple(pieces))


def _near_duplicates(staging: Staging) -> NearDuplicates:
    return NearDuplicates(
        buckets=list(range(near_duplicates.JOINS)), join=partial(_join, staging), resolve=partial(_resolve, staging)
    )


def _survey(job: ShardJob, _: None, reports: list[list[Report]]) -> CorpusSurvey:
    return plan_shards(reports, job.num_shards, job.max_bad_ratio, job.max_undecodable_ratio)


def _join(staging: Staging, bucket: int, corpus: CorpusSurvey) -> Report:
    return near_duplicates.join(bucket, corpus.runs, staging)


def _resolve(staging: Staging, _: None, corpus: CorpusSurvey, joined: list[Report]) -> Report:
    return near_duplicates.resolve(corpus.runs, joined, staging)


def _gather(job: ShardJob, staging: Staging, index: int, corpus: CorpusSurvey, near: Report | None) -> Report:
    return merge_shard(index, corpus, near, job.dedup, job.seed, staging)


def _finish(
    job: ShardJob,
    recorded: dict[str, Any],
    inputs: list[Input],
    staging: Staging,
    _: None,
    corpus: CorpusSurvey,
    reports: list[Report],
) -> None:
    reports = sorted(reports, key=lambda report: report["shard"]["path"])
    shards = [Shard(**report["shard"]) for report in reports]
    ledger = add_ledgers([corpus.ledger, *(report["ledger"] for report in reports)])
    publish_folder(
        staging,
        Manifest(
            format_version=FORMAT_VERSION,
            kind="text",
            options=recorded | {"num_shards": corpus.num_shards},
            inputs=inputs,
            seed=job.seed,
            fingerprint=manifest.fingerprint("text", shards),
            shards=shards,
            totals={
                "documents": sum(shard.rows for shard in shards),
                "sentences": total(reports, "sentences"),
                "text_bytes": total(reports, "text_bytes"),
            },
            statistics={
                "language": job.language,
                "cleaning": corpus.cleaning,
                "undecodable": corpus.undecodable,
                "unbroken_documents": corpus.unbroken,
                "documents_by_source": add_by_name(reports, "sources"),
                "log2_sentences_per_document": add_histograms(reports, "sentences_per_document"),
                "log2_characters_per_sentence": add_histograms(reports, "characters_per_sentence"),
            },
            ledger=[LedgerEntry(reason=reason, source=source, count=n) for reason, source, n in ledger],
        ),
        extra={f"{run}.rejected.jsonl": f"rejected/{run}.jsonl" for run in corpus.rejected},
    )
