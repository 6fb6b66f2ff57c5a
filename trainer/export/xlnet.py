"""The parts of an export that are specific to XLNet: its tokenizer, and the comparison of both streams' logits.

Shape suffixes: T tokens, K targets, V vocabulary. One batch holds one sequence.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from schemas.randomness import permutation
from schemas.vocabulary import parse_vocabulary
from trainer.data.permuted import CLASSIFIER_SEGMENT
from trainer.models.batch import PackedBatch
from trainer.models.pretraining import PretrainingModel
from trainer.models.xlnet_hf import permutation_inputs


def xlnet_tokenizer(data: bytes) -> bytes:
    """Return a tokenizer.json that builds rows as the model was trained on: A [SEP] B [SEP] [CLS].

    data: the vocabulary's tokenizer.json. Nothing else changes, so token ids stay the same.
    """
    content = json.loads(data)
    vocabulary = parse_vocabulary(data, "tokenizer.json")
    cls_id = vocabulary.special_id("cls")
    sep_id = vocabulary.special_id("sep")
    cls_token = vocabulary.tokens[cls_id]
    sep_token = vocabulary.tokens[sep_id]

    def segment(name: str, number: int) -> list[dict[str, Any]]:
        return [{"Sequence": {"id": name, "type_id": number}}, special(sep_token, number)]

    def special(token: str, number: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": number}}

    last = special(cls_token, CLASSIFIER_SEGMENT)
    between = [special(sep_token, 0)] * (vocabulary.separators - 1)
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [*segment("A", 0), last],
        "pair": [*segment("A", 0), *between, *segment("B", 1), last],
        "special_tokens": {
            token: {"id": token, "ids": [number], "tokens": [token]}
            for token, number in ((cls_token, cls_id), (sep_token, sep_id))
        },
    }
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def xlnet_tokenizer_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer_config.json that makes transformers use tokenizer.json unchanged and pad rows on the left.

    With padding on the left, the last token of every row is [CLS], which a classifier reads.
    """
    return config | {"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "left"}


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
