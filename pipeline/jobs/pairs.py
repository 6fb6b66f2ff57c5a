"""`python -m pipeline pairs`: the job's options, what is checked before it starts, and the folder it ends with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal

import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.data_card.card import data_card
from pipeline.pairs.build_shard import PairOptions, build_shard
from pipeline.pairs.encoding import Encoder, EncoderPool
from pipeline.pairs.nsp_sop import Objective, PairingOptions
from pipeline.pairs.published_tokenizer import check_encoding, without_dropout
from pipeline.pairs.statistics import commonest_tokens
from pipeline.runtime import runner as beam_runner
from pipeline.runtime.counters import add_by_name, add_histograms, add_ledgers, total
from pipeline.runtime.engines import path_for_workers
from pipeline.runtime.execution import Execution, execute
from pipeline.runtime.staging import Staging, check_pieces, plan_staging, publish_folder
from pipeline.transforms import WritePairs
from pipeline.vocab.pretokenize import check_rules
from schemas import FORMAT_VERSION, manifest, shards, storage
from schemas.errors import DataError, UsageError
from schemas.manifest import Input, LedgerEntry, Manifest, Shard, read_manifest
from schemas.masking import Kind, Masking
from schemas.vocabulary import FILE, FOLDER, TOKENIZER_FILES, Model, Vocabulary, parse_vocabulary, read_vocabulary

MIN_LENGTH = 8  # three special tokens and room for two segments
MAX_LENGTH = (1 << 16) - 1  # positions are stored in 16 bits


@dataclass(frozen=True, kw_only=True)
class PairsJob:
    """The flags of the job; the command line gives each its default and its help."""

    text: str
    vocab: str
    output: str
    objective: Objective
    max_length: int
    short_seq_prob: float
    dupe_factor: int
    word_segmenter: Literal["none", "jieba"]
    static_masks: int
    masking: Kind
    mask_prob: float
    max_predictions: int | None
    seed: int
    overwrite: bool


def run(job: PairsJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return what it published, as `shard` does. Raises the same errors."""
    text = read_manifest(job.text, "text")
    published = read_vocabulary(job.vocab)
    tokenizer_url = storage.join(job.vocab, FILE)
    tokenizer_json, dropout = without_dropout(storage.read(tokenizer_url), tokenizer_url)
    vocabulary = parse_vocabulary(tokenizer_json, tokenizer_url)
    check(job, vocabulary)
    check_rules(tokenizer_json, vocabulary.model, job.vocab)
    check_encoding(tokenizer_json, vocabulary, job.vocab)
    options = beam_runner.beam_options(beam_arguments, known_flags, text.totals["text_bytes"])
    unrecorded = ("text", "vocab", "output", "seed", "overwrite")
    recorded = {name: value for name, value in asdict(job).items() if name not in unrecorded}
    identity = {"options": recorded, "seed": job.seed, "text": text.fingerprint, "vocab": vocabulary.fingerprint}
    given = job
    job = _for_workers(job, options)
    dry_run = beam_runner.is_dry_run(options)
    staging = plan_staging(job.output, "pairs", job.overwrite, identity, dry_run)
    inputs = [
        Input(path=storage.shown(given.text), fingerprint=text.fingerprint),
        Input(path=storage.shown(given.vocab), fingerprint=published.fingerprint),
    ]
    build = partial(_build, job, tokenizer_json, vocabulary.model, staging, text.shards)
    graph = WritePairs(
        shards=list(range(len(text.shards) * job.dupe_factor)),
        build=build,
        finish=partial(_finish, job, recorded | removed_dropout(dropout), inputs, vocabulary, tokenizer_json, staging),
    )
    weights = {
        f"{pair_shard(index, text.shards, job)}.json": text.shards[index % len(text.shards)].bytes
        for index in graph.shards
    }
    return execute(Execution("pairs", "Write pairs", graph, options, staging, weights), "pairs")


def _for_workers(job: PairsJob, options: PipelineOptions) -> PairsJob:
    """The job with paths that workers can open."""
    return replace(
        job,
        text=path_for_workers("--text", job.text, options),
        vocab=path_for_workers("--vocab", job.vocab, options),
        output=path_for_workers("--output", job.output, options),
    )


def check(job: PairsJob, vocabulary: Vocabulary) -> None:
    """Raises UsageError for options that no row could be made with, or that contradict one another."""
    if job.max_length < MIN_LENGTH:
        raise UsageError(f"--max_length {job.max_length} is too short for two segments. Give at least {MIN_LENGTH}.")
    if job.max_length > MAX_LENGTH:
        raise UsageError(f"--max_length {job.max_length} is beyond the positions of a row. Give at most {MAX_LENGTH}.")
    if job.word_segmenter == "jieba" and vocabulary.model != "wordpiece":
        raise UsageError(
            f"--word_segmenter jieba needs a token for each Chinese character, which {vocabulary.model} has not. "
            "Use a wordpiece vocabulary, or leave the flag out."
        )


def pair_shard(index: int, text: list[Shard], job: PairsJob) -> str:
    return shards.shard_name("pairs", index, len(text) * job.dupe_factor)


def removed_dropout(dropout: float) -> dict[str, float]:
    """Return what the manifest records of the dropout that a published tokenizer had; nothing if it had none."""
    return {"removed_dropout": dropout} if dropout else {}


@lru_cache(maxsize=1)
def _encoders(tokenizer_json: bytes, model: Model, word_segmenter: str) -> EncoderPool:
    """The encoders of a worker process, so that what one remembers serves further shards.

    Two threads that come first may make a pool each. The one that is not kept serves the shard that it was made for.
    """
    return EncoderPool(partial(_new_encoder, tokenizer_json, model, word_segmenter))


def _new_encoder(tokenizer_json: bytes, model: Model, word_segmenter: str) -> Encoder:
    if word_segmenter == "none":
        return Encoder(tokenizer_json, model)
    from pipeline.pairs.word_segmentation import joined_words  # its dictionary takes a second and 150 MB

    return Encoder(tokenizer_json, model, joined_words)


def _build(
    job: PairsJob, tokenizer_json: bytes, model: Model, staging: Staging, text: list[Shard], index: int
) -> dict[str, Any]:
    """Pair shard `index`: text shard index % n in pass index // n, so two passes of a document never share a shard."""
    name = pair_shard(index, text, job)
    done = staging.report(name)
    if done is not None:
        return done
    pairing = PairingOptions(job.objective, job.max_length, job.short_seq_prob, job.seed)
    making = PairOptions(pairing, job.static_masks, Masking(job.masking, job.mask_prob, job.max_predictions))
    vocabulary = parse_vocabulary(tokenizer_json, FILE)
    pass_number, place = divmod(index, len(text))
    with _encoders(tokenizer_json, model, job.word_segmenter).lend() as encoder:
        data, report = build_shard(job.text, text[place], name, encoder, vocabulary, making, pass_number)
    staging.keep(name, data, report)
    return report


def _finish(
    job: PairsJob,
    recorded: dict[str, Any],
    inputs: list[Input],
    vocabulary: Vocabulary,
    tokenizer_json: bytes,
    staging: Staging,
    _: None,
    reports: list[dict[str, Any]],
) -> None:
    reports = sorted(reports, key=lambda report: report["shard"]["path"])
    sampled = Shard(**max(reports, key=lambda report: report["shard"]["rows"])["shard"])
    check_pieces(staging, [sampled])  # before it is read: a damaged one is to be made again
    fullest = sampled.path
    data = staging.piece(fullest)
    sample = shards.decode_table(data, fullest, shards.schema_of_pairs(data, fullest, vocabulary.size))
    finished = _manifest(job, recorded, inputs, vocabulary, reports, sample)
    if finished.totals["rows"] == 0:
        reasons = (
            "; ".join(f"{entry.reason}, {entry.source}: {entry.count}" for entry in finished.ledger) or "no document"
        )
        raise DataError(
            f"No row could be made from {job.text} ({reasons}). A pair needs documents of two sentences or more, "
            "and nsp two documents a shard: look at `python -m pipeline inspect`, or use fewer --num_shards."
        )

    extra = {"card.html": "card.html"}
    staging.put("card.html", data_card(finished, sample, vocabulary).encode())
    for name in {*storage.names(job.vocab)} & TOKENIZER_FILES:  # the ids' meaning travels with them
        data = tokenizer_json if name == FILE else storage.read(storage.join(job.vocab, name))
        staging.put(f"{FOLDER}-{name}", data)
        extra[f"{FOLDER}-{name}"] = f"{FOLDER}/{name}"
    publish_folder(staging, finished, extra)


def _manifest(
    job: PairsJob,
    recorded: dict[str, Any],
    inputs: list[Input],
    vocabulary: Vocabulary,
    reports: list[dict[str, Any]],
    sample: pa.Table,
) -> Manifest:
    entries = [Shard(**report["shard"]) for report in reports]
    tokens = sum(shard.tokens for shard in entries)
    return Manifest(
        format_version=FORMAT_VERSION,
        kind="pairs",
        options=recorded | {"vocabulary": vocabulary.fingerprint, "vocabulary_size": vocabulary.size},
        inputs=inputs,
        seed=job.seed,
        fingerprint=manifest.fingerprint("pairs", entries, vocabulary.fingerprint),
        shards=entries,
        totals={"rows": sum(shard.rows for shard in entries), "tokens": tokens},
        statistics={
            "labels": add_histograms(reports, "labels"),
            "contradicted_labels": total(reports, "contradicted_labels"),
            "lengths": add_histograms(reports, "lengths"),
            "segment_a_lengths": add_histograms(reports, "segment_a_lengths"),
            "unknown_tokens": total(reports, "unknown_tokens"),
            "duplicate_rows": total(reports, "duplicate_rows"),
            "tokens_by_source": add_by_name(reports, "source_tokens"),
            "commonest_tokens": commonest_tokens(sample, vocabulary),  # of one shard, which is a random sample
            **({"masks": add_by_name(reports, "masks")} if job.static_masks else {}),
        },
        ledger=[
            LedgerEntry(reason=reason, source=source, count=n)
            for reason, source, n in add_ledgers(report["ledger"] for report in reports)
        ],
    )
