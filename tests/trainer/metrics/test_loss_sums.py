"""The sums of a step and of an evaluation, taken apart by name as they were stacked."""

from __future__ import annotations

import torch

from trainer.metrics.held_out import EvaluationCounts, EvaluationSums
from trainer.metrics.loss_sums import LossSums
from trainer.metrics.places import PlaceSums
from trainer.models.pretraining import SUMS, Losses

ONE_TO_SEVEN = [torch.tensor(float(number)) for number in range(1, 8)]
PLACES_33 = torch.arange(10.0, 19.0, dtype=torch.float64).reshape(3, 3)


def test_each_sum_keeps_the_name_that_it_was_stacked_under() -> None:
    losses = Losses(*ONE_TO_SEVEN, places_33=PLACES_33)
    sums = LossSums.from_values(losses.stacked().tolist())
    for name in LossSums._fields[:-1]:
        assert getattr(sums, name) == float(getattr(losses, name)), name
    assert LossSums._fields[:-1] == Losses._fields[:-1]
    assert sums.by_place == {
        "masked": PlaceSums(loss=10, correct=11, places=12),
        "kept": PlaceSums(loss=13, correct=14, places=15),
        "random": PlaceSums(loss=16, correct=17, places=18),
    }


def test_what_a_model_has_no_sums_of_is_0() -> None:
    sums = LossSums.from_values(Losses(*ONE_TO_SEVEN[:4]).stacked().tolist())
    assert sums[:7] == (1, 2, 3, 4, 0, 0, 0)
    assert set(map(repr, sums.by_place.values())) == {repr(PlaceSums())}


def test_the_counts_of_an_evaluation_follow_its_sums() -> None:
    values = [float(number) for number in range(SUMS + 4)]
    sums = EvaluationSums.from_values(values)
    assert sums.losses == LossSums.from_values(values[:SUMS])
    assert sums.counts == EvaluationCounts(masked=SUMS, pairs=SUMS + 1, judged=SUMS + 2)
    assert sums.unigram_sum == SUMS + 3
