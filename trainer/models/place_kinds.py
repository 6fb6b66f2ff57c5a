"""The masked LM's loss by kind of place: what the model sees at a token that it has to predict.

    masked    [MASK]
    kept      the token itself, which a model predicts by copying it
    random    another token

Under 80/10/10 a model first learns to copy the kept tokens. The mean over all places then falls while nothing is
learned from context, and only `mlm_loss_masked` tells the two apart.

Places have kinds in a masked LM: BERT's and the like, and ELECTRA's generator. They have none in causal language
modeling and in XLNet, which hide no token by another one.
"""

from __future__ import annotations

from typing import Literal

PlaceKind = Literal["masked", "kept", "random"]

PLACE_KINDS: tuple[PlaceKind, ...] = ("masked", "kept", "random")

SUMS_OF_A_KIND = 3
"""Loss, right predictions and number of places."""

PLACE_SUMS = len(PLACE_KINDS) * SUMS_OF_A_KIND
"""The sums of all kinds together."""
