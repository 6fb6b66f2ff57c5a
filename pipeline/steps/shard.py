"""The last step of `shard`: publishing the text.

The other steps are `write_runs`, `plan_shards` and `write_shard` in pipeline/shard.
"""

from __future__ import annotations

from pipeline.runtime.counters import Report, add_by_name, add_histograms, total
from pipeline.runtime.publication import publish_output
from pipeline.runtime.staging import Staging
from pipeline.shard.plan import CorpusSurvey
from pipeline.steps.provenance import Provenance, by_path, ledger_entries
from schemas import FORMAT_VERSION
from schemas.manifest import Manifest, Shard, fingerprint


def publish_text(survey: CorpusSurvey, reports: list[Report], provenance: Provenance, staging: Staging) -> None:
    """Publish the text shards that `reports` describe."""
    manifest = _manifest(survey, by_path(reports), provenance)
    rejected = {f"{run}.rejected.jsonl": f"rejected/{run}.jsonl" for run in survey.rejected}
    publish_output(staging, manifest, extra=rejected)


def _manifest(survey: CorpusSurvey, reports: list[Report], provenance: Provenance) -> Manifest:
    shards = [Shard(**report["shard"]) for report in reports]
    ledgers = [survey.ledger, *(report["ledger"] for report in reports)]
    return Manifest(
        format_version=FORMAT_VERSION,
        kind="text",
        options=provenance.options | {"num_shards": survey.num_shards},
        inputs=provenance.inputs,
        seed=provenance.seed,
        fingerprint=fingerprint("text", shards),
        shards=shards,
        totals={
            "documents": sum(shard.rows for shard in shards),
            "sentences": total(reports, "sentences"),
            "text_bytes": total(reports, "text_bytes"),
        },
        statistics={
            "language": provenance.options["language"],
            "cleaning": survey.cleaning,
            "undecodable": survey.undecodable,
            "unbroken_documents": survey.unbroken,
            "documents_by_source": add_by_name(reports, "sources"),
            "log2_sentences_per_document": add_histograms(reports, "sentences_per_document"),
            "log2_characters_per_sentence": add_histograms(reports, "characters_per_sentence"),
        },
        ledger=ledger_entries(ledgers),
    )
