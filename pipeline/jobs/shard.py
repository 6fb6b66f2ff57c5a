"""`python -m pipeline shard`: checks before the job starts, and the plan of its work."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.flags import recorded_options
from pipeline.jobs.finished import Wanted, finished_manifest, is_finished
from pipeline.options import ShardJob
from pipeline.runtime import estimate
from pipeline.runtime.engines import chosen_shuffle, path_for_workers
from pipeline.runtime.execution import Execution, execute
from pipeline.runtime.launch import check_launch, is_dry_run
from pipeline.runtime.progress import Work
from pipeline.runtime.runner import beam_options
from pipeline.runtime.staging import Staging, plan_staging
from pipeline.shard.documents import ReadOptions
from pipeline.shard.encodings import UTF8, canonical_encoding
from pipeline.shard.holdout import SIDE, held_out_folder
from pipeline.shard.inputs import Split, plan_splits
from pipeline.shard.job_files import write_inputs, write_splits
from pipeline.shard.languages import find_language
from pipeline.shard.listing import InputFile, matching_files
from pipeline.shard.plan import shards_for
from pipeline.steps.provenance import Provenance
from pipeline.transforms.shard import ShardCorpora
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import ClozelineError, UsageError
from schemas.manifest import Input, Manifest
from schemas.terminal import one_line

JUDGED_AT_THE_END = ("max_bad_ratio", "max_undecodable_ratio")
"""Options that only decide whether the result is published.

They change no piece, so they are not part of the staging's key: a job with other limits reuses the pieces.
"""


def run(job: ShardJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return the published manifest; None after a dry run.

    Raises UsageError before anything starts (nothing matches, a flag is unknown, the output is finished), DataError if
    the input is too bad to publish, and StorageError if a disk or a store fails.
    """
    checked = check_launch(beam_arguments, known_flags)
    job = replace(job, encoding=canonical_encoding(job.encoding), language=find_language(job.language).code)
    files = matching_files(*job.input)
    _check_inputs_are_outside(job.output, files)
    _warn_of_empty_files(files)
    input_bytes = sum(file.size for file in files)
    options = beam_options(checked, beam_arguments, input_bytes)

    output = path_for_workers("--output", job.output, options)
    staging = plan_staging(output, "text", _identity(job, files))
    inputs = [Input(path=storage.printable(file.path), bytes=file.size) for file in files]
    recorded = _recorded(job)
    wanted = Wanted("text", Provenance(recorded, inputs, job.seed), job.overwrite)
    held_out = _held_out_staging(job, files, output)
    dry_run = is_dry_run(options)
    if is_finished(wanted, staging, dry_run):
        _check_held_out_of_finished(wanted, held_out)
        return finished_manifest(wanted, staging, dry_run)

    _check_place_of_held_out(wanted, held_out, output, dry_run)
    splits = [_for_workers(split, options) for split in plan_splits(files, job.format, job.encoding)]
    _warn_of_flags_without_effect(job, splits)
    graph = ShardCorpora(
        splits=len(splits),
        input_bytes=input_bytes,
        job=job,
        reading=_read_options(job),
        provenance=Provenance(recorded, [], job.seed),
        shuffle=chosen_shuffle(job.shuffle, options),
        staging=staging,
        held_out=held_out,
    )
    return execute(_execution(graph, files, splits, inputs, options), "shard")


def _check_inputs_are_outside(output: str, files: list[InputFile]) -> None:
    """Raise UsageError if an input file is directly in the output folder, because a pattern may match shards next."""
    if not storage.is_local(output):
        return

    folder = os.path.realpath(storage.filesystem(output)[1])
    for file in files:
        if "://" not in file.path and os.path.dirname(os.path.realpath(file.path)) == folder:
            raise UsageError(
                f"--output {storage.printable(output)} is the folder of the input {storage.printable(file.path)}. Give "
                "--output another folder."
            )


def _warn_of_empty_files(files: list[InputFile]) -> None:
    """Print a warning if some of the files are empty, as after a failed download."""
    empty = [file.path for file in files if file.size == 0]
    if not empty or len(empty) == len(files):
        return

    first = one_line(storage.printable(empty[0]))
    found = f"{len(empty):,} of {len(files):,} input files are empty, the first: {first}"
    print(f"clozeline: warning: {found}", file=sys.stderr)


def _warn_of_flags_without_effect(job: ShardJob, splits: list[Split]) -> None:
    """Print a warning for each flag that has an effect on other formats than those of the input."""
    formats = {piece.format for split in splits for piece in split.pieces}
    if "auto" in formats:  # the workers detect them
        return

    for name, default, used_by, what in (
        ("text_key", "text", {"jsonl", "parquet"}, "JSON lines or Parquet"),
        ("text_layout", "blank_line", {"text"}, "plain text"),
        ("encoding", UTF8, {"text", "jsonl", "wikiextractor"}, "text or JSON lines"),
    ):
        value = getattr(job, name)
        if value != default and not formats & used_by:
            print(f"clozeline: warning: --{name} {value} changes nothing: no input is {what}.", file=sys.stderr)


def _execution(
    graph: ShardCorpora, files: list[InputFile], splits: list[Split], inputs: list[Input], options: PipelineOptions
) -> Execution:
    """Return what the graph needs to run. Its lists of splits and inputs are written just before it runs."""
    staging = graph.staging

    def prepare() -> None:
        write_splits(splits, staging)
        write_inputs(inputs, staging)

    return Execution(
        kind="text",
        label="Shard corpora",
        graph=graph,
        options=options,
        staging=staging,
        work=Work("split-", len(splits), graph.input_bytes),
        estimate=_estimate(graph.job, files, len(splits)),
        prepare=prepare,
        published_first=() if graph.held_out is None else (graph.held_out,),
    )


def _recorded(job: ShardJob) -> dict[str, Any]:
    """Return the options that the manifest records: --holdout only if it was given."""
    options = recorded_options(job)
    if job.holdout is None:
        del options["holdout"]
    return options


def _held_out_staging(job: ShardJob, files: list[InputFile], output: str) -> Staging | None:
    """Return the staging of the held-out folder; None without --holdout."""
    if job.holdout is None:
        return None
    return plan_staging(held_out_folder(output), "text", _identity(job, files) | SIDE)


def _of_held_out(wanted: Wanted) -> Wanted:
    """Return what the held-out folder should be made from. Its number of shards always follows from its text."""
    options = wanted.provenance.options | SIDE | {"num_shards": None}
    return replace(wanted, provenance=replace(wanted.provenance, options=options))


def _check_held_out_of_finished(wanted: Wanted, held_out: Staging | None) -> None:
    """Raise UsageError if a finished text folder has lost its held-out folder, which the same job makes."""
    if held_out is not None and not is_finished(_of_held_out(wanted), held_out):
        raise UsageError(
            f"The output is finished, but the documents held out of it are not at {held_out.output}, where they were "
            "published. Move them back, or give --overwrite to make both folders again."
        )


def _check_place_of_held_out(wanted: Wanted, held_out: Staging | None, output: str, dry_run: bool) -> None:
    """Raise UsageError if documents that were held out before conflict with this command."""
    if held_out is None:
        _check_no_held_out(output)
    else:
        # Called only to raise an error if another result is there; this command's own result is no conflict.
        is_finished(_of_held_out(wanted), held_out, dry_run)


def _check_no_held_out(output: str) -> None:
    """Raise UsageError if documents that an earlier command held out would now be in the text as well."""
    manifest = None
    with contextlib.suppress(ClozelineError):  # an unreadable folder was not held out of this output
        url = storage.join(held_out_folder(output), manifests.NAME)
        if storage.exists(url):
            manifest = manifests.parse_manifest(storage.read(url), url)

    if manifest is not None and SIDE.items() <= manifest.options.items():
        raise UsageError(
            f"{held_out_folder(output)} holds documents that were held out of {output}, and without --holdout this "
            "command would put them into the text as well. Give the same --holdout, or remove that folder."
        )


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
    """Return what the pieces of the job depend on. Jobs with the same identity share their staging."""
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
    """Return the split with paths that workers can open. The path as the user wrote it is kept for the result."""
    pieces = [
        replace(piece, path=path_for_workers("--input", piece.path, options), path_as_written=piece.path)
        for piece in split.pieces
    ]
    return replace(split, pieces=tuple(pieces))
