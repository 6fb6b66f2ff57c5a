"""What a model computes for a token, and how much a device can compute: the two sides of MFU.

MFU is model FLOPs utilization (Chowdhery et al., arXiv:2204.02311, appendix B): the floating-point operations of the
model as it is defined, forward and backward, over what the device could do in the same time. What a trainer saves (the
last layer where nothing reads it) or does twice (recomputed layers) is neither subtracted nor added, so that figures of
different trainers compare. Here the last layer is computed at one token in six, so MFU counts up to 2.6 % (24 layers)
or 5.2 % (12 layers) more than what is executed.
"""

from __future__ import annotations

import re

from trainer.models.encoder import EncoderShape

PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "GB200": 2500e12,
    "B300": 2250e12,
    "GB300": 2500e12,
    "A100": 312e12,
    "A40": 149.7e12,
    "A30": 165e12,
    "A10": 125e12,
    "A10G": 70e12,
    "L4": 121e12,
    "L40": 181e12,
    "L40S": 362e12,
    "RTX 6000 Ada": 364e12,
    "RTX A6000": 154.8e12,
    "RTX 3090": 71e12,
    "RTX 4090": 165.2e12,
    "RTX 5090": 209.5e12,
    "MI250X": 191.5e12,
    "MI300X": 1307e12,
    "MI325X": 1307e12,
}
"""Dense bf16 operations per second with float32 accumulation, from the manufacturers' data sheets.

A device has the peak of the first key that its name contains. MI250X: of one of its two dies, which is what torch sees
as a device.
"""


def flops_per_token(shape: EncoderShape, mean_seen: float, masked: float) -> float:
    """Return the operations to train on one token.

    mean_seen: the mean number of tokens that a token attends to, sum(length**2) / sum(length) over all rows.
    masked: the share of tokens that are predicted; the head is computed only there.
    """
    # Multiplications of the forward pass, with D the hidden size, E the embedding size and V the vocabulary.
    D = shape.hidden_size
    E = shape.embedding_size
    V = shape.vocab_size

    attention_matrices = 4 * D * D  # query, key, value and output
    feed_forward_matrices = 2 * D * shape.intermediate_size
    matrices = shape.num_hidden_layers * (attention_matrices + feed_forward_matrices)
    if shape.factorized:
        matrices += E * D

    scores_and_values = 2 * shape.num_hidden_layers * D * mean_seen
    head = masked * (D * E + E * V)

    # A multiplication and an addition each, once forward and twice backward: for the inputs and for the weights.
    return 6 * (matrices + scores_and_values + head)


def peak_flops(device: str) -> float | None:
    """Return the peak of a device with this name, or None if it is not in the table.

    Example: `"NVIDIA H200"` -> `989e12`.
    """
    for name, peak in PEAKS.items():
        if re.search(rf"\b{name}\b", device):  # whole words: "A10" is not in "A100"
            return peak
    return None
