"""The vectors of an encoder's layers: of a text the mean over its tokens, of a word that of its first piece.

Layer 0 is the embeddings, and the last one what a head would read.

Shape suffixes: B features of a batch, T tokens of a row, H width, N vectors, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.finetune.batches import evaluation_batches
from trainer.finetune.kinds.kind import Feature, Kind
from trainer.finetune.kinds.tags import Words

FEATURES_AT_ONCE = 64

Vectors = NDArray[np.float32]


@torch.inference_mode()
def layer_vectors(model: Any, kind: Kind[Any, Any], features: list[Feature]) -> Iterator[tuple[list[int], Vectors]]:
    """Yield batches: the numbers of their features, and their vectors (L, N, H), in the order of the numbers.

    N is one for each feature, or one for each word that a feature has.
    """
    device = next(model.parameters()).device
    for numbers in evaluation_batches(features, FEATURES_AT_ONCE):
        batch = [features[number] for number in numbers]
        columns = {name: values.to(device) for name, values in kind.batch(batch).items()}
        hidden = model(**columns, output_hidden_states=True).hidden_states
        hidden_LBTH = torch.stack([layer.float() for layer in hidden]).cpu().numpy()
        yield numbers, pooled(hidden_LBTH, columns["attention_mask"].cpu().numpy(), batch)


def pooled(hidden_LBTH: Vectors, attention_BT: NDArray[Any], batch: Sequence[Feature]) -> Vectors:
    """Return the vectors (L, N, H) that stand for texts or for words."""
    pieces = []
    for place, feature in enumerate(batch):
        hidden_LTH = hidden_LBTH[:, place, attention_BT[place].astype(bool)]
        if isinstance(feature.part, Words):
            pieces.append(hidden_LTH[:, list(feature.part.places)])
        else:
            pieces.append(hidden_LTH.mean(axis=1, keepdims=True))
    return np.concatenate(pieces, axis=1)
