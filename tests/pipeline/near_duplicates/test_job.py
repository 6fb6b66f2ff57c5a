"""All steps together find what the plain reference finds, however many buckets there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.exchange.exchange import Plan
from pipeline.exchange.runs import Keys
from pipeline.jobs import near_duplicates as steps
from pipeline.near_duplicates.bands import BAND_SCHEMA, band_rows
from pipeline.near_duplicates.components import EDGE_SCHEMA
from pipeline.near_duplicates.signatures import SIGNATURE_SCHEMA, signature_rows
from pipeline.near_duplicates.similarity import DELIVERY_SCHEMA, REQUEST_SCHEMA
from pipeline.shard.survey import CorpusSurvey
from pipeline.shard.write_runs import placements
from schemas.randomness import mix
from tests.pipeline.near_duplicates import reference
from tests.pipeline.near_duplicates.buckets import KeyedBatches, relayed


def dropped_by_steps(minima: dict[int, np.ndarray], buckets: int, runs: int) -> set[int]:
    """The documents that the steps drop; their signatures come from several runs."""
    bands: KeyedBatches = []
    signatures: KeyedBatches = []
    for run in range(runs):
        ids = np.array(sorted(minima)[run::runs], np.uint64)
        minima_DM = np.array([minima[document] for document in ids.tolist()], np.uint32).reshape(-1, 128)
        band_batch = band_rows(ids, minima_DM)
        bands.append((band_batch["band"].to_numpy(), band_batch))
        signatures.append((ids, signature_rows(ids, minima_DM)))

    is_small = True
    requests = relayed(steps.pair_bands, [(bands, BAND_SCHEMA)], buckets, is_small, in_pieces=True)[0]
    sources = [(signatures, SIGNATURE_SCHEMA), (requests, REQUEST_SCHEMA)]
    deliveries = relayed(steps.send_signatures, sources, buckets, is_small)[0]
    checked = relayed(_check, [(deliveries, DELIVERY_SCHEMA)], buckets, is_small)
    last = relayed(_finish, [(checked[1], EDGE_SCHEMA)], 1, is_small)[0]
    for keys, rows in checked[0] + last:
        _check_keys(keys, rows["document"].to_numpy())
    return {document for _, rows in checked[0] + last for document in rows["document"].to_pylist()}


def _check(bucket, read_tables, details):
    return steps.check_candidates(bucket, read_tables, details, seed=3, rounds=0)


def _finish(bucket, read_tables, details):
    return steps.finish_stars(bucket, read_tables, details, seed=3)


def _check_keys(keys: Keys, documents: np.ndarray) -> None:
    """Documents to drop travel to the shard that their placement names."""
    assert keys.tolist() == placements(documents, 3).tolist()


def expected(minima: dict[int, np.ndarray]) -> set[int]:
    pairs = reference.pairs_of_bands(minima)
    return reference.all_but_smallest(reference.similar(minima, pairs))


def signatures_of(families: list[tuple[int, int]]) -> dict[int, np.ndarray]:
    """For each (family, change): the family's signature with that many minima changed, and so as similar as that."""
    minima = {}
    for number, (family, change) in enumerate(families):
        signature = np.random.default_rng(family).integers(0, 1 << 32, 128, dtype=np.uint32)
        changed = np.random.default_rng(1000 + number).permutation(128)[:change]
        signature[changed] ^= np.uint32(1)
        document = int(mix(np.array([number + 1], np.uint64))[0])
        minima[document] = signature
    return minima


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 5, 18, 19, 20, 38, 39, 128])), max_size=25),
    st.sampled_from([1, 3, 16]),
    st.integers(1, 3),
)
@settings(max_examples=50)
def test_steps_drop_what_the_reference_drops(families: list[tuple[int, int]], buckets: int, runs: int) -> None:
    minima = signatures_of(families)
    assert dropped_by_steps(minima, buckets, runs) == expected(minima)


def test_the_plan_keeps_buckets_small() -> None:
    survey = _survey(40)
    few = steps.plans_for(survey)
    assert (few["documents"], few["stars"], few["last"]) == (Plan(1, False, details=True), Plan(1), Plan(1))
    survey = _survey(3_300_000_000)
    many = steps.plans_for(survey)
    assert (many["documents"], many["stars"]) == (Plan(16384, True, details=False), Plan(4096))


@pytest.mark.parametrize(("input_bytes", "rounds"), [(1e9, 0), (2e9, 3), (160e9, 3), (1e12, 5), (10e12, 8)])
def test_rounds_leave_few_edges_of_a_path_of_all_documents(input_bytes: float, rounds: int) -> None:
    """A path shrinks to 0.4 with each round; see components.py."""
    assert steps.rounds_for(int(input_bytes)) == rounds
    if rounds:
        assert 0.67 * input_bytes / 1000 * 0.4**rounds < 10_000_000


def _survey(documents: int) -> CorpusSurvey:
    return CorpusSurvey(documents, num_shards=1, merges_runs=False, rejected_runs=(), ledger=(), cleaning={})
