"""Names the sums of `trainer.models.pretraining.Losses` once they are numbers on the host.

Until then they are one vector, `Losses.stacked`, because ranks exchange them in one collective call and the host reads
them in one copy. Training steps and evaluations both take it apart here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainer.metrics.places import PlaceSums, place_sums
from trainer.models.place_kinds import PLACE_SUMS, PlaceKind


class LossSums(NamedTuple):
    """The sums of `Losses` by the same names, over any number of micro-batches and ranks.

    by_place: `Losses.places_33` by kind of place. What does not apply to a model is 0.
    """

    mlm_sum: float
    mlm_correct: float
    pair_sum: float
    pair_correct: float
    rtd_sum: float
    rtd_correct: float
    replaced: float
    by_place: Mapping[PlaceKind, PlaceSums]

    @classmethod
    def from_values(cls, values: Sequence[float]) -> LossSums:
        """Return the sums by name. values: the numbers of `Losses.stacked`, in its order."""
        return cls(*values[:-PLACE_SUMS], by_place=place_sums(values[-PLACE_SUMS:]))
