"""XLNet in transformers: its config.json, the dimensions of its weights, and an order of prediction as its two masks.

In most attention weights of transformers, heads are a separate dimension. Here they are concatenated, and the bytes are
the same. XLNet's config uses its own names for sizes, and has no maximum number of positions.

Shape suffixes: L tokens, K targets, D hidden size, H heads, d head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from schemas.vocabulary import Vocabulary
from trainer.models.shape import EncoderShape

MATRICES = ("q", "k", "v", "o", "r")
BIASES = ("r_w_bias", "r_r_bias", "r_s_bias")


def xlnet_config(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the content of config.json for XLNetLMHeadModel and a model that was trained without memory."""
    return {
        "architectures": ["XLNetLMHeadModel"],
        "model_type": "xlnet",
        "vocab_size": shape.vocab_size,
        "d_model": shape.hidden_size,
        "n_layer": shape.num_hidden_layers,
        "n_head": shape.num_attention_heads,
        "d_head": shape.head_size,
        "d_inner": shape.intermediate_size,
        "ff_activation": "gelu",
        "layer_norm_eps": shape.norm_eps,
        "dropout": shape.hidden_dropout_prob,
        "attn_type": "bi",
        "untie_r": True,
        "bi_data": False,
        "clamp_len": -1,
        "same_length": False,
        "mem_len": None,
        "reuse_len": None,
        "use_mems_eval": False,
        "use_mems_train": False,
        "summary_type": "last",
        "pad_token_id": vocabulary.special_id("pad"),
        "bos_token_id": vocabulary.special_id("cls"),
        "eos_token_id": vocabulary.special_id("sep"),
        "tie_word_embeddings": True,
    }


def their_dimensions(name: str, ours: tuple[int, ...], shape: EncoderShape) -> tuple[int, ...]:
    """Return the dimensions that a weight has in transformers. name: theirs. ours: the weight's dimensions here."""
    if not shape.two_streams:
        return ours

    last = name.rpartition(".")[2]
    heads = (shape.num_attention_heads, shape.head_size)
    if last in MATRICES:
        return (ours[0], *heads)
    if last in BIASES:
        return heads
    if last == "seg_embed":
        return (2, *heads)
    if last == "mask_emb":
        return (1, 1, shape.hidden_size)
    return ours


def our_weight(name: str, theirs: Tensor, shape: EncoderShape) -> Tensor:
    """Return a weight of transformers, reshaped to the dimensions that it has here. name: theirs."""
    if not shape.two_streams:
        return theirs
    if name.rpartition(".")[2] in BIASES:
        return theirs.flatten()
    return theirs.flatten(1) if theirs.dim() > 2 else theirs


def permutation_inputs(order_L: Tensor, targets_K: Tensor) -> dict[str, Tensor]:
    """Return XLNet's `perm_mask` (1, L, L) and `target_mapping` (1, K, L), float32, of one row.

    order_L: as `PackedBatch.order_T`. targets_K: the positions of the targets. A 1 in perm_mask hides key j (last
    dimension) from query i. transformers still lets each token of the content stream see itself.
    """
    is_visible_LL = order_L[None, :] < order_L.clamp(min=0)[:, None]
    target_mapping_KL = torch.zeros(len(targets_K), len(order_L))
    target_mapping_KL[torch.arange(len(targets_K)), targets_K] = 1.0
    return {"perm_mask": (~is_visible_LL).float()[None], "target_mapping": target_mapping_KL[None]}
