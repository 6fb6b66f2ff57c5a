"""`python -m pipeline vocab`: the job's options and the folder it writes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline import beam_runner
from pipeline.staging import Staging, open_staging, publish_folder
from pipeline.transforms import TrainVocabulary
from pipeline.vocab.counting import add_counts, commonest_first, count_shard
from pipeline.vocab.learning import Learnt, learn
from pipeline.vocab.report import describe_vocabulary
from pipeline.vocab.tokenizer_files import vocabulary_files
from schemas import FORMAT_VERSION, shards, storage
from schemas.errors import DataError
from schemas.manifest import Input, LedgerEntry, Manifest, Shard, read_manifest
from schemas.vocabulary import COUNTS, FILE, Model, parse_vocabulary


@dataclass(frozen=True, kw_only=True)
class VocabJob:
    """The flags of the job; the command line gives each its default and its help."""

    text: str
    output: str
    model: Model
    size: int
    lowercase: bool
    min_frequency: int
    max_alphabet: int | None
    pad_to_multiple: int
    overwrite: bool


def run(job: VocabJob, beam_arguments: list[str], known_flags: list[str]) -> Manifest:
    """Run the job to its end and return what it published. Raises UsageError or DataError, as `shard` does."""
    text = read_manifest(job.text, "text")
    options = beam_runner.beam_options(beam_arguments, known_flags, text.totals["text_bytes"])
    recorded = {name: value for name, value in asdict(job).items() if name not in ("text", "output", "overwrite")}
    identity = {"options": recorded, "text": text.fingerprint}
    staging = open_staging(job.output, "vocab", job.overwrite, identity)
    source = Input(path=job.text, fingerprint=text.fingerprint)
    graph = TrainVocabulary(
        shards=text.shards,
        count=partial(_count, job),
        add=add_counts,
        finish=partial(_finish, job, recorded, source, staging),
    )
    beam_runner.run(lambda pipeline: pipeline | "Train vocabulary" >> graph, options)
    return read_manifest(job.output, "vocab")


def _count(job: VocabJob, shard: Shard) -> Any:
    return count_shard(job.text, shard, job.model, job.lowercase)


def _finish(
    job: VocabJob, recorded: dict[str, Any], source: Input, staging: Staging, _: None, tables: list[bytes]
) -> None:
    counts = commonest_first(tables)
    if counts.num_rows == 0:
        raise DataError(f"{job.text} holds no word to learn from.")
    words, times = counts["word"].to_pylist(), counts["count"].to_pylist()
    learnt = learn(words, times, job.model, job.size, job.min_frequency, job.max_alphabet, job.pad_to_multiple)
    files = vocabulary_files(learnt, job.model, job.lowercase) | {COUNTS: shards.encode_table(counts)}
    for name, data in files.items():
        storage.publish(staging.url(name), data)
    rows = {COUNTS: counts.num_rows}
    entries = [describe(name, files[name], rows.get(name, len(learnt.tokens))) for name in sorted(files)]
    publish_folder(staging, _manifest(job, recorded, source, learnt, counts, files[FILE], entries))


def describe(name: str, data: bytes, rows: int) -> Shard:
    """A file's entry in the manifest; its bytes are its content."""
    digest = storage.sha256(data)
    return Shard(path=name, rows=rows, tokens=0, bytes=len(data), sha256=digest, fingerprint=digest[:32])


def _manifest(
    job: VocabJob,
    recorded: dict[str, Any],
    source: Input,
    learnt: Learnt,
    counts: pa.Table,
    tokenizer_json: bytes,
    entries: list[Shard],
) -> Manifest:
    cut = sum(learnt.cut_characters.values())
    return Manifest(
        format_version=FORMAT_VERSION,
        kind="vocab",
        options=recorded,
        inputs=[source],
        seed=0,  # nothing here is random
        fingerprint=parse_vocabulary(tokenizer_json, FILE).fingerprint,
        shards=entries,
        totals={
            "tokens": len(learnt.tokens),
            "merges": len(learnt.merges),
            "words": int(pc.sum(counts["count"]).as_py()),  # type: ignore[attr-defined]
            "distinct_words": counts.num_rows,
        },
        statistics=describe_vocabulary(
            tokenizer_json, zip(counts["word"].to_pylist(), counts["count"].to_pylist(), strict=True)
        ),
        ledger=[LedgerEntry(reason="character left out of the alphabet", source="all", count=cut)] if cut else [],
    )
