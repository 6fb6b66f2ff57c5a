"""The last step of `shard`: publishes the text folder with its card, and the held-out folder before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.commit.finished import Provenance
from pipeline.commit.parts import Summary, in_parts, summarize_folder
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
from pipeline.readers.inputs import read_inputs
from pipeline.shard.holdout import HELD_OUT, NOT_HELD_OUT, SIDE
from pipeline.shard.survey import CorpusSurvey
from pipeline.shard.write_shard import add_lengths
from pipeline.text_card import ledger_table, text_card, text_facts
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


def publish_text(
    survey: CorpusSurvey, provenance: Provenance, stagings: Sequence[Staging], *summaries: list[Summary]
) -> None:
    """Publish the text shards, and the excerpts of rejected records, after the held-out shards.

    With this order, a finished text folder always has its held-out folder. If an older text folder is replaced, its
    manifest is removed before the held-out folder changes, because the old text may contain documents that are now
    held out.

    stagings: of the text folder and, with --holdout, of the held-out folder. summaries: of the shards of each.
    """
    text, *held_out = [summarize_folder(of_folder, add_text_reports) for of_folder in summaries]
    staging = stagings[0]
    inputs = read_inputs(staging)
    if inputs is None:
        for published, of_folder in reversed([*zip([text, *held_out], stagings, strict=True)]):
            _check_published(of_folder, published.fingerprint("text"))
            end_publication(of_folder)
        return

    manifest = _manifest(survey, text, provenance, inputs, staging)
    for published, of_folder in zip(held_out, stagings[1:], strict=True):
        _, num_shards = shard_place(published.largest.path)
        held_out_manifest = _manifest(
            replace(survey, num_shards=num_shards, domains=None),  # the text has those of both sides
            _with_other_side(published, text),
            replace(provenance, options=provenance.options | SIDE),
            inputs,
            of_folder,
        )

        old_manifest = storage.join(staging.output, manifests.NAME)
        if storage.exists(old_manifest) and not is_published(staging, manifest):
            check_pieces(staging, manifest)
            check_pieces(of_folder, held_out_manifest)
            remove_older_manifest(old_manifest, manifest)
        publish_output(of_folder, held_out_manifest, _stage_card(held_out_manifest, inputs, of_folder))

    rejected = {f"{run}.rejected.jsonl": f"rejected/{run}.jsonl" for run in survey.rejected_runs}
    publish_output(staging, manifest, rejected | _stage_card(manifest, inputs, staging))


def _with_other_side(held_out: Summary, text: Summary) -> Summary:
    """Return the held-out folder's summary with its ledger.

    The ledger lists the text folder's losses, except the held-out documents, and the documents in the text folder.
    """
    entries = [entry for entry in text.sums["ledger"] if entry[0] != HELD_OUT]
    entries += [(NOT_HELD_OUT, source, count) for source, count in text.sums["sources"].items()]
    return replace(held_out, sums=held_out.sums | {"ledger": add_ledgers([entries])})


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
    survey: CorpusSurvey, folder: Summary, provenance: Provenance, inputs: list[Input], staging: Staging
) -> Manifest:
    listed, input_parts = in_parts("inputs", inputs, staging)
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
