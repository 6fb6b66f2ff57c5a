"""The kinds of masked places, by which the masked LM's loss is split: what the model sees at a token to predict.

    masked    [MASK]
    kept      the token itself, which the model can predict by copying it
    random    a random other token

Under 80/10/10 a model first learns to copy the kept tokens. The mean over all places then falls while nothing is
learned from context, and only `mlm_loss_masked` tells the two apart.

Only masked LMs have these kinds: BERT and similar models, and ELECTRA's generator. Causal language modeling and XLNet
do not, because they never put another token in the place of one to predict.
"""

from __future__ import annotations

from typing import Literal

PlaceKind = Literal["masked", "kept", "random"]

PLACE_KINDS: tuple[PlaceKind, ...] = ("masked", "kept", "random")

SUMS_OF_A_KIND = 3
"""Loss, correct predictions and number of places."""

PLACE_SUMS = len(PLACE_KINDS) * SUMS_OF_A_KIND
"""The number of sums over all kinds."""
