"""The last steps of `shard`: adding up what shards report, and publishing the text.

The other steps are `write_runs`, `plan_shards` and `write_shard` in pipeline/shard.
"""

from __future__ import annotations

from pipeline.runtime.counters import Report, add_by_name, add_histograms, add_ledgers, total
from pipeline.runtime.manifest_parts import FolderSummary, PartSummary, list_inputs, summarize_folder
from pipeline.runtime.publication import end_publication, publish_output
from pipeline.runtime.staging import Staging
from pipeline.shard.job_files import read_inputs
from pipeline.shard.plan import CorpusSurvey
from pipeline.steps.provenance import Provenance, ledger_entries
from schemas import FORMAT_VERSION
from schemas.errors import StorageError
from schemas.manifest import Input, Manifest, read_root


def add_text_reports(reports: list[Report]) -> Report:
    """Add up what the reports of text shards count. Sums can be added up like reports."""
    return {
        "sentences": total(reports, "sentences"),
        "text_bytes": total(reports, "text_bytes"),
        "sources": add_by_name(reports, "sources"),
        "sentences_per_document": add_histograms(reports, "sentences_per_document"),
        "characters_per_sentence": add_histograms(reports, "characters_per_sentence"),
        "ledger": add_ledgers(report["ledger"] for report in reports),
    }


def publish_text(survey: CorpusSurvey, summaries: list[PartSummary], provenance: Provenance, staging: Staging) -> None:
    """Publish the text shards that `summaries` describe, and the excerpts of rejected records."""
    folder = summarize_folder(summaries, add_text_reports)
    inputs = read_inputs(staging)
    if inputs is None:
        _check_published(staging, folder.fingerprint("text"))
        end_publication(staging)
        return

    manifest = _manifest(survey, folder, provenance, inputs, staging)
    rejected = {f"{run}.rejected.jsonl": f"rejected/{run}.jsonl" for run in survey.rejected}
    publish_output(staging, manifest, rejected, folder.generation)


def _check_published(staging: Staging, fingerprint: str) -> None:
    """Raises StorageError unless an earlier attempt at this step has published, and removed what was unfinished."""
    if read_root(staging.output, "text").fingerprint != fingerprint:
        raise StorageError(
            f"{staging.url('')} was removed while the job used it. Nothing was published. Run the same command again."
        )


def _manifest(
    survey: CorpusSurvey, folder: FolderSummary, provenance: Provenance, inputs: list[Input], staging: Staging
) -> Manifest:
    listed, input_parts = list_inputs(inputs, staging)
    sums = folder.sums
    return Manifest(
        format_version=FORMAT_VERSION,
        kind="text",
        options=provenance.options | {"num_shards": survey.num_shards},
        inputs=listed,
        seed=provenance.seed,
        fingerprint=folder.fingerprint("text"),
        shards=folder.shards,
        totals={
            "documents": folder.rows,
            "sentences": sums["sentences"],
            "text_bytes": sums["text_bytes"],
        },
        statistics={
            "language": provenance.options["language"],
            "cleaning": survey.cleaning,
            "undecodable": survey.undecodable,
            "unbroken_documents": survey.unbroken,
            "documents_by_source": sums["sources"],
            "log2_sentences_per_document": sums["sentences_per_document"],
            "log2_characters_per_sentence": sums["characters_per_sentence"],
        },
        ledger=ledger_entries([survey.ledger, sums["ledger"]]),
        parts=[*folder.parts, *input_parts],
    )
