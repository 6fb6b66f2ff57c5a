"""Tests whether one forward and backward pass of a micro-batch fits into a device's memory, and leaves no trace.

The pass runs a model of the same shape next to a block of memory as large as what training will hold: float32 weights,
summed gradients, moments and buffers. The run's own weights, gradients and random numbers are not touched.

The trial is not compiled. Compiling takes a minute, and compiled layers keep less memory than eager ones, not more.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from trainer.config.schema import Recipe
from trainer.data.batches import pad_to_shape, shape_for
from trainer.models.batch import PackedBatch
from trainer.models.pretraining import PretrainingModel, model_of
from trainer.models.shape import EncoderShape
from trainer.out_of_memory import is_out_of_memory

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype that the model computes in, by engine.precision."""


def meta_model(shape: EncoderShape) -> PretrainingModel:
    """Return the model on the meta device: tensors there have shapes but no memory."""
    with torch.device("meta"):
        return model_of(shape)


def free_memory(device: torch.device) -> int:
    """Return the bytes of a GPU that this process can still use: free ones, and those in torch's cache."""
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + cached


@dataclass(frozen=True)
class Trial:
    """A forward and backward pass to try with any number of tokens.

    mean_length: the mean number of tokens in a row. held_bytes: the bytes that the device holds besides activations:
    weights, gradients, optimizer state and buffers.
    """

    shape: EncoderShape
    recipe: Recipe
    mean_length: float
    held_bytes: int
    device: torch.device

    def fits(self, tokens: int) -> bool:
        """Return whether a pass over `tokens` tokens fits into what is free on the device.

        Any other error of the pass is raised.
        """
        is_cuda = self.device.type == "cuda"
        try:
            with torch.random.fork_rng([self.device] if is_cuda else []):
                batch = trial_batch(self.shape, self.recipe, tokens, self.mean_length).to(self.device)
                train_once(self.shape, self.recipe, batch, self.held_bytes)
            if is_cuda:
                torch.cuda.synchronize(self.device)
            return True
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return False
        finally:
            # Return what the pass allocated to the device, instead of keeping it in torch's cache.
            gc.collect()
            if is_cuda:
                torch.cuda.empty_cache()


def train_once(shape: EncoderShape, recipe: Recipe, batch: PackedBatch, held_bytes: int) -> None:
    """Compute the gradients of one micro-batch in a model of zeros, on the batch's device, next to `held_bytes`."""
    device = batch.ids_T.device
    model = meta_model(shape).to(DTYPES[recipe.engine.precision]).to_empty(device=device).train()
    for encoder in model.encoders():
        encoder.recompute = recipe.engine.recompute
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()

    # The model's own weights and gradients are part of what training holds.
    own_bytes = 2 * _bytes_of(model)
    ballast = torch.empty(max(0, held_bytes - own_bytes), dtype=torch.uint8, device=device)
    model(batch).total().backward()
    del ballast


def _bytes_of(model: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def trial_batch(shape: EncoderShape, recipe: Recipe, tokens: int, mean_length: float) -> PackedBatch:
    """Return a micro-batch of the largest shape that a micro-batch of `tokens` tokens can be padded to."""
    longest = min(tokens, shape.max_position_embeddings)
    padded = shape_for(tokens, min(mean_length, longest), longest, recipe.predicted_share, padded=False)
    batch = pad_to_shape(one_row(longest), padded, pad_id=0)
    return with_targets(batch, recipe.predicted_share) if shape.two_streams else batch


def one_row(length: int) -> PackedBatch:
    """Return a row of `length` tokens with its first one masked and a pair label."""
    zeros = torch.zeros(length, dtype=torch.int64)
    one: Tensor = zeros[:1]
    return PackedBatch(
        ids_T=zeros,
        segments_T=zeros,
        positions_T=torch.arange(length),
        sequence_T=zeros,
        sequence_starts_S=one,
        longest=length,
        masked_positions_K=one,
        labels_K=one,
        pair_labels_S=one,
        tokens=length,
        predicted=1,
        paired=1,
        draws_K=one,
    )


def with_targets(batch: PackedBatch, share: float) -> PackedBatch:
    """Return the batch with prediction targets spread over all of its tokens.

    XLNet computes targets within their sequences and skips padded ones, so padded targets would need too little memory.
    """
    targets = int(share * len(batch.ids_T))
    positions_K = torch.linspace(0, len(batch.ids_T) - 1, targets).long()
    return replace(
        batch, masked_positions_K=positions_K, labels_K=torch.zeros_like(positions_K), predicted=len(positions_K)
    )
