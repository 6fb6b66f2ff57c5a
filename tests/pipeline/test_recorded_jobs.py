"""Jobs whose files are recorded by their sha256: a change of the pipeline's structure changes none of them.

Every job runs once as users run it, and many of them again in other ways that must make the same bytes. All paths are
relative, so that manifests hold none of this machine. Jobs read what earlier ones have made: the first that fails is
the cause. A change that is meant to change the files writes them again:
`RECORD=1 python -m pytest tests/pipeline/test_recorded_jobs.py`.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest

from tests.conftest import Command
from tests.pipeline.recorded_inputs import write_inputs

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = REPOSITORY / "tests/golden/jobs.json"

JOBS = {
    # Formats, and what a document is
    "plain": "shard --input in/plain.txt --num_shards 3",
    "lines": "shard --input in/lines.txt --text_layout line --language und --seed 7",
    "whole_files": "shard --input in/files/*.txt --text_layout file --sentence_splitter newline --format text",
    "jsonl": "shard --input in/records.jsonl --text_key body --num_shards 2 --max_bad_ratio 0.2 "
    "--max_document_bytes 900",
    "parquet": "shard --input in/rows.parquet --text_key body --num_shards 2",
    "wiki": "shard --input in/wiki/*/* --num_shards 2",
    "gzip": "shard --input in/members.jsonl.gz --num_shards 2 --max_decompression_ratio 50",
    "bzip2": "shard --input in/blocks.txt.bz2 --num_shards 2",
    "zstd": "shard --input in/frames.txt.zst --text_layout line --num_shards 2",
    "mixed": "shard --input in/mixed/** in/corpus.jsonl --num_shards 5",
    "megabytes": "shard --input in/large.txt --shard_megabytes 1",
    # Encodings and languages
    "cp1252": "shard --input in/french.txt --encoding cp1252 --language fr",
    "utf16": "shard --input in/german.txt --encoding utf-16 --language German",
    "damaged": "shard --input in/damaged.txt --max_undecodable_ratio 0.05",
    "hindi": "shard --input in/hindi.txt --language hi --num_shards 2",
    "chinese": "shard --input in/chinese.txt --language zh --dedup minhash --num_shards 2",
    "russian": "shard --input in/russian.txt --language ru",
    # Copies, repeated sentences and held-out documents
    "exact": "shard --input in/corpus.jsonl --dedup exact --num_shards 4",
    "minhash": "shard --input in/corpus.jsonl in/chain.jsonl --dedup minhash --num_shards 4 --seed 3",
    "held_out": "shard --input in/corpus.jsonl --holdout 0.3 --dedup minhash",
    "repeats": "shard --input in/corpus.jsonl in/chain.jsonl --holdout 0.2 --drop_repeats 1 --num_shards 4",
    # Vocabularies
    "wordpiece": "vocab --text mixed/out --model wordpiece --size 1100",
    "cased": "vocab --text mixed/out --model wordpiece --size 400 --no_lowercase --max_alphabet 150 --min_frequency 4 "
    "--min_word_count 2 --pad_to_multiple 64",
    "bytebpe": "vocab --text mixed/out --model bytebpe --size 500 --min_frequency 3",
    "unigram": "vocab --text mixed/out --model unigram --size 950 --pad_to_multiple 8",
    "xlnet": "vocab --text cp1252/out --model unigram --size 200 --special_tokens xlnet --lowercase --max_alphabet 60",
    "accents_kept": "vocab --text exact/out --model unigram --size 900 --no_lowercase --keep_accents",
    "accents_removed": "vocab --text cp1252/out --model unigram --size 180 --no_keep_accents --min_word_count 2",
    "counts": "vocab --text jsonl/out --counts {own}/counts --model wordpiece --size 1000",
    "from_counts": "vocab --counts counts/counts --model bytebpe --size 400 --min_word_count 2",
    "counts_again": "vocab --text jsonl/out --counts counts/counts --model unigram --size 850",
    "more_wordpiece": "vocab --text russian/out --extend cased/out --add 40 --min_frequency 3",
    "more_bytebpe": "vocab --text russian/out --extend bytebpe/out --add 40",
    "more_unigram": "vocab --counts counts/counts --extend unigram/out --add 30",
    "more_published": "vocab --text russian/out --extend published_bpe/out --add 20 --min_word_count 2",
    # Pairs
    "nsp": "pairs --text mixed/out --vocab wordpiece/out --objective nsp --max_length 48 --dupe_factor 2",
    "short": "pairs --text exact/out --vocab cased/out --objective nsp --short_seq_prob 0.5 --seed 5",
    "sop": "pairs --text mixed/out --vocab unigram/out --objective sop --max_length 64",
    "full_sentences": "pairs --text mixed/out --vocab bytebpe/out --objective full_sentences --max_length 96",
    "doc_sentences": "pairs --text held_out/out_heldout --vocab more_bytebpe/out --objective doc_sentences "
    "--max_length 64",
    "published": "pairs --text plain/out --vocab published_bpe/out --objective full_sentences --max_length 32",
    "jieba": "pairs --text chinese/out --vocab wordpiece/out --objective nsp --word_segmenter jieba --max_length 64 "
    "--static_masks 1 --masking whole_word",
    "token_masks": "pairs --text plain/out --vocab wordpiece/out --objective nsp --static_masks 3 --mask_prob 0.25 "
    "--max_predictions 9",
    "word_masks": "pairs --text plain/out --vocab cased/out --objective sop --static_masks 2 --masking whole_word",
    "ngram_masks": "pairs --text plain/out --vocab xlnet/out --objective full_sentences --static_masks 2 "
    "--masking ngram --seed 2",
    "span_masks": "pairs --text plain/out --vocab bytebpe/out --objective doc_sentences --static_masks 2 "
    "--masking span",
    "in_parts": "pairs --text plain/out --vocab wordpiece/out --objective nsp --max_length 24 --dupe_factor 2",
    # Statistics
    "statistics": "statistics --pairs nsp/out",
    "sampled": "statistics --pairs full_sentences/out --window 6 --max_tokens 3000 --max_cooccurrences 700",
}
"""The command line of each job, whose --output is {own}/out. A path such as nsp/out is that of another job's output."""

CONSTANTS = {"in_parts": {"PART_ENTRIES": 4}}
"""Constants that a job needs to have another value, so that a small job has what only large ones have."""

SMALL_PIECES = {
    "SPLIT_BYTES": 4000,
    "RUN_CHARACTERS": 3000,
    "CUT_ABOVE": 0,
    "CELL_BYTES": 4096,
    "SEARCH_BYTES": 2048,
    "BUCKET_DOCUMENTS": 32,
    "BUCKET_SPANS": 32,
    "SPAN_BUCKETS": 8,
    "LOT_TOKENS": 500,
}
"""Constants that cut small inputs into many pieces, which changes no byte of the result."""

STARS = {"UNION_FIND_DOCUMENTS": 1, "SMALL_INPUT_BYTES": 1}
"""Constants that make small inputs take the steps of those for which one worker has no memory."""

THREADS = "--direct_num_workers=3 --direct_running_mode=multi_threading"


@dataclass(frozen=True)
class Way:
    """Another way to run a job. before: the job that fills the folder first, which is then overwritten."""

    flags: str = ""
    constants: dict[str, int] = field(default_factory=dict)
    before: str = ""


WAYS = {
    "small pieces": Way(constants=SMALL_PIECES),
    "3 threads": Way(THREADS, SMALL_PIECES),
    "3 processes": Way("--direct_num_workers=3", {"SPLIT_BYTES": 4000}),
    "2 processes": Way("--processes 2", {"LOT_TOKENS": 500}),
    "merged": Way("--shuffle merged", SMALL_PIECES),
    "service": Way("--shuffle service", SMALL_PIECES),
    "service, 3 threads": Way(f"{THREADS} --shuffle service", SMALL_PIECES),
    "rounds of stars": Way("--shuffle files", SMALL_PIECES | STARS),
    "over other text": Way("--overwrite", before="jsonl"),
    "over an extended one": Way("--overwrite", before="more_published"),
    "over other pairs": Way("--overwrite", before="in_parts"),
    "over other statistics": Way("--overwrite", before="sampled"),
}

RUN_AGAIN = {
    "plain": ["small pieces"],
    "parquet": ["small pieces"],
    "wiki": ["small pieces"],
    "gzip": ["3 threads"],
    "bzip2": ["3 threads"],
    "zstd": ["3 threads"],
    "mixed": ["merged", "service", "3 processes", "over other text"],
    "exact": ["merged", "service"],
    "minhash": ["3 threads", "merged", "service", "rounds of stars"],
    "held_out": ["merged", "service, 3 threads", "3 processes"],
    "repeats": ["small pieces", "merged", "service", "3 processes"],
    "wordpiece": ["merged", "service", "over an extended one"],
    "counts": ["3 threads", "merged", "service, 3 threads"],
    "nsp": ["3 processes", "over other pairs"],
    "statistics": ["small pieces", "2 processes", "over other statistics"],
}
"""The ways in which jobs are run again."""

FOR_THE_NIGHT = ("3 threads", "service, 3 threads", "3 processes", "2 processes", "over other text")
AGAIN = [
    pytest.param(name, way, marks=pytest.mark.thorough) if way in FOR_THE_NIGHT else (name, way)
    for name, ways in RUN_AGAIN.items()
    for way in ways
]


class Jobs:
    """Runs jobs in the current folder. What jobs read is made before them."""

    def __init__(self, command: Command):
        self._command = command

    def recorded(self, name: str) -> Path:
        """Return the folder with all that a job has made as it is recorded."""
        folder = Path(name)
        if not folder.exists() and name == "published_bpe":
            self._publish_bpe(folder / "out")
        elif not folder.exists():
            self._run(name, folder, Way())
        return folder

    def again(self, name: str, way: str) -> dict[str, str]:
        """Run a job in another way, in a folder of the same name, and return the hashes of its files."""
        before = WAYS[way].before
        for job in filter(None, (name, before)):
            self.recorded(job)

        folder = Path(name)
        aside = folder.rename("aside")
        try:
            if before:
                self._run(before, folder, Way())
            self._run(name, folder, WAYS[way])
            return hashes_of(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)

    def _run(self, name: str, own: Path, way: Way) -> None:
        words = f"{JOBS[name]} --output {{own}}/out {way.flags}".format(own=own).split()
        for word in words:
            read = word.partition("/")[0]
            if "/" in word and not word.startswith(f"{own}/") and read != "in":
                self.recorded(read)

        with patched(CONSTANTS.get(name, {}) | way.constants):
            done = self._command(*words)
        assert done.returncode == 0, f"{name}: {done.stderr}"

    def _publish_bpe(self, folder: Path) -> None:
        """Write a tokenizer as others publish theirs: without a manifest, and with BPE dropout."""
        made = self.recorded("bytebpe") / "out"
        folder.mkdir(parents=True)
        shutil.copy(made / "tokenizer_config.json", folder)
        tokenizer = json.loads((made / "tokenizer.json").read_text())
        tokenizer["model"]["dropout"] = 0.1
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


@contextmanager
def patched(constants: dict[str, int]) -> Iterator[None]:
    """Give constants other values, in all modules that have them by these names."""
    with ExitStack() as patches:
        for name, value in constants.items():
            modules = [module for key, module in sys.modules.items() if key.startswith(("pipeline.", "schemas."))]
            having = [module for module in modules if hasattr(module, name)]
            assert having, f"no module has {name}"
            for module in having:
                patches.enter_context(patch.object(module, name, value))
        yield


def hashes_of(folder: Path) -> dict[str, str]:
    """Return the first half of the SHA-256 of each file by its path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(comparable(path)).hexdigest()[:32] for path in files}


def comparable(path: Path) -> bytes:
    """Return the bytes of a file that are the same on every machine.

    Left out: in manifest.json, `bytes` of inputs that gzip has compressed, because zlib's versions differ, and in
    ledger.parquet the name of pyarrow's version.
    """
    if path.name == "ledger.parquet":
        return json.dumps(pq.read_table(path).to_pylist()).encode()
    data = path.read_bytes()
    if path.name != "manifest.json" or b'.gz"' not in data:
        return data

    manifest = json.loads(data)
    for entry in manifest["inputs"]:
        if entry["path"].endswith(".gz"):
            del entry["bytes"]
    return json.dumps(manifest).encode()


def difference(found: dict[str, str], expected: dict[str, str]) -> str:
    """Return the first files that differ; empty if none does."""
    lines = []
    for path in sorted({*found, *expected}):
        if found.get(path) != expected.get(path):
            what = "is new" if path not in expected else "is missing" if path not in found else "has other bytes"
            lines.append(f"{path} {what}")
    more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
    return ", ".join(lines[:5]) + more


@pytest.fixture(scope="module")
def jobs(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "in").mkdir()
    write_inputs(folder / "in")
    for name in ("jobs.shard", "jobs.vocab", "jobs.pairs", "statistics"):  # the modules whose constants are patched
        importlib.import_module(f"pipeline.{name}")

    gc.freeze()  # jobs make many objects, and each search for cycles would visit those of all imported modules again
    # Worker processes start in the current folder, and would not find the repository.
    with patch.dict(os.environ, {"PYTHONPATH": str(REPOSITORY)}), contextlib.chdir(folder):
        yield Jobs(command)
    gc.unfreeze()


@pytest.mark.parametrize("name", JOBS)
def test_a_job_makes_the_recorded_files(jobs: Jobs, name: str) -> None:
    found = hashes_of(jobs.recorded(name))
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if os.environ.get("RECORD"):
        kept = {job: recorded[job] for job in JOBS if job in recorded} | {name: found}
        RECORDED.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        return
    different = difference(found, recorded[name])
    assert not different, f"{name}: {different}"


@pytest.mark.parametrize(("name", "way"), AGAIN)
def test_every_way_makes_the_recorded_files(jobs: Jobs, name: str, way: str) -> None:
    found = jobs.again(name, way)
    different = difference(found, json.loads(RECORDED.read_text())[name])
    assert not different, f"{name}, {way}: {different}"
