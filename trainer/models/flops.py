"""What a model computes for a token, and how much a device can: the two sides of MFU.

Floating-point operations of the model as it is written down, forward and backward, three times the forward: what a
trainer saves (the last layer where nothing reads it) or does twice (recomputed layers) is not subtracted or added, so
that figures of different trainers compare (Chowdhery et al., arXiv:2204.02311, appendix B). The last layer is computed
at one token in six here, so MFU counts up to 2.6 % (24 layers) or 5.2 % (12 layers) more than what is executed.
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
"""Dense bf16 operations a second with float32 sums, from the makers' data sheets, by words of the device's name.

The first whose words are all there counts. MI250X: of one of its two dies, which is what torch sees as a device.
"""


def flops_per_token(shape: EncoderShape, mean_seen: float, masked: float) -> float:
    """Operations to train on one token.

    mean_seen: how many tokens a token looks at, the sum of squared lengths over the sum of lengths. masked: the share
    of tokens that are predicted, where alone the head is computed.
    """
    D, E, V = shape.hidden_size, shape.embedding_size, shape.vocab_size
    matrices = shape.num_hidden_layers * (4 * D * D + 2 * D * shape.intermediate_size) + (
        E * D if shape.factorised else 0
    )
    attention = 2 * shape.num_hidden_layers * D * mean_seen
    head = masked * (D * E + E * V)
    return 6 * (matrices + attention + head)


def peak_flops(device: str) -> float | None:
    """Return a device's peak by its name, or None when it is not in the table. Example: `"NVIDIA H200"` -> `989e12`."""
    for name, peak in PEAKS.items():
        if re.search(rf"\b{name}\b", device):  # whole words: "A10" is not in "A100"
            return peak
    return None
