"""`python -m pipeline pairs`: text shards and a vocabulary to pair shards.

    parts of the text's list of shards -> one pair shard for each text shard and pass -> a finished folder

A map: no pair shard needs another one. The last step publishes them with the data card, the ledger and a copy of the
vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList, PCollection

from pipeline.beam import estimate
from pipeline.beam.display import Work
from pipeline.beam.engine_checks import check_launch
from pipeline.beam.engines import beam_options, path_for_workers
from pipeline.beam.runner import Execution, run_job
from pipeline.beam.steps import SummarizeParts, call, call_last
from pipeline.card import data_card
from pipeline.commit.finished import Provenance, Wanted, folder_as_input
from pipeline.commit.parts import Summary, summarize_folder
from pipeline.commit.publish import CARD_FILE, LEDGER_FILE, end_publication, is_published, publish_output, read_piece
from pipeline.commit.reports import Report, add_by_name, add_histograms, add_ledgers, ledger_entries, total
from pipeline.commit.staging import Staging, plan_staging
from pipeline.flags import recorded_options
from pipeline.jobs.text_folder import DivideText, TextFolder
from pipeline.options import PairsJob
from pipeline.pairs.build_shard import PairShard, build_shard, most_frequent_tokens
from pipeline.pairs.corpus import PairOptions
from pipeline.pairs.encoding import TextEncoder, new_encoder
from pipeline.pairs.published_tokenizer import check_encoding, without_dropout
from pipeline.pairs.segmenters import NONE, chosen_segmenters, versions_of
from pipeline.text_card import ledger_table, text_facts
from pipeline.vocab.cut_words import check_rules
from pipeline.vocab.kinds import maker_of
from schemas import FORMAT_VERSION, shards, storage
from schemas.errors import DataError, UsageError
from schemas.manifest import NAME, Manifest, Shard, check_unchanged, read_manifest, read_root
from schemas.masking import Masking
from schemas.text_facts import TextFacts, dumped
from schemas.vocabulary import (
    TOKENIZER_FILE,
    TOKENIZER_FILES,
    VOCABULARY_FOLDER,
    Vocabulary,
    parse_vocabulary,
    read_vocabulary,
)
from schemas.vocabulary_kinds import Model

MIN_LENGTH = 8  # three special tokens and room for two segments
MAX_LENGTH = (1 << 16) - 1  # positions are stored in 16 bits
LISTED_LANGUAGES = 10  # in an error


# Options and plan, in the launcher


def run(job: PairsJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return the published manifest, as `shard` does. Raises the same errors."""
    checked = check_launch(beam_arguments, known_flags)
    text = read_manifest(job.text, "text")
    as_stored = read_vocabulary(job.vocab)
    url = storage.join(job.vocab, TOKENIZER_FILE)
    tokenizer_json, dropout = without_dropout(storage.read(url), url)
    vocabulary = parse_vocabulary(tokenizer_json, url)
    check(job, vocabulary)
    job = replace(job, languages=_chosen_languages(job, text))
    check_rules(tokenizer_json, vocabulary.model, job.vocab)
    check_encoding(tokenizer_json, vocabulary, job.vocab)

    recorded = recorded_options(job)
    if job.languages is None:
        del recorded["languages"]
    segmenters = chosen_segmenters(job.word_segmenter, job.languages, text)
    versions = versions_of(segmenters.values())
    if versions:
        recorded["segmenter_versions"] = versions
    identity = {
        "options": recorded,
        "seed": job.seed,
        "text": text.fingerprint,
        "vocab": vocabulary.fingerprint,
    }
    removed = {"removed_dropout": dropout} if dropout else {}
    inputs = [folder_as_input(job.text, text.fingerprint), folder_as_input(job.vocab, as_stored.fingerprint)]
    provenance = Provenance(recorded | removed, inputs, job.seed)

    options = beam_options(checked, beam_arguments, text.totals["text_bytes"])
    job = _for_workers(job, options)
    staging = plan_staging(job.output, "pairs", identity)
    plan = PairsPlan(job, tokenizer_json, vocabulary.model, TextFolder.of(job.text, text), staging, segmenters)
    execution = partial(_execution, WritePairs(plan, _facts(job, text), provenance), options)
    return run_job("pairs", Wanted("pairs", provenance, job.overwrite), staging, options, execution)


def check(job: PairsJob, vocabulary: Vocabulary) -> None:
    """Raise UsageError for options that contradict one another or with which no row could be made."""
    if job.max_length < MIN_LENGTH:
        raise UsageError(f"--max_length {job.max_length} is too short for two segments. Give at least {MIN_LENGTH}.")
    if job.max_length > MAX_LENGTH:
        raise UsageError(
            f"--max_length {job.max_length} is more than the 16-bit positions of a shard allow. "
            f"Give at most {MAX_LENGTH}."
        )
    if job.word_segmenter != NONE and not maker_of(vocabulary.model).isolates_ideographs:
        raise UsageError(
            f"--word_segmenter {job.word_segmenter} needs tokens that spell the characters of a word, which those of "
            f"{vocabulary.model} do not. Use a wordpiece vocabulary, or leave the flag out."
        )


def _chosen_languages(job: PairsJob, text: Manifest) -> str | None:
    """Return the codes of --languages, sorted. Raises UsageError if the text has no document in one of them."""
    if job.languages is None:
        return None
    found = text.statistics.get("documents_by_language")
    if not found:
        raise UsageError(f"--languages needs text of `shard --language auto`, and {job.text} has no languages.")

    codes = sorted({code.strip().lower() for code in job.languages.split(",")} - {""})
    for code in codes or [job.languages]:
        if code not in found:
            most = ", ".join(sorted(found, key=lambda name: (-found[name], name))[:LISTED_LANGUAGES])
            raise UsageError(f"--languages {code!r}: {job.text} has no document in it. Most are in {most}.")
    return ",".join(codes)


def _facts(job: PairsJob, text: Manifest) -> TextFacts:
    """Return the facts of the text. Raises DataError if its manifest does not have them in the form of this version."""
    try:
        return text_facts(text, text.inputs)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        found = " ".join(str(error).split())
        raise DataError(
            f"{storage.join(job.text, NAME)} does not say what is in the text ({found}). Copy the folder again or "
            "rebuild it with --overwrite."
        ) from error


def _for_workers(job: PairsJob, options: PipelineOptions) -> PairsJob:
    return replace(
        job,
        text=path_for_workers("--text", job.text, options),
        vocab=path_for_workers("--vocab", job.vocab, options),
        output=path_for_workers("--output", job.output, options),
    )


@dataclass(frozen=True)
class PairsPlan:
    """What a worker needs to build any pair shard of a job.

    job: the job's options, with paths that workers can open.
    tokenizer_json: the vocabulary, without BPE dropout.
    model: the kind of vocabulary. text: the folder of text shards.
    staging: the staging area of the output folder. segmenters: as `chosen_segmenters` returns them.
    """

    job: PairsJob
    tokenizer_json: bytes
    model: Model
    text: TextFolder
    staging: Staging
    segmenters: dict[str, str] = field(default_factory=dict)

    @property
    def languages(self) -> tuple[str, ...]:
        """The codes of the languages whose documents become rows; none for all."""
        return tuple(self.job.languages.split(",")) if self.job.languages else ()

    @property
    def num_shards(self) -> int:
        """The number of pair shards: one for each text shard and pass."""
        return self.text.num_shards * self.job.dupe_factor


def _execution(graph: WritePairs, options: PipelineOptions) -> Execution:
    plan = graph.plan
    work = Work("pairs-", plan.num_shards, plan.job.dupe_factor * plan.text.text_bytes)
    size = estimate.Estimate(
        shards=plan.num_shards,
        output_bytes=int(work.bytes * estimate.PAIRS_SHARE),
        seconds=work.bytes / estimate.PAIRS_BYTES_PER_SECOND,
    )
    return Execution("Write pairs", graph, options, plan.staging, work, size)


@dataclass
class WritePairs(beam.PTransform):
    """The job as a Beam graph. text_facts: for the manifest and the card."""

    plan: PairsPlan
    text_facts: TextFacts
    provenance: Provenance

    def expand(self, pbegin: Any) -> PCollection:
        summaries = (
            pbegin
            | "Shards" >> DivideText(self.plan.text, pair_shards, self.plan)
            | "Build" >> call(build_pair_shard, self.plan, counted="pairs")
            | "Summarize parts" >> SummarizeParts(add_pair_reports, self.plan.staging)
        )
        return pbegin | "Finish" >> call_last(
            publish_pairs, AsList(summaries), self.plan, self.text_facts, self.provenance
        )


# What workers do


def pair_shards(part: int, plan: PairsPlan) -> Iterator[tuple[int, PairShard]]:
    """Yield (number, pair shard to build) for one part of the text's list of shards.

    Raises DataError if the text folder was replaced after the job started.
    """
    first, text_shards = plan.text.read_part(part)

    # Each pass gets its own shards, so two passes over a document never share one.
    for pass_number in range(plan.job.dupe_factor):
        for place, text_shard in enumerate(text_shards, first):
            number = pass_number * plan.text.num_shards + place
            name = shards.shard_name("pairs", number, plan.num_shards)
            yield number, PairShard(name, plan.text.path, text_shard, pass_number, plan.languages)


def build_pair_shard(target: PairShard, plan: PairsPlan) -> Report:
    """Build one pair shard and return its report. A shard that an earlier attempt finished is not built again."""
    done = plan.staging.report(target.name)
    if done is not None:
        return done

    job = plan.job
    masking = Masking(job.masking, job.mask_prob, job.max_predictions)
    options = PairOptions(job.objective, job.max_length, job.short_seq_prob, job.seed, job.static_masks, masking)
    vocabulary = _vocabulary(plan.tokenizer_json)

    with _one_at_a_time:
        encoder = _encoder(plan.tokenizer_json, plan.model, tuple(plan.segmenters.items()))
        try:
            data, report = build_shard(target, encoder, vocabulary, options)
        except BaseException:  # the caches of an encoder that was interrupted may be incomplete
            _encoder.cache_clear()
            raise
    return plan.staging.keep(target.name, data, report)


@lru_cache(maxsize=1)
def _vocabulary(tokenizer_json: bytes) -> Vocabulary:
    """Return the vocabulary, parsed once per process because that takes up to 0.2 s. Threads may share it."""
    return parse_vocabulary(tokenizer_json, TOKENIZER_FILE)


@lru_cache(maxsize=1)
def _encoder(tokenizer_json: bytes, model: Model, segmenters: tuple[tuple[str, str], ...]) -> TextEncoder:
    """Return this process's encoder, which keeps its caches from one shard to the next."""
    return new_encoder(tokenizer_json, model, segmenters)


_one_at_a_time = threading.Lock()  # Beam may run several bundles in one process, each in a thread


def add_pair_reports(reports: list[Report]) -> Report:
    """Sum the reports of pair shards. The sum has the form of a report, so sums can be summed in turn."""
    sums: Report = {
        "labels": add_histograms(reports, "labels"),
        "lengths": add_histograms(reports, "lengths"),
        "segment_a_lengths": add_histograms(reports, "segment_a_lengths"),
        "unknown_tokens": total(reports, "unknown_tokens"),
        "unknown_words": total(reports, "unknown_words"),
        "words": total(reports, "words"),
        "duplicate_rows": total(reports, "duplicate_rows"),
        "source_tokens": add_by_name(reports, "source_tokens"),
        "ledger": add_ledgers(report["ledger"] for report in reports),
    }
    if "masks" in reports[0]:
        sums["masks"] = add_by_name(reports, "masks")
    return sums


# The last step, on a worker


def publish_pairs(summaries: list[Summary], plan: PairsPlan, facts: TextFacts, provenance: Provenance) -> None:
    """Publish the pair shards that `summaries` describe, with card.html, ledger.parquet and a copy of the vocabulary.

    Raises DataError if the pair shards have no rows, or if the text was replaced after the job started.
    """
    folder = summarize_folder(summaries, add_pair_reports)
    vocabulary = parse_vocabulary(plan.tokenizer_json, TOKENIZER_FILE)
    sample = _read_largest_shard(folder.largest, plan.staging, vocabulary)
    text = read_root(plan.text.path, "text")
    check_unchanged(plan.text.path, text, plan.text.fingerprint)
    statistics = _statistics(folder.sums, sample, vocabulary) | {"text": dumped(facts)}
    manifest = _manifest(folder, statistics, vocabulary, provenance)
    if manifest.totals["rows"] == 0:
        raise _no_row(manifest, plan.job)

    if is_published(plan.staging, manifest):
        end_publication(plan.staging)
        return

    plan.staging.put(CARD_FILE, data_card(manifest, sample, vocabulary).encode())
    plan.staging.put(LEDGER_FILE, ledger_table(text, manifest.ledger))
    extra = {CARD_FILE: CARD_FILE, LEDGER_FILE: LEDGER_FILE} | _stage_vocabulary(plan, provenance.inputs[1].fingerprint)
    publish_output(plan.staging, manifest, extra)


def _read_largest_shard(largest: Shard, staging: Staging, vocabulary: Vocabulary) -> pa.Table:
    """Return the rows of the largest shard. Documents are assigned to shards by hash, so they are a random sample."""
    data = read_piece(staging, largest)
    schema = shards.schema_of_pairs(data, largest.path, vocabulary.size)
    return shards.decode_table(data, largest.path, schema)


def _no_row(manifest: Manifest, job: PairsJob) -> DataError:
    causes = [f"{entry.reason}, {entry.source}: {entry.count}" for entry in manifest.ledger]
    reasons = "; ".join(causes) if causes else "no document"
    start = f"No row could be made from {job.text} ({reasons}). "
    text = read_root(job.text, "text")
    if job.objective == "nsp" and text.totals["documents"] == 1:
        return DataError(
            f"{start}nsp takes B from another document, and this text has one. Cut it into documents, or use "
            "--objective sop or full_sentences."
        )

    needed = "A pair needs documents of at least two sentences, and nsp also two documents per shard"
    if job.objective in ("full_sentences", "doc_sentences"):
        needed = "Rows need sentences with at least one token of the vocabulary"
    advice = "look at the text with `clozeline inspect`"
    if text.num_shards > 1 and job.objective in ("nsp", "sop"):
        advice += ", or run `shard` with fewer --num_shards"
    return DataError(f"{start}{needed}: {advice}.")


def _stage_vocabulary(plan: PairsPlan, fingerprint: str | None) -> dict[str, str]:
    """Copy the vocabulary's files into staging, so that the pairs carry the vocabulary that their ids refer to.

    Returns the path in the output folder for each name in staging. Raises DataError if the folder has changed.
    """
    folder = plan.job.vocab
    if read_vocabulary(folder).fingerprint != fingerprint:
        raise DataError(
            f"{folder} changed while the job ran: it holds another vocabulary. Restore it, and repeat the command, "
            "which continues."
        )
    paths = {}
    for name in sorted(TOKENIZER_FILES & set(storage.names(folder))):
        is_tokenizer = name == TOKENIZER_FILE
        data = plan.tokenizer_json if is_tokenizer else storage.read(storage.join(folder, name))
        plan.staging.put(f"{VOCABULARY_FOLDER}-{name}", data)
        paths[f"{VOCABULARY_FOLDER}-{name}"] = f"{VOCABULARY_FOLDER}/{name}"
    return paths


def _manifest(folder: Summary, statistics: dict[str, Any], vocabulary: Vocabulary, provenance: Provenance) -> Manifest:
    vocabulary_facts = {"vocabulary": vocabulary.fingerprint, "vocabulary_size": vocabulary.size}
    return Manifest(
        format_version=FORMAT_VERSION,
        kind="pairs",
        options=provenance.options | vocabulary_facts,
        inputs=provenance.inputs,
        seed=provenance.seed,
        fingerprint=folder.fingerprint("pairs", vocabulary.fingerprint),
        shards=folder.shards,
        totals={"rows": folder.rows, "tokens": folder.tokens},
        statistics=statistics,
        ledger=ledger_entries([folder.sums["ledger"]]),
        parts=folder.parts,
    )


def _statistics(sums: Report, sample: pa.Table, vocabulary: Vocabulary) -> dict[str, Any]:
    renamed = ("source_tokens", "masks", "ledger")
    statistics: dict[str, Any] = {
        **{name: value for name, value in sums.items() if name not in renamed},
        "tokens_by_source": sums["source_tokens"],
        "commonest_tokens": most_frequent_tokens(sample, vocabulary),
    }
    if "masks" in sums:
        statistics["masks"] = sums["masks"]
    return statistics
