"""Chooses how large a micro-batch is, for recipes with batch.micro_tokens = "auto": the largest that fits.

    on a GPU    the largest that fits by the formulas of describe.py, if one forward and backward pass confirms that it
                does; it is halved each time that the pass runs out of memory.
    on a CPU    CPU_TOKENS, which keep all cores busy and a small machine's memory free.

All ranks use the size that fits on the one with the least memory. The choice changes results by rounding and, with
dropout, by its random masks. So RUN/micro_batches.json keeps it, by a hash of what it depends on, for all later starts.
If training runs out of memory nevertheless, half of it is recorded there for the next start.

The pass runs a model of zeros next to a block of memory as large as what training will hold. It leaves no trace, and it
is not compiled: compiling takes a minute, and compiled layers keep less memory than eager ones, not more.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from schemas import storage
from schemas.errors import ClozelineError, StorageError, UsageError
from trainer.config.phases import Phase
from trainer.config.schema import BatchSection, Recipe
from trainer.data.batches import shape_for
from trainer.data.folder import PairFolder
from trainer.data.share import half_of, needed_tokens, smallest_micro_batch
from trainer.describe import count_parameters, held_bytes, largest_micro_batch, meta_model
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0
from trainer.engine import DTYPES
from trainer.logs import logger
from trainer.models.batch import PackedBatch
from trainer.models.families import encoder_shape
from trainer.models.shape import EncoderShape

RECORD = "micro_batches.json"

CPU_TOKENS = 4096
"""Tokens of a micro-batch on a CPU: 32 rows of 128 tokens. Matrix products of this many rows run at full speed on any
number of cores, and a BERT-base takes 3 GB for them."""

WAY_OUT = "Set engine.recompute, a higher engine.zero_stage or engine.offload, or use more or larger GPUs."


class DeviceMemoryError(ClozelineError):
    """Training ran out of device memory on this rank. The other ranks only notice that this one has exited."""


class Choice(NamedTuple):
    """A chosen micro-batch.

    tokens: what each rank computes at once. half: what to take if that runs out of memory, 0 if nothing is smaller.
    key: under which RUN/micro_batches.json keeps the choice.
    """

    tokens: int
    half: int
    key: str


class Rows(NamedTuple):
    """The row lengths that a choice depends on: tokens of each folder's longest row, and the mean of all rows."""

    longest: tuple[int, ...]
    mean: float


def with_micro_batches(
    phase: Phase, folders: Sequence[PairFolder], device: torch.device
) -> tuple[Phase, Choice | None]:
    """Return the phase with "auto" in batch.micro_tokens replaced by a number, and the choice of that number.

    If the recipe states the size itself, returns the phase unchanged and None. A collective call. Raises UsageError on
    every rank if not even the smallest micro-batch fits.
    """
    recipe = phase.recipe
    if not recipe.batch.chooses_micro_batch:
        return phase, None

    rows = rows_of(folders)
    run = recipe.run.folder
    key = run_on_rank_0(lambda: key_of(phase, rows, device))

    # A rank that runs out of memory records it in the folder that it sees, which other ranks may not see.
    known = [tokens for tokens in run_on_all_ranks(lambda: recorded(run).get(key)) if tokens is not None]
    if known:
        tokens = min(known)
        logger.info("batch.micro_tokens auto: %s tokens at once, as recorded in %s.", f"{tokens:,}", RECORD)
    else:
        shape = encoder_shape(recipe.model, folders[0].vocabulary.size)
        tokens = choose(recipe, shape, rows, device)
        logger.info("batch.micro_tokens auto: %s tokens at once on each rank.", f"{tokens:,}")
        run_on_rank_0(lambda: record(run, key, tokens))

    batch = recipe.batch.model_copy(update={"micro_tokens": tokens})
    choice = Choice(tokens, half_of(batch, tokens, rows.longest, dist.get_world_size()), key)
    return replace(phase, recipe=recipe.model_copy(update={"batch": batch})), choice


def rows_of(folders: Sequence[PairFolder]) -> Rows:
    """Return the row lengths of all folders together."""
    tokens = sum(folder.manifest.totals["tokens"] for folder in folders)
    rows = sum(folder.manifest.totals["rows"] for folder in folders)
    return Rows(tuple(folder.max_length for folder in folders), tokens / rows)


# The record


def key_of(phase: Phase, rows: Rows, device: torch.device) -> str:
    """Return a hash of what a choice depends on. If any of it changes, the choice is made again.

    How much memory other programs leave free is no part of it, so that resumes compute with one size.
    """
    recipe = phase.recipe
    facts = [
        phase.steps_before,
        dist.get_world_size(),
        device_name(device),
        recipe.engine.model_dump(include={"precision", "zero_stage", "offload", "recompute", "compile"}),
        recipe.deepspeed.settings.get("zero_optimization"),
        [recipe.batch.size, recipe.batch.shape],
        [recipe.masking.prob, recipe.masking.final_prob],
        [recipe.model.hidden_dropout_prob, recipe.model.attention_probs_dropout_prob],
        rows,
    ]
    return storage.sha256(json.dumps(facts).encode())[:16]


def recorded(run: str) -> dict[str, int]:
    """Return the tokens of all recorded choices by key. A damaged file counts as empty, so the choice is made again."""
    try:
        return {key: int(tokens) for key, tokens in json.loads((Path(run) / RECORD).read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def record(run: str, key: str, tokens: int) -> None:
    """Record a choice in RUN/micro_batches.json. Raises StorageError."""
    choices = recorded(run) | {key: tokens}
    storage.publish(str(Path(run) / RECORD), (json.dumps(choices, indent=2) + "\n").encode())


# Choosing


def choose(recipe: Recipe, shape: EncoderShape, rows: Rows, device: torch.device) -> int:
    """Return the tokens of a micro-batch for all ranks.

    A collective call. Raises UsageError on every rank if no size fits, and any other error that a rank's trial raises.
    """
    # If one rank's trial raises an error, all ranks raise it, and none is left waiting.
    tokens = min(run_on_all_ranks(lambda: largest_that_fits(recipe, shape, rows, device)))
    if tokens > 0:
        return tokens

    smallest = smallest_micro_batch(recipe.batch, max(rows.longest))
    error = UsageError(
        f"batch.micro_tokens auto: not even {smallest:,} tokens of this model fit into the "
        f"{free_memory(device) / 1e9:.1f} GB that are free on {device_name(device)}, at engine.zero_stage "
        f"{recipe.engine.zero_stage}. {WAY_OUT}"
    )
    error.everywhere = True
    raise error


def largest_that_fits(recipe: Recipe, shape: EncoderShape, rows: Rows, device: torch.device) -> int:
    """Return the most tokens that this rank can compute at once, 0 if not even the smallest micro-batch fits."""
    batch = recipe.batch
    ranks = dist.get_world_size()
    smallest = smallest_micro_batch(batch, max(rows.longest))
    if device.type != "cuda":
        return needed_tokens(batch, max(smallest, CPU_TOKENS), rows.longest, ranks)

    parameters = count_parameters(meta_model(shape))
    estimate = largest_micro_batch(shape, parameters, recipe, ranks, free_memory(device))
    held = held_bytes(parameters, recipe, ranks)

    # The smallest is tried even if the estimate says that it does not fit, because that is on the safe side. At stage 3
    # no device can hold the model, which a pass outside DeepSpeed would need, so the estimate decides.
    tokens = needed_tokens(batch, max(smallest, estimate), rows.longest, ranks)
    if recipe.engine.zero_stage == 3:
        return tokens if tokens <= estimate else 0
    while tokens > 0 and not fits(shape, recipe, trial_batch(shape, recipe, tokens, rows.mean), held, device):
        tokens = half_of(batch, tokens, rows.longest, ranks)
    return tokens


def free_memory(device: torch.device) -> int:
    """Return the bytes of a GPU that this process can still use: free ones, and those in torch's cache."""
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + cached


def device_name(device: torch.device) -> str:
    """Return "cpu", or the name of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


# The trial


def fits(shape: EncoderShape, recipe: Recipe, batch: PackedBatch, held: int, device: torch.device) -> bool:
    """Return whether a pass over a batch fits into what is free on a device. Any other error of the pass is raised.

    held: the bytes that the device holds besides activations in training.
    """
    is_cuda = device.type == "cuda"
    try:
        with torch.random.fork_rng([device] if is_cuda else []):
            train_once(shape, recipe, batch.to(device), held)
        if is_cuda:
            torch.cuda.synchronize(device)
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


def train_once(shape: EncoderShape, recipe: Recipe, batch: PackedBatch, held: int) -> None:
    """Compute the gradients of one micro-batch in a model of zeros, on the batch's device, next to `held` bytes."""
    device = batch.ids_T.device
    model = meta_model(shape).to(DTYPES[recipe.engine.precision]).to_empty(device=device).train()
    for encoder in model.encoders():
        encoder.recompute = recipe.engine.recompute
    for parameter in model.parameters():
        parameter.data.zero_()

    # The model's own weights and gradients are part of what training holds.
    own_bytes = 2 * sum(parameter.nbytes for parameter in model.parameters())
    ballast = torch.empty(max(0, held - own_bytes), dtype=torch.uint8, device=device)
    model(batch).total().backward()
    del ballast


def trial_batch(shape: EncoderShape, recipe: Recipe, tokens: int, mean_length: float) -> PackedBatch:
    """Return a micro-batch of the largest shape that one of `tokens` tokens can have, with targets all over it."""
    longest = min(tokens, shape.max_position_embeddings)
    most = shape_for(tokens, min(mean_length, longest), longest, recipe.predicted_share, padded=False)
    place_T = torch.arange(most.tokens)
    targets_K = torch.linspace(0, most.tokens - 1, most.masked).long()

    # Rows of the greatest length, and after them empty ones.
    starts_S = torch.zeros(most.sequences, dtype=torch.int64)
    starts_S[: -(-most.tokens // longest)] = place_T[::longest]
    return PackedBatch(
        ids_T=torch.zeros_like(place_T),
        segments_T=torch.zeros_like(place_T),
        positions_T=place_T % longest,
        sequence_T=place_T // longest,
        sequence_starts_S=starts_S,
        longest=longest,
        masked_positions_K=targets_K,
        labels_K=torch.zeros_like(targets_K),
        pair_labels_S=torch.zeros_like(starts_S),
        tokens=most.tokens,
        predicted=most.masked,
        paired=most.sequences,
        draws_K=torch.zeros_like(targets_K),
    )


# Out of memory in training

WORDS = re.compile(
    r"(CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_\w*ALLOC(ATION)?_FAILED"
    r"|CUDA error: out of memory"
    r"|Cuda failure( \d+)? 'out of memory'"  # NCCL's
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
)
"""What libraries that allocate memory themselves say in a RuntimeError. torch raises OutOfMemoryError for its own."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory could not be allocated."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and WORDS.search(str(error)) is not None


@contextlib.contextmanager
def noting_out_of_memory(message: Callable[[], str]) -> Iterator[None]:
    """Turn running out of memory into a DeviceMemoryError. message: called for its text only then.

    Only the ranks that ran out of memory get there, so `message` must not make a collective call.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceMemoryError(message()) from error


def too_large_model(recipe: Recipe, device: torch.device) -> str:
    """Return the message where no micro-batch has been computed yet."""
    return (
        f"{recipe.run.output}: out of memory on {device_name(device)} before the first step: what is free does not "
        f"hold the model and its optimizer. End what else computes there. {WAY_OUT}"
    )


def too_large_micro_batch(recipe: Recipe, choice: Choice | None, device: torch.device) -> str:
    """Return the message for a step, after recording half of a chosen micro-batch for the next start.

    recipe: the phase's. choice: None if the recipe states the micro-batch itself.
    """
    advice = advice_for(recipe.batch) if choice is None else after_choice(recipe.run.folder, choice)
    return f"{recipe.run.output}: out of memory on {device_name(device)}, {advice}"


def advice_for(batch: BatchSection) -> str:
    """Return advice for a recipe that states the size of a micro-batch itself."""
    size = f"micro_batch {batch.micro_batch}" if batch.micro_batch else f"micro_tokens {batch.micro_tokens}"
    return (
        f"with batch.{size}. Lower it, or set batch.micro_batch=none and batch.micro_tokens=auto. The same command "
        "then resumes from the last checkpoint."
    )


def after_choice(run: str, choice: Choice) -> str:
    """Record half of a choice that ran out of memory, and return advice for the user."""
    chosen = f"with {choice.tokens:,} tokens at once, which batch.micro_tokens auto chose."
    if choice.half == 0:
        return f"{chosen} Rows are too long for less. {WAY_OUT} The same command then resumes from the last checkpoint."
    try:
        record(run, choice.key, choice.half)
    except StorageError as error:
        return f"{chosen} This could not be recorded: {error} Set batch.micro_tokens={choice.half}."
    path = Path(run) / RECORD
    return f"{chosen} {path} records it: the same command resumes from the last checkpoint and takes {choice.half:,}."
