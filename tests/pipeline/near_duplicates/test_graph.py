"""The graph with all its exchanges, as a large corpus has it: it drops what the plain reference drops."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.io import WriteToText
from apache_beam.pvalue import AsSingleton

from pipeline.commit.staging import Staging
from pipeline.exchange.blocks import Shuffle, Way
from pipeline.exchange.exchange import Exchange, Plan, Step
from pipeline.exchange.runs import encode_run
from pipeline.jobs.near_duplicates import NearDuplicates
from pipeline.near_duplicates.bands import band_rows
from pipeline.near_duplicates.signatures import (
    SIGNATURE_BUCKETS,
    distinct_signatures,
    minhash_signatures,
    signature_rows,
)
from pipeline.shard.survey import CorpusSurvey
from schemas.randomness import key
from tests.pipeline.near_duplicates import reference

WORDS = [f"word{i}" for i in range(2000)]
SHARDS = 4


def versions_of_texts(count: int) -> dict[int, list[str]]:
    """Documents by id: texts in up to 12 versions, each of which differs from the one before in three words."""
    rng = random.Random(7)
    documents = {}
    for _ in range(count):
        words = rng.choices(WORDS, k=200)
        for _ in range(rng.choice([1, 1, 2, 12])):
            for place in rng.sample(range(200), 3):
                words[place] = rng.choice(WORDS)
            text = " ".join(words)
            documents[key("document", text)] = [text]
    return documents


def write_runs(documents: dict[int, list[str]], staging: Staging) -> list[dict[str, Any]]:
    """Write the bands and signatures of the documents as three runs, and return the runs' reports."""
    reports = []
    for number in range(3):
        ids = list(documents)[number::3]
        distinct = distinct_signatures(ids, [documents[document] for document in ids])
        made = (("bands", band_rows(*distinct), "band"), ("signatures", signature_rows(*distinct), "document"))
        report: dict[str, Any] = {"split": number}
        for name, batch, column in made:
            data, index = encode_run(batch, batch[column].to_numpy(), SIGNATURE_BUCKETS, f"run-{number}.{name}.run")
            staging.put(index.name, data)
            report[name] = index.to_row()
        reports.append(report)
    return reports


def consume(bucket: int, read_tables: Callable[[], list[pa.Table]], details: Any) -> str:
    return json.dumps([table["document"].to_pylist() for table in read_tables()])


def dropped(folder: Path, documents: dict[int, list[str]], survey: CorpusSurvey, shuffle: Shuffle) -> list[set[int]]:
    """The documents that each step drops, in the order of the steps."""
    staging = Staging(str(folder), "job")
    reports = write_runs(documents, staging)
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        surveyed = AsSingleton(pipeline | "Survey" >> beam.Create([survey]))
        plan = AsSingleton(pipeline | "Plan" >> beam.Create([{"shards": Plan(SHARDS)}]))
        runs = pipeline | "Runs" >> beam.Create(reports)
        streams: list[Any] = list(NearDuplicates(runs, surveyed, 0, 3, Way(shuffle, staging)).to_drop())
        for place, stream in enumerate(streams):
            assert stream.stream.number == place + 1
        consumed = pipeline | Exchange(streams, Step("consume", consume, "shards"), plan, Way(shuffle, staging))
        _ = consumed | "Write" >> WriteToText(str(folder / "out"), shard_name_template="")

    by_step: list[set[int]] = [set() for _ in streams]
    for line in (folder / "out").read_text().splitlines():
        for found, ids in zip(by_step, json.loads(line), strict=True):
            found |= set(ids)
    return by_step


@pytest.mark.parametrize(
    ("documents", "shuffle"),
    [(100, "files"), (5_000_000, "files"), (5_000_000, "merged"), (5_000_000, "service")],
)
def test_every_way_drops_what_the_reference_drops(tmp_path: Path, shuffle: Shuffle, documents: int) -> None:
    """The survey names more documents than there are, so that there are as many buckets as for a large corpus."""
    texts = versions_of_texts(60)
    minima = dict(zip(texts, minhash_signatures(texts.values()), strict=True))
    expected = reference.all_but_smallest(reference.similar(minima, reference.pairs_of_bands(minima)))
    assert len(expected) > 100

    survey = CorpusSurvey(documents, SHARDS, shuffle == "merged", rejected_runs=(), ledger=(), cleaning={})
    by_step = dropped(tmp_path, texts, survey, shuffle)
    assert set().union(*by_step) == expected
    assert bool(by_step[1]) == (documents == 5_000_000)  # the first small stars
