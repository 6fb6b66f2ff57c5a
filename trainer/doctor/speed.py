"""Estimates a recipe's tokens per second from a slice of its model.

The slice has one layer, then two, of the recipe's width, with its embeddings and its heads, and trains on random
tokens. The difference between the two is the time of one layer, so the whole model takes

    seconds(L layers) = seconds(1) + (L - 1) * (seconds(2) - seconds(1))

Updates, communication, checkpoints and reading data are not measured: expect a few percent less on one device, and even
less on several machines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from schemas.errors import ClozelineError
from trainer.config.schema import Recipe
from trainer.doctor.device import count_devices, device_kind, device_memory, dtype_of
from trainer.doctor.finding import Finding
from trainer.doctor.micro_batch import micro_batch_here
from trainer.doctor.plan import Plan
from trainer.doctor.shape import shape_of

if TYPE_CHECKING:
    import torch

    from trainer.models.batch import PackedBatch
    from trainer.models.shape import EncoderShape

SECONDS = 10.0
"""Time limit for all passes. A pass that has begun is finished, and building the model is not included."""

PASS_SECONDS = 0.5
"""Target for a pass of one layer on a CPU: long enough to measure, short enough to repeat."""

PASSES = 4
PROBE_TOKENS = 64

SLICE_BYTES_PER_PARAMETER = 16
"""A float32 weight, its gradient, and room for activations."""


@dataclass(frozen=True)
class Estimate:
    """An estimate for the whole model.

    tokens_per_second: of one device. tokens: of the measured micro-batch. layer_seconds: of one layer, for both passes.
    """

    tokens_per_second: float
    tokens: int
    layer_seconds: float


def check_speed(plan: Plan) -> list[Finding]:
    """Estimate how fast the recipe trains here. Returns no findings without a recipe."""
    if plan.recipe is None:
        return []

    try:
        shape, length, mean_length = shape_of(plan.recipe)
    except ClozelineError as error:
        return [Finding("speed", "warning", f"could not be estimated: {error}")]

    if slice_bytes(shape) > device_memory() / 2:
        return [Finding("speed", "note", "not estimated: even two layers would fill this machine's memory")]

    estimate = measured(plan.recipe, shape, length, mean_length)
    devices = count_devices()
    total = estimate.tokens_per_second * devices
    facts = {
        "tokens_per_second": total,
        "devices": devices,
        "micro_batch_tokens": estimate.tokens,
        "layer_seconds": estimate.layer_seconds,
    }
    rate = f"{total:,.0f}" if total >= 10 else f"{total:.2g}"
    on_all = f" on {devices} devices" if devices > 1 else ""
    value = (
        f"about {rate} tokens/s{on_all} for {shape.num_hidden_layers} layers of {shape.hidden_size}, "
        "without updates, communication and data"
    )
    return [Finding("speed", "ok", value, facts=facts)]


def slice_bytes(shape: EncoderShape) -> int:
    """Return roughly how many bytes of memory the larger slice takes."""
    D = shape.hidden_size
    layers = 2 * (4 * D * D + 2 * D * shape.intermediate_size)
    embeddings = (shape.vocab_size + shape.positions) * shape.embedding_size
    return SLICE_BYTES_PER_PARAMETER * (layers + embeddings)


def measured(recipe: Recipe, shape: EncoderShape, longest: int, mean_length: int) -> Estimate:
    """Train both slices for a few passes and return the estimate for all layers."""
    import torch

    device = torch.device(device_kind())
    deadline = perf_counter() + SECONDS
    most = micro_batch_here(recipe, shape, longest)

    one_layer = Slice(recipe, shape, 1, device)
    tokens = most
    if device.type == "cpu":
        probe = one_layer.seconds(PROBE_TOKENS, mean_length, perf_counter())
        tokens = max(PROBE_TOKENS, min(most, int(PROBE_TOKENS * PASS_SECONDS / probe)))

    # Each slice gets half of the remaining time.
    first = one_layer.seconds(tokens, mean_length, (perf_counter() + deadline) / 2)
    del one_layer
    second = Slice(recipe, shape, 2, device).seconds(tokens, mean_length, deadline)

    # On a busy machine, two layers may be measured as faster than one.
    layer = max(second - first, 0.05 * second)
    whole = first + (shape.num_hidden_layers - 1) * layer
    return Estimate(tokens / whole, tokens, layer)


class Slice:
    """Some layers of a recipe's model, with embeddings and heads, on a device."""

    def __init__(self, recipe: Recipe, shape: EncoderShape, layers: int, device: torch.device):
        from trainer.models.pretraining import model_of

        self._model = model_of(slice_of(shape, layers)).to(device, dtype_of(recipe.engine.precision)).train()
        for encoder in self._model.encoders():
            encoder.recompute = recipe.engine.recompute
        self._vocabulary = shape.vocab_size
        self._masked = recipe.masking.prob
        self._device = device

    def seconds(self, tokens: int, length: int, deadline: float) -> float:
        """Return the median seconds of a forward and backward pass: of at least one, after one to warm up.

        tokens: of the micro-batch, in rows of `length`. deadline: by perf_counter; no pass begins after it.
        """
        batch = random_batch(tokens, length, self._masked, self._vocabulary).to(self._device)
        times = []
        for _ in range(PASSES + 1):
            started = perf_counter()
            self._pass(batch)
            times.append(perf_counter() - started)
            if len(times) > 1 and perf_counter() > deadline:
                break
        return median(times[1:])

    def _pass(self, batch: PackedBatch) -> None:
        import torch

        self._model(batch).total().backward()
        self._model.zero_grad()
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def slice_of(shape: EncoderShape, layers: int) -> EncoderShape:
    """Return the shape with `layers` layers, both in the model and in its generator if it has one."""
    groups = min(layers, shape.num_hidden_groups)
    generator = None if shape.generator is None else slice_of(shape.generator, layers)
    return replace(shape, num_hidden_layers=layers, num_hidden_groups=groups, generator=generator)


def random_batch(tokens: int, length: int, masked: float, vocabulary: int) -> PackedBatch:
    """Return rows of `length` random tokens, (T,) in all, of which the share `masked` is predicted."""
    import torch

    from trainer.models.batch import PackedBatch

    length = min(length, tokens)
    rows = max(1, tokens // length)
    T = rows * length
    predicted = max(1, int(masked * T))

    generator = torch.Generator().manual_seed(0)
    places_T = torch.arange(T)
    return PackedBatch(
        ids_T=torch.randint(vocabulary, (T,), generator=generator),
        segments_T=torch.zeros(T, dtype=torch.int64),
        positions_T=places_T % length,
        sequence_T=places_T // length,
        sequence_starts_S=torch.arange(rows) * length,
        longest=length,
        masked_positions_K=torch.randperm(T, generator=generator)[:predicted].sort().values,
        labels_K=torch.randint(vocabulary, (predicted,), generator=generator),
        pair_labels_S=torch.zeros(rows, dtype=torch.int64),
        tokens=T,
        predicted=predicted,
        paired=rows,
        draws_K=torch.randint(1 << 62, (predicted,), generator=generator),
    )
