"""The order of a training set holds each feature once, is a function of seed and epoch, and hardly pads."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trainer.finetune.fit import SeededBatches


def batches_of(lengths: list[int], size: int, seed: int = 0, epoch: int = 0, grouped: bool = True) -> list[list[int]]:
    sampler = SeededBatches(lengths, size, seed, grouped)
    sampler.epoch = epoch
    order = list(sampler)
    assert len(order) == len(sampler)
    return [order[start : start + size] for start in range(0, len(order), size)]


LENGTHS = st.lists(st.integers(1, 200), min_size=1, max_size=300)


@given(LENGTHS, st.integers(1, 40), st.integers(0, 10**9), st.integers(0, 50), st.booleans())
def test_each_feature_is_in_one_batch(lengths: list[int], size: int, seed: int, epoch: int, grouped: bool) -> None:
    batches = batches_of(lengths, size, seed, epoch, grouped)
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    assert batches == batches_of(lengths, size, seed, epoch, grouped)


def test_epochs_and_seeds_differ() -> None:
    cases = [(seed, epoch, grouped) for seed, epoch in ((0, 0), (0, 1), (5, 0)) for grouped in (True, False)]
    orders = {str(batches_of(list(range(1, 200)), 8, *case)) for case in cases}
    assert len(orders) == len(cases)


def test_rows_of_a_batch_are_about_as_long_as_each_other() -> None:
    lengths = [1 + (7919 * i) % 128 for i in range(3200)]
    padded = sum(len(batch) * max(lengths[number] for number in batch) for batch in batches_of(lengths, 32))
    assert padded < 1.05 * sum(lengths)


def test_training_does_not_go_from_long_to_short_features() -> None:
    lengths = [1 + (7919 * i) % 128 for i in range(3200)]
    means = [sum(lengths[number] for number in batch) / 32 for batch in batches_of(lengths, 32)]
    falls = sum(after < before for before, after in pairwise(means))
    assert 30 < falls < 70
