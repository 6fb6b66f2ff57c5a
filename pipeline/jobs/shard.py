"""`python -m pipeline shard`: what is checked before the job starts, and how its work is planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.flags import recorded_options
from pipeline.jobs.finished import Wanted, finished_manifest
from pipeline.options import ShardJob
from pipeline.runtime import estimate
from pipeline.runtime.engines import chosen_shuffle, path_for_workers
from pipeline.runtime.execution import Execution, execute
from pipeline.runtime.launch import check_launch, is_dry_run
from pipeline.runtime.progress import Work
from pipeline.runtime.runner import beam_options
from pipeline.runtime.staging import plan_staging
from pipeline.shard.documents import ReadOptions
from pipeline.shard.encodings import canonical_encoding
from pipeline.shard.inputs import Split, plan_splits
from pipeline.shard.job_files import write_inputs, write_splits
from pipeline.shard.languages import find_language
from pipeline.shard.listing import InputFile, matching_files
from pipeline.shard.plan import shards_for
from pipeline.steps.provenance import Provenance
from pipeline.transforms.shard import ShardCorpora
from schemas import storage
from schemas.manifest import Input, Manifest

JUDGED_AT_THE_END = ("max_bad_ratio", "max_undecodable_ratio")
"""Options that decide whether the result is published, and nothing else.

They change no piece, so they are no part of the staging's key: a job with other limits reuses the pieces.
"""


def run(job: ShardJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return what it published; None after a dry run.

    Raises UsageError before anything starts (nothing matches, a flag is unknown, the output is finished), DataError
    when the input is too bad to publish, and StorageError when a disk or a store refuses.
    """
    check_launch(beam_arguments, known_flags)
    job = replace(
        job,
        encoding=canonical_encoding(job.encoding),
        language=find_language(job.language).code,
    )
    files = matching_files(job.input)
    input_bytes = sum(file.size for file in files)
    options = beam_options(beam_arguments, known_flags, input_bytes)

    output = path_for_workers("--output", job.output, options)
    staging = plan_staging(output, "text", _identity(job, files))
    inputs = [Input(path=storage.printable(file.path), bytes=file.size) for file in files]
    wanted = Wanted("text", Provenance(recorded_options(job), inputs, job.seed), job.overwrite)
    finished = finished_manifest(wanted, staging, is_dry_run(options))
    if finished is not None:
        return finished

    splits = [_for_workers(split, options) for split in plan_splits(files, job.format, job.encoding)]
    graph = ShardCorpora(
        splits=len(splits),
        input_bytes=input_bytes,
        job=job,
        reading=_read_options(job),
        provenance=Provenance(recorded_options(job), [], job.seed),
        shuffle=chosen_shuffle(job.shuffle, options),
        staging=staging,
    )
    work = Work("split-", len(splits), input_bytes)

    def prepare() -> None:
        write_splits(splits, staging)
        write_inputs(inputs, staging)

    size = _estimate(job, files, len(splits))
    return execute(Execution("text", "Shard corpora", graph, options, staging, work, size, prepare), "shard")


def _estimate(job: ShardJob, files: list[InputFile], splits: int) -> estimate.Estimate:
    text_bytes = int(sum(estimate.text_bytes_of(file.path, file.size) for file in files))
    seconds = text_bytes / estimate.SPREAD_BYTES_PER_SECOND + text_bytes / estimate.GATHER_BYTES_PER_SECOND
    if job.dedup == "minhash":
        seconds += text_bytes / estimate.MINHASH_BYTES_PER_SECOND

    return estimate.Estimate(
        splits=splits,
        shards=job.num_shards or shards_for(text_bytes, job.shard_megabytes << 20),
        are_counted=job.num_shards is not None,
        input_bytes=sum(file.size for file in files),
        output_bytes=int(text_bytes * estimate.TEXT_SHARE),
        seconds=seconds,
    )


def _identity(job: ShardJob, files: list[InputFile]) -> dict[str, Any]:
    """What the pieces of the job depend on. Two jobs of one identity share their staging."""
    options = recorded_options(job)
    for name in JUDGED_AT_THE_END:
        del options[name]

    return {
        "options": options,
        "seed": job.seed,
        "files": [list(file) for file in files],
    }


def _read_options(job: ShardJob) -> ReadOptions:
    return ReadOptions(
        text_key=job.text_key,
        text_layout=job.text_layout,
        language=job.language,
        sentence_splitter=job.sentence_splitter,
        dedup=job.dedup,
        seed=job.seed,
        max_undecodable_ratio=job.max_undecodable_ratio,
        max_document_bytes=job.max_document_bytes,
        max_decompression_ratio=job.max_decompression_ratio,
    )


def _for_workers(split: Split, options: PipelineOptions) -> Split:
    """Return the split with paths that workers can open. The path as the user wrote it stays, for what is published."""
    pieces = [
        replace(piece, path=path_for_workers("--input", piece.path, options), path_as_written=piece.path)
        for piece in split.pieces
    ]
    return replace(split, pieces=tuple(pieces))
