"""Computes the vectors that a probe reads from each layer of an encoder.

The vector of a text is the mean over its tokens, and that of a word is the vector of its first token. Layer 0 is the
output of the embeddings; the last layer is the input of the head in a fine-tuned model.

Shape suffixes: B features of a batch, T tokens of a row, H width, N vectors, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from trainer.finetune.job import FeatureSet
from trainer.finetune.kinds.kind import TARGETS, Feature, Kind

FEATURES_AT_ONCE = 64
"""Features per batch."""

Vectors = NDArray[np.float32]


@torch.inference_mode()
def layer_vectors(model: Any, kind: Kind[Any, Any], features: list[Feature]) -> Iterator[tuple[list[int], Vectors]]:
    """Yield for each batch the indices of its features, and their vectors, float32 (L, N, H), in that order.

    A feature has one vector, or one per word.
    """
    device = next(model.parameters()).device
    done = 0
    for inputs in DataLoader(FeatureSet([], features), FEATURES_AT_ONCE, collate_fn=kind.collate):
        numbers = list(range(done, done + len(inputs["input_ids"])))
        done = numbers[-1] + 1
        batch = [features[number] for number in numbers]
        columns = {name: values.to(device) for name, values in inputs.items() if name not in TARGETS}
        layers = model(**columns, output_hidden_states=True).hidden_states

        # Copy all layers of a batch to the CPU as one array: 330 MB for a base model and rows of 128 tokens.
        hidden_LBTH = torch.stack([layer.float() for layer in layers]).cpu().numpy()
        attention_BT = columns["attention_mask"].cpu().numpy().astype(bool)
        yield numbers, pooled(hidden_LBTH, attention_BT, batch)


def pooled(hidden_LBTH: Vectors, attention_BT: NDArray[np.bool_], batch: Sequence[Feature]) -> Vectors:
    """Return the vectors of texts or of words, (L, N, H). attention_BT: False at padding."""
    found = []
    for row, feature in enumerate(batch):
        # Padding may be on either side, so remove it first: positions of words are counted without padding.
        hidden_LTH = hidden_LBTH[:, row, attention_BT[row]]

        if "places" in feature:
            first_tokens = list(feature["places"])
            vectors_LNH = hidden_LTH[:, first_tokens]
        else:
            vectors_LNH = hidden_LTH.mean(axis=1, keepdims=True)
        found.append(vectors_LNH)
    return np.concatenate(found, axis=1)
