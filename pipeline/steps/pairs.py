"""The steps of `pairs`: building one pair shard, and publishing them all with the data card and the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from pipeline.data_card.card import data_card
from pipeline.options import PairsJob
from pipeline.pairs.build_shard import PairOptions, PairShard, build_shard
from pipeline.pairs.encoding import Encoder, EncoderPool
from pipeline.pairs.nsp_sop import PairingOptions
from pipeline.pairs.statistics import most_frequent_tokens
from pipeline.runtime.counters import Report, add_by_name, add_histograms, total
from pipeline.runtime.publication import check_pieces, publish_output
from pipeline.runtime.staging import Staging
from pipeline.steps.provenance import Provenance, by_path, ledger_entries
from schemas import FORMAT_VERSION, shards, storage
from schemas.errors import DataError
from schemas.manifest import Manifest, Shard, fingerprint
from schemas.masking import Masking
from schemas.vocabulary import TOKENIZER_FILE, TOKENIZER_FILES, VOCABULARY_FOLDER, Model, Vocabulary, parse_vocabulary


@dataclass(frozen=True)
class PairsPlan:
    """What a worker needs to build any pair shard of a job.

    job: its options, with paths that workers can open.
    tokenizer_json: the vocabulary, without BPE dropout.
    model: what the vocabulary is for.
    text_shards: the shards of the text folder.
    """

    job: PairsJob
    tokenizer_json: bytes
    model: Model
    text_shards: list[Shard]
    staging: Staging

    @property
    def num_shards(self) -> int:
        """The number of pair shards: one for each text shard and pass."""
        return len(self.text_shards) * self.job.dupe_factor

    def shard_name(self, index: int) -> str:
        """The file name of a pair shard."""
        return shards.shard_name("pairs", index, self.num_shards)

    def text_shard(self, index: int) -> Shard:
        """The text shard that a pair shard is made from."""
        return self.text_shards[index % len(self.text_shards)]

    def pass_number(self, index: int) -> int:
        """The pass over the text that makes a pair shard. Two passes of a document never share a shard."""
        return index // len(self.text_shards)


def build_pair_shard(index: int, plan: PairsPlan) -> Report:
    """Build one pair shard and return its report. What an earlier attempt finished is not made again."""
    name = plan.shard_name(index)
    done = plan.staging.report(name)
    if done is not None:
        return done

    job = plan.job
    pairing = PairingOptions(job.objective, job.max_length, job.short_seq_prob, job.seed)
    masking = Masking(job.masking, job.mask_prob, job.max_predictions)
    options = PairOptions(pairing, job.static_masks, masking)
    vocabulary = parse_vocabulary(plan.tokenizer_json, TOKENIZER_FILE)

    with _encoders(plan.tokenizer_json, plan.model, job.word_segmenter).lend() as encoder:
        target = PairShard(name, job.text, plan.text_shard(index), plan.pass_number(index))
        data, report = build_shard(target, encoder, vocabulary, options)
    plan.staging.keep(name, data, report)
    return report


@lru_cache(maxsize=1)
def _encoders(tokenizer_json: bytes, model: Model, word_segmenter: str) -> EncoderPool:
    """Return the encoders of this process; what they have cached for one shard serves the next ones.

    Two threads that come first may make a pool each. The one that is not kept serves the shard that it was made for.
    """
    return EncoderPool(partial(_new_encoder, tokenizer_json, model, word_segmenter))


def _new_encoder(tokenizer_json: bytes, model: Model, word_segmenter: str) -> Encoder:
    if word_segmenter == "none":
        return Encoder(tokenizer_json, model)

    from pipeline.pairs.word_segmentation import joined_words  # its dictionary takes a second and 150 MB

    return Encoder(tokenizer_json, model, joined_words)


def publish_pairs(reports: list[Report], plan: PairsPlan, provenance: Provenance) -> None:
    """Publish the pair shards that `reports` describe, with card.html and a copy of the vocabulary.

    Raises DataError when there is not a single row.
    """
    reports = by_path(reports)
    vocabulary = parse_vocabulary(plan.tokenizer_json, TOKENIZER_FILE)
    sample = _read_largest_shard(reports, plan.staging, vocabulary)
    manifest = _manifest(reports, sample, vocabulary, provenance)
    if manifest.totals["rows"] == 0:
        raise _no_row(manifest, plan.job)

    plan.staging.put("card.html", data_card(manifest, sample, vocabulary).encode())
    extra = {"card.html": "card.html"} | _stage_vocabulary(plan)
    publish_output(plan.staging, manifest, extra)


def _read_largest_shard(reports: list[Report], staging: Staging, vocabulary: Vocabulary) -> pa.Table:
    """The shard with most rows. Hashing made it a random sample of the corpus."""
    largest = max(reports, key=lambda report: report["shard"]["rows"])
    shard = Shard(**largest["shard"])
    check_pieces(staging, [shard])  # before it is read, so that a damaged one is made again

    data = staging.piece(shard.path)
    schema = shards.schema_of_pairs(data, shard.path, vocabulary.size)
    return shards.decode_table(data, shard.path, schema)


def _no_row(manifest: Manifest, job: PairsJob) -> DataError:
    causes = [f"{entry.reason}, {entry.source}: {entry.count}" for entry in manifest.ledger]
    reasons = "; ".join(causes) if causes else "no document"
    return DataError(
        f"No row could be made from {job.text} ({reasons}). A pair needs documents of at least two sentences, and nsp "
        "also two documents per shard: look at the text with `python -m pipeline inspect`, or run `shard` with fewer "
        "--num_shards."
    )


def _stage_vocabulary(plan: PairsPlan) -> dict[str, str]:
    """Copy the vocabulary's files into staging, so that ids and their meaning travel together.

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


def _manifest(reports: list[Report], sample: pa.Table, vocabulary: Vocabulary, provenance: Provenance) -> Manifest:
    entries = [Shard(**report["shard"]) for report in reports]
    vocabulary_facts = {"vocabulary": vocabulary.fingerprint, "vocabulary_size": vocabulary.size}
    return Manifest(
        format_version=FORMAT_VERSION,
        kind="pairs",
        options=provenance.options | vocabulary_facts,
        inputs=provenance.inputs,
        seed=provenance.seed,
        fingerprint=fingerprint("pairs", entries, vocabulary.fingerprint),
        shards=entries,
        totals={
            "rows": sum(shard.rows for shard in entries),
            "tokens": sum(shard.tokens for shard in entries),
        },
        statistics=_statistics(reports, sample, vocabulary, has_masks=bool(provenance.options["static_masks"])),
        ledger=ledger_entries(report["ledger"] for report in reports),
    )


def _statistics(reports: list[Report], sample: pa.Table, vocabulary: Vocabulary, has_masks: bool) -> dict[str, Any]:
    statistics: dict[str, Any] = {
        "labels": add_histograms(reports, "labels"),
        "contradicted_labels": total(reports, "contradicted_labels"),
        "lengths": add_histograms(reports, "lengths"),
        "segment_a_lengths": add_histograms(reports, "segment_a_lengths"),
        "unknown_tokens": total(reports, "unknown_tokens"),
        "duplicate_rows": total(reports, "duplicate_rows"),
        "tokens_by_source": add_by_name(reports, "source_tokens"),
        "commonest_tokens": most_frequent_tokens(sample, vocabulary),
    }
    if has_masks:
        statistics["masks"] = add_by_name(reports, "masks")
    return statistics
