"""Counts the operations of training and the peak of a device, from which MFU and HFU are computed.

Both are the share of the devices' peak operations per second (`PEAKS`) that training reaches:

    MFU = tokens per second * flops_per_token / (devices * peak)
    HFU = tokens per second * executed_flops / real tokens among them / (devices * peak)

MFU, model FLOPs utilization (Chowdhery et al., arXiv:2204.02311, appendix B), counts the operations of the model as it
is defined, forward and backward. It does not subtract what a trainer saves (the last layer where nothing reads it), or
add what it does twice (recomputed layers) or for nothing (padding), so that different trainers can be compared.

HFU, hardware FLOPs utilization (the same appendix; Korthikanti et al., arXiv:2205.05198, section 6.3), counts the
operations that are executed, with padding and recomputed layers and without what is saved. Here the last layer is
computed at about one token in six, so without padding HFU is lower than MFU by up to 2.6 % (24 layers) or 5.2 % (12
layers).

Both count only matrix multiplications, as is usual.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from trainer.models.batch import PackedBatch
from trainer.models.shape import EncoderShape
from trainer.models.xlnet_flops import two_stream_executed_flops, two_stream_flops_per_token

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


@dataclass
class ExecutedWork:
    """Sums over the micro-batches of one rank.

    tokens: without padding. computed: tokens with padding. padding_pairs: over tokens of padding, the number of tokens
    that each attends to. sequences: with those of padding. predicted: places at which the masked-LM head is computed,
    with padding. targets: the same without padding. distances: 2 L per micro-batch, which XLNet projects.
    """

    tokens: int = 0
    computed: int = 0
    padding_pairs: int = 0
    sequences: int = 0
    predicted: int = 0
    targets: int = 0
    distances: int = 0

    def add(self, batch: PackedBatch) -> None:
        """Add a micro-batch. Reads only sizes that the host knows, so a GPU is not waited for."""
        computed = len(batch.ids_T)
        self.tokens += batch.tokens
        self.computed += computed
        self.sequences += len(batch.sequence_starts_S)
        self.predicted += len(batch.masked_positions_K)
        self.targets += batch.predicted
        self.distances += 2 * batch.longest

        # Padding forms separate sequences of at most this length (trainer/data/batches.py).
        self.padding_pairs += (computed - batch.tokens) * batch.longest


def flops_per_token(shape: EncoderShape, mean_seen: float, masked: float) -> float:
    """Return the floating-point operations of training on one token, forward and backward.

    mean_seen: the mean row length seen by a token, sum(length**2) / sum(length) over all rows.
    masked: the share of tokens that are predicted; the head is counted only there.
    """
    if shape.two_streams:
        return two_stream_flops_per_token(shape, mean_seen, masked)
    if shape.generator is not None:
        # The discriminator, its head at all tokens, and the generator.
        discriminator = flops_per_token(replace(shape, generator=None), mean_seen, masked=0.0)
        return discriminator + _detection_flops(shape) + flops_per_token(shape.generator, mean_seen, masked)

    per_layer = _projections(shape) + shape.hidden_size * shape.hidden_size + _feed_forward(shape)
    matrices = shape.num_hidden_layers * per_layer + _widening(shape)
    head = masked * _masked_lm_head(shape)

    # Each product is a multiplication and an addition, once forward and twice backward (for inputs and for weights).
    return 6 * (matrices + attention_products(shape, mean_seen) + head)


def executed_flops(shape: EncoderShape, work: ExecutedWork, mean_seen: float, recompute: bool) -> float:
    """Return the floating-point operations that training on these micro-batches executes.

    mean_seen: as in `flops_per_token`, of real tokens. recompute: layers are computed a second time (engine.recompute).
    """
    if shape.two_streams:
        return two_stream_executed_flops(shape, work, mean_seen, recompute)
    if shape.generator is not None:
        generator = executed_flops(shape.generator, work, mean_seen, recompute)
        return generator + _executed_in_discriminator(shape, work, mean_seen, recompute)

    D = shape.hidden_size
    projections = _projections(shape)
    after_attention = D * D + _feed_forward(shape)

    # The pair head reads the first token of each sequence, and the masked-LM head the masked tokens. In the last layer,
    # everything after attention is computed only for these rows (trainer/models/encoder.py).
    first_tokens = work.sequences if shape.pair_head else 0
    rows = first_tokens + work.predicted

    whole_layers = (shape.num_hidden_layers - 1) * (projections + after_attention) * work.computed
    last_layer = projections * work.computed + after_attention * rows
    padding = work.computed - work.tokens
    attention = work.tokens * attention_products(shape, mean_seen)
    if padding:
        attention += padding * attention_products(shape, work.padding_pairs / padding)
    layers = whole_layers + last_layer + attention

    widening = _widening(shape) * work.computed
    heads = work.predicted * _masked_lm_head(shape) + first_tokens * (D * D + 2 * D)

    # Each product is a multiplication and an addition, once forward and twice backward.
    executed = 6 * (layers + widening + heads)
    if not recompute:
        return executed

    # torch stops recomputing a layer once it has every tensor that the backward pass reads. If the layer ends with a
    # plain addition, the last product is not needed and is skipped.
    repeated = layers
    if shape.pre_norm and not shape.hidden_dropout_prob:
        repeated -= D * shape.intermediate_size * ((shape.num_hidden_layers - 1) * work.computed + rows)
    return executed + 2 * repeated


def _executed_in_discriminator(shape: EncoderShape, work: ExecutedWork, mean_seen: float, recompute: bool) -> float:
    """Return the operations of ELECTRA's discriminator, whose last layer and head are computed at all tokens."""
    D = shape.hidden_size
    rest_of_last_layer = (D * D + _feed_forward(shape)) * work.computed

    unread = replace(work, predicted=0)  # the masked-LM head is the generator's
    layers = executed_flops(replace(shape, generator=None), unread, mean_seen, recompute)
    return layers + (8 if recompute else 6) * rest_of_last_layer + _detection_flops(shape) * work.computed


def _detection_flops(shape: EncoderShape) -> float:
    """Return the operations of a discriminator's head for one token."""
    return 6 * (shape.hidden_size**2 + shape.hidden_size)


# Multiplications of the forward pass


def attention_products(shape: EncoderShape, seen: float) -> float:
    """Return a token's multiplications in the attention of all layers: queries with keys, and weights with values.

    seen: the mean number of tokens in its row. In layers with a window, the full window is counted. Tokens near the
    ends of a row attend to fewer, which is not subtracted, and kernels compute whole tiles, which is not added.
    """
    windows = shape.num_hidden_layers - shape.global_layers()
    in_windows = min(seen, shape.window + 1)
    return 2 * shape.hidden_size * (shape.global_layers() * seen + windows * in_windows)


def _projections(shape: EncoderShape) -> int:
    """Return the multiplications of a token's queries, keys and values in a layer."""
    return shape.hidden_size * shape.projected_heads * shape.head_size


def _feed_forward(shape: EncoderShape) -> int:
    return (3 if shape.gated else 2) * shape.hidden_size * shape.intermediate_size


def _widening(shape: EncoderShape) -> int:
    return shape.embedding_size * shape.hidden_size if shape.factorized else 0


def _masked_lm_head(shape: EncoderShape) -> int:
    transform = shape.hidden_size * shape.embedding_size if shape.head_transform else 0
    return transform + shape.embedding_size * shape.vocab_size


def peak_flops(device: str) -> float | None:
    """Return the peak operations per second of a device by its name, or None if it is not in PEAKS.

    Example: `"NVIDIA H200"` -> `989e12`.
    """
    for name, peak in PEAKS.items():
        if re.search(rf"\b{name}\b", device):  # whole words: "A10" is not in "A100"
            return peak
    return None
