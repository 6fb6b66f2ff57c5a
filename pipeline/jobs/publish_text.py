"""The last step of `shard`: publishes the text folder with its card, and the held-out folder before it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.commit.finished import Provenance
from pipeline.commit.parts import FolderSummary, PartSummary, list_inputs, summarize_folder
from pipeline.commit.publish import (
    CARD_FILE,
    LEDGER_FILE,
    check_pieces,
    end_publication,
    is_published,
    publish_output,
    remove_older_manifest,
)
from pipeline.commit.reports import Report, add_by_name, add_ledgers, ledger_entries
from pipeline.commit.staging import Staging
from pipeline.ledger import ledger_table
from pipeline.readers.inputs import read_inputs
from pipeline.shard.holdout import HELD_OUT, NOT_HELD_OUT, SIDE
from pipeline.shard.survey import CorpusSurvey
from pipeline.shard.write_shard import add_lengths
from pipeline.text_card import text_card, text_facts
from schemas import FORMAT_VERSION, storage
from schemas import manifest as manifests
from schemas.errors import StorageError
from schemas.manifest import Input, Manifest, read_root
from schemas.shards import shard_place


def add_text_reports(reports: list[Report]) -> Report:
    """Sum the reports of text shards. The sum has the form of a report, so sums can be summed in turn."""
    cleaned = [report for report in reports if "cleaning" in report]  # those with --drop_repeats
    return {
        **add_lengths(reports),
        "sources": add_by_name(reports, "sources"),
        "languages": add_by_name(reports, "languages"),
        "cleaning": add_by_name(cleaned, "cleaning"),
        "ledger": add_ledgers(report["ledger"] for report in reports),
    }


@dataclass(frozen=True)
class TextStagings:
    """The staging areas of the text folder and of the held-out folder next to it."""

    text: Staging
    held_out: Staging


def publish_text(survey: CorpusSurvey, summaries: list[PartSummary], provenance: Provenance, staging: Staging) -> None:
    """Publish the text shards that `summaries` describe, and the excerpts of rejected records."""
    folder = summarize_folder(summaries, add_text_reports)
    inputs = read_inputs(staging)
    if inputs is None:
        _check_published(staging, folder.fingerprint("text"))
        end_publication(staging)
        return

    manifest = _manifest(survey, folder, provenance, inputs, staging)
    publish_output(staging, manifest, _rejected(survey) | _stage_card(manifest, inputs, staging))


def publish_with_held_out(
    survey: CorpusSurvey,
    summaries: list[PartSummary],
    held_out_summaries: list[PartSummary],
    provenance: Provenance,
    folders: TextStagings,
) -> None:
    """Publish the held-out folder and then the text folder, as `publish_text` does.

    With this order, a finished text folder always has its held-out folder. If an older text folder is replaced, its
    manifest is removed before the held-out folder changes, because the old text may contain documents that are now
    held out.
    """
    folder = summarize_folder(summaries, add_text_reports)
    held_out = summarize_folder(held_out_summaries, add_text_reports)
    inputs = read_inputs(folders.text)
    if inputs is None:
        for staging, published in ((folders.held_out, held_out), (folders.text, folder)):
            _check_published(staging, published.fingerprint("text"))
            end_publication(staging)
        return

    manifest = _manifest(survey, folder, provenance, inputs, folders.text)
    _, held_out_shards = shard_place(held_out.largest.path)
    held_out_manifest = _manifest(
        replace(survey, num_shards=held_out_shards, domains=None),  # the text has those of both sides
        _with_other_side(held_out, folder),
        replace(provenance, options=provenance.options | SIDE),
        inputs,
        folders.held_out,
    )

    old_manifest = storage.join(folders.text.output, manifests.NAME)
    if storage.exists(old_manifest) and not is_published(folders.text, manifest):
        check_pieces(folders.text, manifest)
        check_pieces(folders.held_out, held_out_manifest)
        remove_older_manifest(old_manifest, manifest)

    publish_output(folders.held_out, held_out_manifest, _stage_card(held_out_manifest, inputs, folders.held_out))
    publish_output(folders.text, manifest, _rejected(survey) | _stage_card(manifest, inputs, folders.text))


def _with_other_side(held_out: FolderSummary, text: FolderSummary) -> FolderSummary:
    """Return the held-out folder's summary with its ledger.

    The ledger lists the text folder's losses, except the held-out documents, and the documents in the text folder.
    """
    entries = [entry for entry in text.sums["ledger"] if entry[0] != HELD_OUT]
    entries += [(NOT_HELD_OUT, source, count) for source, count in text.sums["sources"].items()]
    return replace(held_out, sums=held_out.sums | {"ledger": add_ledgers([entries])})


def _rejected(survey: CorpusSurvey) -> dict[str, str]:
    """Return the names of the staged excerpts of rejected records, each with its path in the text folder."""
    return {f"{run}.rejected.jsonl": f"rejected/{run}.jsonl" for run in survey.rejected_runs}


def _stage_card(manifest: Manifest, inputs: list[Input], staging: Staging) -> dict[str, str]:
    """Put the card and the ledger's table into staging. Returns their paths in the text folder by their names there."""
    facts = text_facts(manifest, inputs)
    staging.put(CARD_FILE, text_card(manifest, facts).encode())
    staging.put(LEDGER_FILE, ledger_table(manifest))
    return {CARD_FILE: CARD_FILE, LEDGER_FILE: LEDGER_FILE}


def _check_published(staging: Staging, fingerprint: str) -> None:
    """Raise StorageError unless an earlier attempt at this step already published the folder.

    Such an attempt also removed its unfinished work, which explains why the list of inputs is gone.
    """
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
            "cleaning": add_by_name([{"cleaning": survey.cleaning}, sums], "cleaning"),
            "undecodable": survey.undecodable,
            "unbroken_documents": survey.unbroken,
            **({"paragraphs": survey.paragraphs} if survey.paragraphs else {}),
            **({"encodings": survey.encodings} if survey.encodings else {}),
            "documents_by_source": sums["sources"],
            **({"documents_by_language": sums["languages"]} if sums["languages"] else {}),
            **({"domains": survey.domains} if survey.domains else {}),
            "log2_sentences_per_document": sums["sentences_per_document"],
            "log2_characters_per_sentence": sums["characters_per_sentence"],
        },
        ledger=ledger_entries([survey.ledger, sums["ledger"]]),
        parts=[*folder.parts, *input_parts],
    )
