"""Splits the masked LM's loss by kind of place (models/place_kinds.py): sums over steps, and metrics from these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from trainer.models.place_kinds import PLACE_KINDS, SUMS_OF_A_KIND, PlaceKind

MASKED_NAMES = ("mlm_loss_masked", "mlm_accuracy_masked")
"""The metrics of the places that show [MASK]."""

PLACE_NAMES = (*(f"mlm_loss_{kind}" for kind in PLACE_KINDS), "mlm_accuracy_masked")
"""The metrics by kind of place."""


class PlaceSums(BaseModel):
    """Sums over the places of one kind: cross-entropy, correct predictions, and the number of places."""

    loss: float = 0.0
    correct: float = 0.0
    places: float = 0.0

    def add(self, other: PlaceSums) -> None:
        """Add the sums of other places."""
        self.loss += other.loss
        self.correct += other.correct
        self.places += other.places


def place_sums(values: Sequence[float]) -> dict[PlaceKind, PlaceSums]:
    """Return the sums of each kind. values: the PLACE_SUMS numbers of `Losses.stacked`, one kind after another."""
    sums = {}
    for number, kind in enumerate(PLACE_KINDS):
        start = number * SUMS_OF_A_KIND
        loss, correct, places = values[start : start + SUMS_OF_A_KIND]
        sums[kind] = PlaceSums(loss=loss, correct=correct, places=places)
    return sums


def place_means(sums: Mapping[PlaceKind, PlaceSums]) -> dict[str, float | None]:
    """Return the metrics of PLACE_NAMES, None for a kind without places; empty if no kind has any."""
    if not any(of_kind.places for of_kind in sums.values()):
        return {}

    means = {f"mlm_loss_{kind}": ratio(sums[kind].loss, sums[kind].places) for kind in PLACE_KINDS}
    return means | {"mlm_accuracy_masked": ratio(sums["masked"].correct, sums["masked"].places)}


def ratio(total: float, count: float) -> float | None:
    """Return total / count, or None if nothing was counted."""
    return None if count == 0 else total / count
