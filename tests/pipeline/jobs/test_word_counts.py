"""Counts and vocabularies are made from what the job began with, and a damaged file is found and made again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.commit import leases
from pipeline.commit import parts as manifest_parts
from pipeline.commit.finished import Provenance
from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from pipeline.jobs import counts as counting
from pipeline.jobs.counts import (
    CountPlan,
    add_tallies,
    add_up_partition,
    entries_of,
    publish_counts,
    tallies_of,
    text_lots,
)
from pipeline.jobs.learn_vocabulary import VocabularyPlan, learn_vocabulary
from pipeline.jobs.text_folder import TextFolder
from pipeline.options import VocabJob
from pipeline.vocab.counting import BY_RULES
from pipeline.words.rules import ALL_RULES
from schemas import manifest as manifests
from schemas.errors import DataError, StorageError
from schemas.manifest import open_manifest, read_root
from schemas.vocabulary import COUNTS_FILE, TOKENIZER_FILE
from tests.object_store import ObjectStore

TEXT = TextFolder("text", fingerprint="ab", num_shards=1, num_parts=1, text_bytes=1)
PLAN = CountPlan(TEXT, sources=["x"], rules=ALL_RULES, is_result=True)
WORDS = [f"{left}{right}" for left in "abcdefgh" for right in "stuvwxyz"]
ZEROS = "zeros"
GONE = "gone"


def counts_of(partition: int) -> pa.Table:
    """Every word once for each set of rules; a word of partition i occurs i + 1 times."""
    words = WORDS[partition :: PLAN.partitions]
    rows = len(words) * len(ALL_RULES)
    columns = [
        pa.array(np.repeat(np.arange(len(ALL_RULES), dtype=np.uint8), len(words))),
        pa.array(words * len(ALL_RULES)),
        pa.array(np.zeros(rows, np.uint16)),
        pa.array(np.full(rows, partition + 1)),
    ]
    return pa.table(columns, schema=BY_RULES)


def add_all(plan: CountPlan, staging: Staging) -> list[list[Report]]:
    return [
        add_up_partition(number, lambda number=number: [counts_of(number)], None, plan, staging)
        for number in range(plan.partitions)
    ]


def publish(partitions: list[list[Report]], staging: Staging) -> None:
    entries = [entries_of(partition) for partition in partitions]
    tallies = add_tallies(map(tallies_of, partitions))
    with leases.held(staging.output, staging.token):
        publish_counts(entries, tallies, PLAN, Provenance({"version": 1}, [], 0), staging)


def vocabulary_plan(plan: CountPlan, staging: Staging) -> VocabularyPlan:
    """A vocabulary from the counts that a job has in its staging."""
    job = VocabJob(text="text", output=staging.output, model="wordpiece", size=60, lowercase=True)
    return VocabularyPlan(job, plan.partitions, ["x"], staging)


def damage(staging: Staging, name: str, how: str) -> None:
    """What a power cut can leave of a file that was not synced."""
    path = Path(staging.url(name))
    if how == GONE:
        path.unlink()
    else:
        path.write_bytes(bytes(path.stat().st_size))


def test_text_that_was_replaced_while_the_job_began_is_refused(text: Path) -> None:
    now = read_root(str(text), "text").fingerprint
    assert list(text_lots(0, replace(PLAN, text=replace(TEXT, path=str(text), fingerprint=now))))
    with pytest.raises(DataError, match="had ab when this job began: it was replaced"):
        list(text_lots(0, replace(PLAN, text=replace(TEXT, path=str(text)))))


@pytest.mark.parametrize("how", [ZEROS, GONE])
def test_a_damaged_sum_in_staging_is_made_again(tmp_path: Path, how: str) -> None:
    plan = replace(PLAN, rules=ALL_RULES[:1], is_result=False)
    staging = Staging(str(tmp_path), "job")
    add_all(plan, staging)
    reader = vocabulary_plan(plan, staging).open_counts()
    whole = reader.read(5)
    damage(staging, "wordpiece_uncased-00005-of-00016.arrow", how)

    with pytest.raises(StorageError, match="00005-of-00016"):
        reader.read(5)
    add_all(plan, staging)
    assert reader.read(5) == whole


@pytest.mark.parametrize("how", [ZEROS, GONE])
def test_a_damaged_file_of_counts_is_not_published_and_made_again(tmp_path: Path, how: str) -> None:
    add_all(PLAN, Staging(str(tmp_path), "job", token="earlier"))
    staging = Staging(str(tmp_path), "job", token="now")
    damage(staging, "bytebpe-00003-of-00016.arrow", how)
    with pytest.raises(StorageError, match="bytebpe-00003-of-00016"):
        publish(add_all(PLAN, staging), staging)

    publish(add_all(PLAN, staging), staging)
    manifest = open_manifest(str(tmp_path))
    assert manifest.num_shards == 16 * len(ALL_RULES)
    assert manifest.totals["bytebpe_distinct_words"] == len(WORDS)


@pytest.mark.parametrize("how", [ZEROS, GONE])
@pytest.mark.parametrize("name", [TOKENIZER_FILE, COUNTS_FILE])
def test_a_damaged_file_of_a_vocabulary_is_made_again(tmp_path: Path, name: str, how: str) -> None:
    staging = Staging(str(tmp_path), "job")
    plan = replace(PLAN, rules=ALL_RULES[:1], is_result=False)
    tallies = add_tallies(map(tallies_of, add_all(plan, staging)))
    vocabulary = vocabulary_plan(plan, staging)

    first = learn_vocabulary(tallies, vocabulary)
    whole = staging.piece(name)
    damage(staging, name, how)
    assert learn_vocabulary(tallies, vocabulary) == first
    assert staging.piece(name) == whole


def test_many_counts_are_listed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Staging(str(tmp_path / "whole"), "job", token="now")
    publish(add_all(PLAN, whole), whole)
    expected = open_manifest(str(tmp_path / "whole")).shards
    monkeypatch.setattr(manifest_parts, "PART_ENTRIES", 32)
    monkeypatch.setattr(manifests, "PART_ENTRIES", 32)
    in_parts = Staging(str(tmp_path / "in_parts"), "job", token="now")
    publish(add_all(PLAN, in_parts), in_parts)

    manifest = open_manifest(str(tmp_path / "in_parts"))
    assert [part.count for part in manifest.parts] == [32, 32]
    assert manifest.shards == expected


@pytest.mark.parametrize("fault", ["swapped", "missing"])
def test_a_partition_that_is_not_the_manifests_is_an_error_with_its_path(
    command, counts: Path, tmp_path: Path, fault: str
) -> None:
    folder = shutil.copytree(counts, tmp_path / "counts")
    changed = folder / "wordpiece_uncased-00007-of-00016.arrow"
    if fault == "swapped":
        shutil.copy(folder / "wordpiece_uncased-00008-of-00016.arrow", changed)
    else:
        changed.unlink()
    made = ("--output", tmp_path / "vocab", "--model", "wordpiece", "--size", 150)
    refused = command("vocab", "--counts", folder, *made)
    assert refused.returncode == 3 and str(changed) in refused.stderr, refused.stderr


def test_counts_that_were_replaced_while_the_job_began_are_refused(counts: Path) -> None:
    plan = replace(vocabulary_plan(PLAN, Staging("out", "job")), counts=str(counts), fingerprint="ab")
    with pytest.raises(DataError, match="had ab when this job began: it was replaced"):
        plan.open_counts()


def test_a_store_is_sent_each_file_of_counts_once_and_gives_it_twice(
    command, s3: ObjectStore, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for learning, and once for the statistics."""
    monkeypatch.setattr(counting, "MIN_PARTITIONS", 2)
    s3.bucket("counted")
    place = "s3://counted/made"
    made = ("--counts", f"{place}/counts", "--output", f"{place}/vocab", "--model", "wordpiece", "--size", 150)
    done = command("vocab", "--text", text, *made)
    assert done.returncode == 0, done.stderr

    of_counts = [(method, path) for method, path in s3.requests if "/counts/" in path and path.endswith(".arrow")]
    assert sum(method == "PUT" and "/_unfinished-" in path for method, path in of_counts) == 2 * len(ALL_RULES)
    assert sum(method == "GET" for method, _ in of_counts) == 2 * 2
