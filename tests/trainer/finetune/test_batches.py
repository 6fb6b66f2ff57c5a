"""Batches hold each feature once, are a function of seed and epoch, and hardly pad."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.finetune.batches import batches_per_pool, evaluation_batches, training_batches
from trainer.finetune.kinds.kind import Feature, Row


def features_of(lengths: list[int]) -> list[Feature]:
    return [Feature(i, (Row(np.ones(length, np.int32), None),)) for i, length in enumerate(lengths)]


LENGTHS = st.lists(st.integers(1, 200), min_size=1, max_size=300)


@given(LENGTHS, st.integers(1, 40), st.integers(0, 10**9), st.integers(0, 50), st.booleans())
def test_each_feature_is_in_one_batch(lengths: list[int], size: int, seed: int, epoch: int, grouped: bool) -> None:
    features = features_of(lengths)
    batches = training_batches(features, size, seed, epoch, grouped)

    assert sorted(number for batch in batches for number in batch) == list(range(len(features)))
    assert max(map(len, batches)) <= size
    assert len(batches) == -(-len(features) // size), "as many as without pools, in every epoch"
    assert batches == training_batches(features, size, seed, epoch, grouped)


def test_epochs_and_seeds_differ() -> None:
    features = features_of(list(range(1, 200)))
    cases = [(seed, epoch, grouped) for seed in (0, 1) for epoch in (0, 1) for grouped in (True, False)]
    orders = [training_batches(features, 8, seed, epoch, grouped) for seed, epoch, grouped in cases]
    assert len({str(order) for order in orders}) == len(cases)


def test_without_groups_batches_do_not_depend_on_lengths() -> None:
    features = features_of(list(range(1, 200)))
    backwards = features[::-1]

    drawn = training_batches(features, 8, seed=0, epoch=0, group_by_length=False)
    assert drawn == training_batches(backwards, 8, seed=0, epoch=0, group_by_length=False)
    assert drawn != training_batches(features, 8, seed=0, epoch=0)


def test_rows_of_a_batch_are_about_as_long_as_each_other() -> None:
    lengths = [1 + (7919 * i) % 128 for i in range(3200)]
    padded = sum(
        len(batch) * max(lengths[number] for number in batch)
        for batch in training_batches(features_of(lengths), 32, 0, 0)
    )
    assert padded < 1.05 * sum(lengths)


def test_a_small_set_does_not_repeat_its_batches() -> None:
    """In a single pool, which batch the longest features share would not depend on the epoch."""
    features = features_of(list(range(1, 257)))
    longest = set(range(224, 256))
    shared = [
        max(len(longest.intersection(batch)) for batch in training_batches(features, 32, seed=0, epoch=epoch))
        for epoch in range(20)
    ]
    assert max(shared) < 28


def test_pools_grow_with_the_set_up_to_50_batches() -> None:
    assert [batches_per_pool(features, 32) for features in (1, 128, 1000, 100_000)] == [1, 1, 7, 50]


@given(LENGTHS, st.integers(1, 40))
def test_evaluation_begins_with_the_longest(lengths: list[int], size: int) -> None:
    batches = evaluation_batches(features_of(lengths), size)
    seen = [lengths[number] for batch in batches for number in batch]
    assert seen == sorted(lengths, reverse=True)
