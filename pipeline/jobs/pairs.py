"""`python -m pipeline pairs`: checks before the job starts, and the plan of its work."""

from __future__ import annotations

from dataclasses import replace

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.beam import estimate
from pipeline.beam.display import Work
from pipeline.beam.engines import beam_options, check_launch, is_dry_run, path_for_workers
from pipeline.beam.runner import Execution, execute
from pipeline.flags import recorded_options
from pipeline.jobs.finished import Wanted, finished_manifest
from pipeline.options import PairsJob
from pipeline.pairs.published_tokenizer import check_encoding, without_dropout
from pipeline.runtime.staging import plan_staging
from pipeline.steps.pairs import PairsPlan, TextFolder
from pipeline.steps.provenance import Provenance
from pipeline.transforms.pairs import WritePairs
from pipeline.words.rules import check_rules
from schemas import storage
from schemas.errors import UsageError
from schemas.manifest import Input, Manifest, read_manifest
from schemas.vocabulary import TOKENIZER_FILE, Vocabulary, parse_vocabulary, read_vocabulary

MIN_LENGTH = 8  # three special tokens and room for two segments
MAX_LENGTH = (1 << 16) - 1  # positions are stored in 16 bits


def run(job: PairsJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest | None:
    """Run the job to its end and return the published manifest, as `shard` does. Raises the same errors."""
    checked = check_launch(beam_arguments, known_flags)
    text = read_manifest(job.text, "text")
    published = read_vocabulary(job.vocab)
    tokenizer_json, dropout, vocabulary = _read_tokenizer(job.vocab)
    check(job, vocabulary)
    check_rules(tokenizer_json, vocabulary.model, job.vocab)
    check_encoding(tokenizer_json, vocabulary, job.vocab)

    inputs = [
        Input(path=storage.printable(job.text), fingerprint=text.fingerprint),
        Input(path=storage.printable(job.vocab), fingerprint=published.fingerprint),
    ]
    recorded = recorded_options(job)
    identity = {
        "options": recorded,
        "seed": job.seed,
        "text": text.fingerprint,
        "vocab": vocabulary.fingerprint,
    }

    options = beam_options(checked, beam_arguments, text.totals["text_bytes"])
    job = _for_workers(job, options)
    staging = plan_staging(job.output, "pairs", identity)
    provenance = Provenance(recorded | removed_dropout(dropout), inputs, job.seed)
    finished = finished_manifest(Wanted("pairs", provenance, job.overwrite), staging, is_dry_run(options))
    if finished is not None:
        return finished

    plan = PairsPlan(job, tokenizer_json, vocabulary.model, TextFolder.of(text), staging)
    graph = WritePairs(plan, provenance)
    work = Work("pairs-", plan.num_shards, job.dupe_factor * text.totals["text_bytes"])
    execution = Execution(
        kind="pairs",
        label="Write pairs",
        graph=graph,
        options=options,
        staging=staging,
        work=work,
        estimate=lambda: _estimate(text, plan, work),
    )
    return execute(execution, "pairs")


def _estimate(text: Manifest, plan: PairsPlan, work: Work) -> estimate.Estimate:
    return estimate.Estimate(
        splits=text.num_shards,
        shards=plan.num_shards,
        are_counted=True,
        input_bytes=text.totals["text_bytes"],
        output_bytes=int(work.bytes * estimate.PAIRS_SHARE),
        seconds=work.bytes / estimate.PAIRS_BYTES_PER_SECOND,
    )


def _read_tokenizer(folder: str) -> tuple[bytes, float, Vocabulary]:
    """Return tokenizer.json without BPE dropout, the dropout that it had, and its vocabulary."""
    url = storage.join(folder, TOKENIZER_FILE)
    tokenizer_json, dropout = without_dropout(storage.read(url), url)
    return tokenizer_json, dropout, parse_vocabulary(tokenizer_json, url)


def check(job: PairsJob, vocabulary: Vocabulary) -> None:
    """Raise UsageError for options that contradict one another or with which no row could be made."""
    if job.max_length < MIN_LENGTH:
        raise UsageError(f"--max_length {job.max_length} is too short for two segments. Give at least {MIN_LENGTH}.")
    if job.max_length > MAX_LENGTH:
        raise UsageError(
            f"--max_length {job.max_length} is more than the 16-bit positions of a shard allow. "
            f"Give at most {MAX_LENGTH}."
        )
    if job.word_segmenter == "jieba" and vocabulary.model != "wordpiece":
        raise UsageError(
            f"--word_segmenter jieba needs a token for each Chinese character, which {vocabulary.model} does not have. "
            "Use a wordpiece vocabulary, or leave the flag out."
        )


def removed_dropout(dropout: float) -> dict[str, float]:
    """Return what the manifest records about a published tokenizer's dropout; empty if it had none."""
    return {"removed_dropout": dropout} if dropout else {}


def _for_workers(job: PairsJob, options: PipelineOptions) -> PairsJob:
    """Return the job with paths that workers can open."""
    return replace(
        job,
        text=path_for_workers("--text", job.text, options),
        vocab=path_for_workers("--vocab", job.vocab, options),
        output=path_for_workers("--output", job.output, options),
    )
