"""`python -m pipeline shard --filters ... --sample N`: tries the rules on a sample and writes a page about them.

Unlike the job, this runs in the launcher's process, without Beam: a few thousand documents take seconds.
"""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory

from pipeline.filter_page import cleaned, filter_page, listed, table_lines
from pipeline.jobs.shard import check_inputs_are_outside, reading_options
from pipeline.jobs.shard_options import resolved
from pipeline.options import ShardJob
from pipeline.readers.formats import ForeignFileError
from pipeline.readers.inputs import FileRange, plan_splits
from pipeline.readers.listing import Listing, list_inputs, without
from pipeline.readers.record import Record, Rejected, place_in_words
from pipeline.readers.sampling import sample
from pipeline.shard.contamination import EVALUATION_SETS, EvaluationSets
from pipeline.shard.detection import AUTO
from pipeline.shard.trial import Origin, Trial
from schemas import storage
from schemas.errors import UsageError
from schemas.terminal import one_line

SUFFIX = ".html"


def run(job: ShardJob) -> list[str]:
    """Write the page and return the lines for the terminal.

    Raises UsageError before anything is read (no --filters, a page that exists, nothing matches), DataError for a file
    that cannot be read, and StorageError if the page cannot be written.
    """
    count = job.sample or 0
    if job.filters is None:
        raise UsageError("--sample tries the rules of --filters, which is missing: give --filters c4, say.")
    if job.inputs is not None:
        raise UsageError("--sample tries the rules on one corpus: give its files with --input instead of --inputs.")
    decided = resolved(job)
    job = decided.job
    _check_output(job)
    (listing,) = without([list_inputs(*(job.input or []))], job.exclude or ())
    check_inputs_are_outside(job.output, listing)
    _check_is_no_input(job.output, listing)

    splits = plan_splits(listing.files, job.format, job.encoding, listing.in_folders)
    with TemporaryDirectory() as folder:
        reading = reading_options(job, _stored(decided.sets, folder), has_languages=job.language == AUTO)
        trial = Trial(reading)
        for record, file_range in sample(splits, count, reading):
            _add(trial, record, file_range)

    storage.publish(job.output, filter_page(trial, count).encode(errors="replace"))
    return [*table_lines(trial), *_notes(trial), f"{one_line(storage.printable(job.output))}: examples of each rule"]


def _stored(sets: EvaluationSets | None, folder: str) -> str:
    """Write the sets of --decontaminate into a folder, and return the path of their file; empty without any."""
    if sets is None:
        return ""
    path = os.path.join(folder, EVALUATION_SETS)
    with open(path, "wb") as file:
        file.write(sets.to_bytes())
    return path


def _notes(trial: Trial) -> list[str]:
    notes = {"cleaned": cleaned(trial), "not among the documents": listed(trial.not_documents.items())}
    return [f"{name}: {note}" for name, note in notes.items() if note]


def _add(trial: Trial, record: Record | Rejected | ForeignFileError, file_range: FileRange) -> None:
    if isinstance(record, Record):
        place = place_in_words(record.position, file_range.place(record.position))
        trial.add(record.text, Origin(record.source, f"{place} of {file_range.display_path}"))
    elif isinstance(record, ForeignFileError):
        trial.not_documents[f"file that looks like {record.kind}"] += 1
    elif record.reason in file_range.reader.harmless:
        trial.not_documents[record.reason] += record.count
    else:
        trial.leave_out(record.reason, record.size)


def _check_output(job: ShardJob) -> None:
    """Raise UsageError unless a page may be written to --output."""
    shown = storage.printable(job.output)
    if not job.output.lower().endswith(SUFFIX):
        raise UsageError(f"--output {shown}: with --sample it is a page. Give a name that ends in {SUFFIX}.")
    if storage.is_local(job.output):
        if os.path.isdir(storage.filesystem(job.output)[1]):
            raise UsageError(f"--output {shown} is a folder. With --sample it is a page: give another name.")
        storage.check_writable_folder(os.path.dirname(job.output) or ".")
    if storage.exists(job.output) and not job.overwrite:
        raise UsageError(f"--output {shown} exists. Give another name, or --overwrite to replace it.")


def _check_is_no_input(output: str, listing: Listing) -> None:
    for file in listing.files:
        if file.path == output or (
            storage.is_local(output) and storage.is_local(file.path) and _real(file.path) == _real(output)
        ):
            raise UsageError(f"--output {storage.printable(output)} is a file of --input. Give another name.")


def _real(path: str) -> str:
    return os.path.realpath(storage.filesystem(path)[1])
