"""The steps of `pairs`: building one pair shard, and publishing them all with the data card and the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from pipeline.card import data_card
from pipeline.options import PairsJob
from pipeline.pairs.build_shard import PairOptions, PairShard, build_shard, most_frequent_tokens
from pipeline.pairs.encoding import Encoder, EncoderPool
from pipeline.pairs.nsp_sop import PairingOptions
from pipeline.runtime.counters import Report, add_by_name, add_histograms, add_ledgers, total
from pipeline.runtime.manifest_parts import FolderSummary, PartSummary, summarize_folder
from pipeline.runtime.piece_checks import read_piece
from pipeline.runtime.publication import end_publication, is_published, publish_output
from pipeline.runtime.staging import Staging
from pipeline.steps.provenance import Provenance, ledger_entries
from schemas import FORMAT_VERSION, shards, storage
from schemas.errors import DataError
from schemas.manifest import Manifest, Shard, read_root, read_shards_of_part
from schemas.masking import Masking
from schemas.vocabulary import TOKENIZER_FILE, TOKENIZER_FILES, VOCABULARY_FOLDER, Model, Vocabulary, parse_vocabulary


@dataclass(frozen=True)
class TextFolder:
    """Identifies the text that pairs are made from, without its list of shards, which may be too long for a graph."""

    fingerprint: str
    num_shards: int
    num_parts: int

    @classmethod
    def of(cls, manifest: Manifest) -> TextFolder:
        """Return the identity of the text folder that has this manifest."""
        return cls(manifest.fingerprint, manifest.num_shards, len(manifest.parts_of("shards")))


@dataclass(frozen=True)
class PairsPlan:
    """What a worker needs to build any pair shard of a job.

    job: the job's options, with paths that workers can open.
    tokenizer_json: the vocabulary, without BPE dropout.
    model: the model family that the vocabulary is for.
    text: the identity of the text folder; workers read its list of shards themselves.
    staging: the staging area of the output folder.
    """

    job: PairsJob
    tokenizer_json: bytes
    model: Model
    text: TextFolder
    staging: Staging

    @property
    def num_shards(self) -> int:
        """The number of pair shards: one for each text shard and pass."""
        return self.text.num_shards * self.job.dupe_factor

    @property
    def text_parts(self) -> int:
        """The number of parts in which workers read the text folder's list of shards, at least 1."""
        return max(1, self.text.num_parts)

    def shard_name(self, index: int) -> str:
        """The file name of a pair shard."""
        return shards.shard_name("pairs", index, self.num_shards)


@dataclass(frozen=True)
class PairTask:
    """One pair shard to build: its number, its text shard, and the number of the pass over the text."""

    index: int
    text_shard: Shard
    pass_number: int


def pair_tasks(part: int, plan: PairsPlan) -> list[PairTask]:
    """Return the pair shards to build from one part of the text folder's list of shards.

    Raises DataError if the text folder was replaced after the job started.
    """
    first, text_shards = read_shards_of_part(plan.job.text, "text", plan.text.fingerprint, part)

    # Each pass gets its own shards, so two passes over a document never share one.
    tasks = []
    for pass_number in range(plan.job.dupe_factor):
        for place, text_shard in enumerate(text_shards, first):
            index = pass_number * plan.text.num_shards + place
            tasks.append(PairTask(index, text_shard, pass_number))
    return tasks


def build_pair_shard(task: PairTask, plan: PairsPlan) -> Report:
    """Build one pair shard and return its report. A shard that an earlier attempt finished is not built again."""
    name = plan.shard_name(task.index)
    done = plan.staging.report_of_shard(name)
    if done is not None:
        return done

    job = plan.job
    pairing = PairingOptions(job.objective, job.max_length, job.short_seq_prob, job.seed)
    masking = Masking(job.masking, job.mask_prob, job.max_predictions)
    options = PairOptions(pairing, job.static_masks, masking)
    vocabulary = _vocabulary(plan.tokenizer_json)

    with _encoders(plan.tokenizer_json, plan.model, job.word_segmenter).lend() as encoder:
        target = PairShard(name, job.text, task.text_shard, task.pass_number)
        data, report = build_shard(target, encoder, vocabulary, options)
    return plan.staging.keep_shard(name, data, report)


@lru_cache(maxsize=1)
def _vocabulary(tokenizer_json: bytes) -> Vocabulary:
    """Return the vocabulary, parsed once per process because that takes up to 0.2 s. Threads may share it."""
    return parse_vocabulary(tokenizer_json, TOKENIZER_FILE)


@lru_cache(maxsize=1)
def _encoders(tokenizer_json: bytes, model: Model, word_segmenter: str) -> EncoderPool:
    """Return this process's pool of encoders, which keep their caches from one shard to the next.

    `lru_cache` does not lock: two threads that call this first at the same time may each make a pool. The pool that
    the cache does not keep still serves the shard it was made for.
    """
    return EncoderPool(partial(_new_encoder, tokenizer_json, model, word_segmenter))


def _new_encoder(tokenizer_json: bytes, model: Model, word_segmenter: str) -> Encoder:
    if word_segmenter == "none":
        return Encoder(tokenizer_json, model)

    from pipeline.pairs.word_segmentation import joined_words  # loads a dictionary, which takes 1 s and 150 MB

    return Encoder(tokenizer_json, model, joined_words)


def add_pair_reports(reports: list[Report]) -> Report:
    """Sum the reports of pair shards. The sum has the form of a report, so sums can be summed in turn."""
    sums: Report = {
        "labels": add_histograms(reports, "labels"),
        "contradicted_labels": total(reports, "contradicted_labels"),
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


def publish_pairs(summaries: list[PartSummary], plan: PairsPlan, provenance: Provenance) -> None:
    """Publish the pair shards that `summaries` describe, with card.html and a copy of the vocabulary.

    Raises DataError if the pair shards have no rows.
    """
    folder = summarize_folder(summaries, add_pair_reports)
    vocabulary = parse_vocabulary(plan.tokenizer_json, TOKENIZER_FILE)
    sample = _read_largest_shard(folder.largest, plan.staging, vocabulary)
    manifest = _manifest(folder, sample, vocabulary, provenance)
    if manifest.totals["rows"] == 0:
        raise _no_row(manifest, plan.job)

    if is_published(plan.staging, manifest):
        end_publication(plan.staging)
        return

    plan.staging.put("card.html", data_card(manifest, sample, vocabulary).encode())
    extra = {"card.html": "card.html"} | _stage_vocabulary(plan)
    publish_output(plan.staging, manifest, extra, folder.generation)


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

    advice = "look at the text with `clozeline inspect`"
    if text.num_shards > 1:
        advice += ", or run `shard` with fewer --num_shards"
    return DataError(
        f"{start}A pair needs documents of at least two sentences, and nsp also two documents per shard: {advice}."
    )


def _stage_vocabulary(plan: PairsPlan) -> dict[str, str]:
    """Copy the vocabulary's files into staging, so that the pairs carry the vocabulary that their ids refer to.

    Returns the path in the output folder for each name in staging.
    """
    folder = plan.job.vocab
    paths = {}
    for name in sorted(TOKENIZER_FILES & set(storage.names(folder))):
        is_tokenizer = name == TOKENIZER_FILE
        data = plan.tokenizer_json if is_tokenizer else storage.read(storage.join(folder, name))
        plan.staging.put(f"{VOCABULARY_FOLDER}-{name}", data)
        paths[f"{VOCABULARY_FOLDER}-{name}"] = f"{VOCABULARY_FOLDER}/{name}"
    return paths


def _manifest(folder: FolderSummary, sample: pa.Table, vocabulary: Vocabulary, provenance: Provenance) -> Manifest:
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
        statistics=_statistics(folder.sums, sample, vocabulary),
        ledger=ledger_entries([folder.sums["ledger"]]),
        parts=folder.parts,
    )


def _statistics(sums: Report, sample: pa.Table, vocabulary: Vocabulary) -> dict[str, Any]:
    statistics: dict[str, Any] = {
        "labels": sums["labels"],
        "contradicted_labels": sums["contradicted_labels"],
        "lengths": sums["lengths"],
        "segment_a_lengths": sums["segment_a_lengths"],
        "unknown_tokens": sums["unknown_tokens"],
        "unknown_words": sums["unknown_words"],
        "words": sums["words"],
        "duplicate_rows": sums["duplicate_rows"],
        "tokens_by_source": sums["source_tokens"],
        "commonest_tokens": most_frequent_tokens(sample, vocabulary),
    }
    if "masks" in sums:
        statistics["masks"] = sums["masks"]
    return statistics
