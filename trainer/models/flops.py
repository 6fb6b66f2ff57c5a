"""The operations of training a model and the peak of a device, from which MFU is computed.

MFU, model FLOPs utilization (Chowdhery et al., arXiv:2204.02311, appendix B), is the share of the devices' peak
operations per second (`PEAKS`) that training reaches:

    MFU = tokens per second * flops_per_token / (devices * peak)

It counts the matrix multiplications of the model as it is defined, forward and backward. It does not subtract what a
trainer saves (the last layer where nothing reads it), or add what it does twice (recomputed layers) or for nothing
(padding), so that different trainers can be compared.

A test compares the formulas with what torch counts in each family's modules. Counting at the start of a run instead
would take 0.3 to 1 second, on rows of whole lengths only.
"""

from __future__ import annotations

import re
from dataclasses import replace

from trainer.models.shape import EncoderShape

PEAKS = {
    # NVIDIA's data sheets of H100, H100 NVL, H200, GH200, H800, H20.
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "H800 PCIe": 756e12,
    "H800": 989e12,
    "H20": 148e12,
    # HGX B200 and B300, GB200 NVL72 and GB300 NVL72. The superchips' GPUs may draw more power.
    "B200": 2250e12,
    "GB200": 2500e12,
    "B300": 2250e12,
    "GB300": 2500e12,
    # Ampere: A100, A800, A40, A30, A10. A10G: AWS's G5 instances have fewer tensor operations than the A10.
    "A100": 312e12,
    "A800": 312e12,
    "A40": 149.7e12,
    "A30": 165e12,
    "A10": 125e12,
    "A10G": 70e12,
    # Ada Lovelace: L4, L20, L40, L40S.
    "L4": 121e12,
    "L20": 119.5e12,
    "L40": 181e12,
    "L40S": 362e12,
    # NVIDIA's architecture white papers, appendix A: with float32 accumulation, which GeForce does at half speed.
    "RTX 6000 Ada": 364e12,
    "RTX A6000": 154.8e12,
    "RTX 3090": 71e12,
    "RTX 4090": 165.2e12,
    "RTX 5090": 209.5e12,
    # AMD's data sheets. MI250X: of one of its two dies, which is what torch sees as a device.
    "MI250X": 191.5e12,
    "MI300A": 980.6e12,
    "MI300X": 1307e12,
    "MI325X": 1307e12,
    "MI350X": 2300e12,
    "MI355X": 2500e12,
}
"""Dense bf16 operations per second with float32 accumulation. Data sheets often give twice that, with sparsity.

A device has the peak of the first key that its name contains as whole words.
"""


def flops_per_token(shape: EncoderShape, mean_seen: float, masked: float) -> float:
    """Return the floating-point operations of training on one token, forward and backward.

    mean_seen: the mean row length seen by a token, sum(length**2) / sum(length) over all rows.
    masked: the share of tokens that are predicted; the head is counted only there.
    """
    if shape.two_streams:
        products = _two_stream_products(shape, mean_seen, masked)
    else:
        products = _products(shape, mean_seen, masked)

    # Each product is a multiplication and an addition, once forward and twice backward (for inputs and for weights).
    return 6 * products


# Multiplications of the forward pass


def _products(shape: EncoderShape, mean_seen: float, masked: float) -> float:
    D, E = shape.hidden_size, shape.embedding_size
    if shape.generator is not None:
        # The discriminator, its head at all tokens, and the generator.
        discriminator = _products(replace(shape, generator=None), mean_seen, masked=0.0)
        return discriminator + D * D + D + _products(shape.generator, mean_seen, masked)

    projections = D * shape.projected_heads * shape.head_size + D * D
    feed_forward = (3 if shape.gated else 2) * D * shape.intermediate_size
    widening = E * D if shape.factorized else 0
    head = (D * E if shape.head_transform else 0) + E * shape.vocab_size
    layers = shape.num_hidden_layers * (projections + feed_forward) + attention_products(shape, mean_seen)
    return layers + widening + masked * head


def attention_products(shape: EncoderShape, seen: float) -> float:
    """Return a token's multiplications in the attention of all layers: queries with keys, and weights with values.

    seen: the mean number of tokens in its row. In layers with a window, the full window is counted. Tokens near the
    ends of a row attend to fewer, which is not subtracted, and kernels compute whole tiles, which is not added.
    """
    windows = shape.num_hidden_layers - shape.global_layers()
    in_windows = min(seen, shape.window + 1)
    return 2 * shape.hidden_size * (shape.global_layers() * seen + windows * in_windows)


def _two_stream_products(shape: EncoderShape, mean_seen: float, predicted: float) -> float:
    """Return the same for XLNet, whose content stream is a BERT with one more product in its scores.

    Each target costs as much as one more token, except for keys and values, which both streams share. If a sixth of the
    tokens are targets, XLNet-base costs 1.15 times as much as BERT-base on rows of 128 tokens and 1.19 times on rows of
    512. The projections of 2 L distances, D**2 multiplications each, are left out, because how often they are computed
    depends on the batch and not on the model.
    """
    D = shape.hidden_size
    feed_forward = 2 * D * shape.intermediate_size
    of_a_query = 3 * D * mean_seen + 2 * D  # keys, distances, values; the two vectors of seg_embed

    content = 4 * D * D + feed_forward + of_a_query
    query = 2 * D * D + feed_forward + of_a_query  # no keys and values
    head = D * shape.vocab_size
    return shape.num_hidden_layers * (content + predicted * query) + predicted * head


def peak_flops(device: str) -> float | None:
    """Return the peak operations per second of a device by its name, or None if it is not in PEAKS.

    Example: `"NVIDIA H200"` -> `989e12`.
    """
    if re.search(r"\b(Laptop|MIG|D|Ti|SUPER)\b", device):  # others than the whole card of that name
        return None
    for name, peak in PEAKS.items():
        if re.search(rf"\b{name}\b", device):  # whole words: "A10" is not in "A100"
            return peak
    return None
