"""What a model computes for a token, and how much a device can: the two sides of MFU.

Floating-point operations of the model as it is written down, forward and backward, three times the forward: what a
trainer saves (the last layer where nothing reads it) or does twice (recomputed layers) is not subtracted or added, so
that figures of different trainers compare (Chowdhery et al., arXiv:2204.02311, appendix B).
"""

from __future__ import annotations

from trainer.models.encoder import EncoderShape

PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "B200": 2250e12,
}
"""Dense bf16 operations a second, from NVIDIA's data sheets, by a part of the device's name; the first that fits."""


def flops_per_token(shape: EncoderShape, mean_seen: float, masked: float) -> float:
    """Operations to train on one token.

    mean_seen: how many tokens a token looks at, the sum of squared lengths over the sum of lengths. masked: the share
    of tokens that are predicted, where alone the head is computed.
    """
    D, E, V = shape.width, shape.embedding, shape.vocabulary
    matrices = shape.layers * (4 * D * D + 2 * D * shape.feedforward) + (E * D if shape.factorised else 0)
    attention = 2 * shape.layers * D * mean_seen
    head = masked * (D * E + E * V)
    return 6 * (matrices + attention + head)


def peak_flops(device: str) -> float | None:
    """Of a device by its name. Example: `"NVIDIA H200"` -> `989e12`; None when it is not in the table."""
    return next((peak for name, peak in PEAKS.items() if name in device), None)
