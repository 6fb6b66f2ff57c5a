"""The part of an export's verification that is specific to XLNet: the comparison of both streams' logits.

Shape suffixes: T tokens, K targets, V vocabulary. One batch holds one sequence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from schemas.randomness import permutation
from trainer.models.batch import PackedBatch
from trainer.models.pretraining import PretrainingModel
from trainer.models.xlnet import permutation_inputs


@torch.inference_mode()
def logit_pairs(exported: Any, model: PretrainingModel, batch: PackedBatch) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of transformers' logits and ours: (T, V) of the content stream, and (K, V) of the query stream.

    Every second token of the batch's row is a target. The order of prediction depends only on the row's length. A row
    of one token has no targets, and only the first pair.
    """
    inputs = {"input_ids": batch.ids_T[None], "token_type_ids": batch.segments_T[None]}
    theirs_TV = exported(**inputs).logits[0]
    ours_TV = model.mlm_head(model.encoder(batch), model.encoder.embeddings.token.weight)
    pairs = [(theirs_TV, ours_TV)]

    targets_K = torch.arange(1, batch.tokens, 2)
    if len(targets_K) == 0:
        return pairs

    order_T = torch.full_like(batch.ids_T, -1)
    order_T[targets_K] = torch.from_numpy(permutation(len(targets_K), batch.tokens))
    permuted = replace(batch, masked_positions_K=targets_K, predicted=len(targets_K), order_T=order_T)

    theirs_KV = exported(**inputs, **permutation_inputs(order_T, targets_K)).logits[0]
    ours_KV, _ = model.logits(permuted)
    return [*pairs, (theirs_KV, ours_KV)]
