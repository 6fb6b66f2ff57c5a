"""Estimates what a recipe takes, before anything is built: its model's size, FLOPs per token, and memory.

`--describe` prints all of it, the doctor compares the memory with a machine, and batch.micro_tokens "auto" takes as
many tokens as should fit (micro_batches.py).

Memory adds up weights, gradients and optimizer state as in ZeRO (Rajbhandari et al., arXiv:1910.02054), the buffers of
a reduction, and the activations that layers keep for the backward pass. What an allocator rounds these up to is not
included; `largest_micro_batch` leaves SAFETY_MARGIN for that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from schemas import storage
from schemas.errors import UsageError
from schemas.manifest import NAME, read_manifest
from schemas.terminal import in_hours
from schemas.vocabulary import VOCABULARY_FOLDER, read_vocabulary
from trainer.config.phases import Phase, phases_of
from trainer.config.schema import Recipe
from trainer.data.fit import check_model_vocabulary, check_rows, missing_pair_objective
from trainer.data.folder import mean_seen
from trainer.data.share import divide_rounding_up, smallest_micro_batch
from trainer.length import steps_of_epochs
from trainer.models.families import encoder_shape
from trainer.models.flops import flops_per_token
from trainer.models.pretraining import PretrainingModel
from trainer.models.shape import EncoderShape
from trainer.models.starting_weights import model_of

RANKS = (1, 8)
"""World sizes for which memory per rank is reported."""

BYTES = {"fp32": (4, 4, 8), "bf16": (2, 4, 12), "fp16": (2, 4, 12)}
"""The bytes of a parameter's weight, gradient and optimizer state.

Gradients are summed in float32 whatever the precision is (trainer/engine.py). The optimizer has two float32 moments,
and a float32 weight in addition to a 16-bit one.
"""

REDUCE_BUCKET_SIZE = 500_000_000
"""Gradient elements that DeepSpeed reduces at a time unless [deepspeed] zero_optimization.reduce_bucket_size is set."""

MAX_LIVE_PARAMETERS = 1_000_000_000
"""Most weights that stage 3 gathers, unless [deepspeed] zero_optimization.stage3_max_live_parameters is set."""

VECTORS_PER_LAYER = 6
"""Vectors of the hidden size that a layer keeps: its input, the queries, the heads' output, two sums, and a norm."""

LOGIT_BYTES = 3 * 4
"""Bytes per vocabulary entry at a masked token: logits, log-probabilities, and their gradients, all in float32."""

SAFETY_MARGIN = 0.1
"""Share of the free memory that stays unused: for fragmentation, workspaces of matrix products, and NCCL's buffers."""

MOST_TOKENS = 65_536
"""The most tokens of a chosen micro-batch. Above about 16,384 a GPU computes no faster, and only memory grows."""


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return parameter counts, FLOPs per token and bytes of memory, as a dictionary that JSON can hold.

    Row lengths come from the pairs if those are finished. Otherwise all rows are taken to have data.max_length tokens,
    or else model.max_position_embeddings. Of a recipe with phases, the figures are those of the phase whose ranks need
    most memory, and "phases" has each phase's.

    Raises UsageError if neither the recipe nor the pairs state the vocabulary's size, and UsageError or DataError if
    the rows of a phase do not fit the model.
    """
    phases = phases_of(recipe)
    for number, phase in enumerate(phases, start=1):
        check_phase(phase.recipe, f"phase {number}: " if recipe.phases else "")

    vocabulary = vocabulary_size(recipe)
    shape = encoder_shape(recipe.model, vocabulary)
    model = meta_model(shape)
    parameters = count_parameters(model)
    precision = recipe.engine.precision
    of_phases = [
        {"steps": phase.last_step - phase.steps_before, **described_phase(phase.recipe, vocabulary, parameters)}
        for phase in phases
    ]
    largest = phases.index(phase_that_needs_most(phases, vocabulary))

    return {
        "family": shape.family,
        "parameters": parameters,
        "parameters_without_heads": count_parameters(model.encoders()[0]),
        "vocabulary": shape.vocab_size,
        "bytes_per_rank": {
            f"zero_{stage}": {str(ranks): state_bytes(parameters, precision, stage, ranks) for ranks in RANKS}
            for stage in range(4)
        },
        "bucket_bytes": bucket_bytes(parameters, recipe),
        **{name: value for name, value in of_phases[largest].items() if name != "steps"},
        **described_length(recipe),
        **({"phases": of_phases} if recipe.phases else {}),
    }


def described_phase(recipe: Recipe, vocabulary: int, parameters: int) -> dict[str, Any]:
    """Return what depends on the rows and micro-batches of a phase's recipe.

    Activations are those of one token, and of a micro-batch if it has a number. "memory_bytes" is then what a rank
    needs in all at the recipe's engine.zero_stage, by the number of ranks. "rows" and "tokens" are those of the pairs
    that are finished; "unfinished" says which are not, and "missing" that a pair objective is.
    """
    shape = encoder_shape(recipe.model, vocabulary)
    longest, seen = row_lengths(recipe)
    masked = 1.0 if recipe.objective.kind == "clm" else recipe.masking.prob
    token_bytes = round(activation_bytes(shape, recipe))
    tokens = None if recipe.batch.chooses_micro_batch else least_micro_batch(recipe)
    memory = {str(ranks): rank_bytes(shape, parameters, recipe, ranks) for ranks in RANKS}
    folders = finished_folders(recipe)
    unfinished = [why_unfinished(folder) for folder in recipe.data.folders if folder not in folders]
    manifests = {folder: read_manifest(folder, "pairs") for folder in folders}
    missing = "" if unfinished else missing_pair_objective(recipe, manifests)
    return {
        "rows": sum(manifests[folder].totals["rows"] for folder in folders),
        "tokens": sum(manifests[folder].totals["tokens"] for folder in folders),
        "length": longest,
        "masked": masked,
        "flops_per_token": round(flops_per_token(shape, seen, masked)),
        "activation_bytes_per_token": token_bytes,
        "micro_batch_tokens": tokens,
        "activation_bytes": None if tokens is None else tokens * token_bytes,
        "memory_bytes": None if tokens is None else memory,
        **({"unfinished": unfinished} if unfinished else {}),
        **({"missing": missing} if missing else {}),
    }


def phase_that_needs_most(phases: Sequence[Phase], vocabulary: int) -> Phase:
    """Return the phase whose ranks need most memory."""
    return max(phases, key=lambda phase: rank_bytes(encoder_shape(phase.recipe.model, vocabulary), 0, phase.recipe, 1))


def described_length(recipe: Recipe) -> dict[str, Any]:
    """Return what is known about the length of a run: its steps, and run.max_epochs and run.max_hours if they are set.

    Raises UsageError if no step fits into run.max_epochs.
    """
    run = recipe.run
    limits = {"max_epochs": run.max_epochs, "max_hours": run.max_hours}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    steps = run.max_steps
    is_known = run.max_epochs is None or len(finished_folders(recipe)) == len(recipe.data.folders)
    if run.max_epochs is not None and is_known:
        steps = min(steps, steps_of_epochs(recipe))
    if run.max_hours is None and is_known:
        return {**limits, "steps": steps}

    shown = f"at most {steps:,}{'' if is_known else ', and fewer if run.max_epochs makes fewer of the pairs'}"
    if run.max_hours is not None:
        shown = f"as many as fit into {in_hours(run.max_hours)}, {shown}; measured at the start"
    return {**limits, "steps": shown}


def finished_folders(recipe: Recipe) -> list[str]:
    """Return the recipe's folders of pairs that are finished, that is, have a manifest."""
    return [folder for folder in recipe.data.folders if storage.exists(storage.join(folder, NAME))]


def why_unfinished(folder: str) -> str:
    """Return what is to be said of a folder without finished pairs. Paths are made absolute, and URLs are kept."""
    place = os.path.abspath(folder) if storage.is_local(folder) else folder
    return f"{place} {'holds no finished pairs yet' if storage.exists(folder) else 'does not exist'}"


def check_phase(recipe: Recipe, where: str) -> None:
    """Raise DataError or UsageError if the pairs of a phase's recipe do not fit its model, as training does.

    Unfinished pairs are taken to have rows of data.max_length tokens. where: prefix of the error message for those.
    """
    finished = finished_folders(recipe)
    for folder in finished:
        manifest = read_manifest(folder, "pairs")
        check_rows(recipe, manifest, folder)
        vocabulary = read_vocabulary(storage.join(folder, VOCABULARY_FOLDER))
        check_model_vocabulary(recipe, vocabulary, folder)

    planned = recipe.data.max_length
    positions = recipe.model.max_position_embeddings
    if not finished and planned is not None and planned > positions:
        raise UsageError(
            f"{where}data.max_length {planned} is more than model.max_position_embeddings {positions}. Raise "
            "model.max_position_embeddings, or plan pairs with a smaller --max_length."
        )


def row_lengths(recipe: Recipe) -> tuple[int, float]:
    """Return the length of the longest row, and the mean number of tokens that a token attends to, both in tokens."""
    manifests = [read_manifest(folder, "pairs") for folder in finished_folders(recipe)]
    if not manifests:
        length = recipe.data.max_length or recipe.model.max_position_embeddings
        return length, length

    return max(manifest.options["max_length"] for manifest in manifests), mean_seen(manifests)


def vocabulary_size(recipe: Recipe, assumed: int | None = None) -> int:
    """Return the size that the recipe states, or else that of the pairs' vocabulary, of any phase.

    assumed: the size if neither is known. Without it, that raises UsageError.
    """
    if recipe.model.vocab_size is not None:
        return recipe.model.vocab_size

    phases = [phase.recipe for phase in phases_of(recipe)]
    for folder in (folder for phase in phases for folder in finished_folders(phase)):
        return read_manifest(folder, "pairs").options["vocabulary_size"]
    if assumed is not None:
        return assumed

    folders = dict.fromkeys(folder for phase in phases for folder in phase.data.folders)
    raise UsageError(
        f"{', '.join(map(why_unfinished, folders))}, so the size of the vocabulary is unknown. Correct data.pairs, or "
        "give the size with --set model.vocab_size=30522."
    )


# Memory that does not depend on the micro-batch


def meta_model(shape: EncoderShape) -> PretrainingModel:
    """Return the model on the meta device: tensors there have shapes but no memory."""
    with torch.device("meta"):
        return model_of(shape)


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters, each shared one counted once."""
    return sum(parameter.numel() for parameter in module.parameters())


def state_bytes(parameters: int, precision: str, stage: int, ranks: int, offloaded: bool = False) -> int:
    """Return the bytes of weights, gradients and optimizer state on each rank.

    Stage 1 shards the optimizer state, 2 also gradients, and 3 also weights. Stage 0 in 16 bits is 1 (engine.py).
    offloaded: the state is on the host.
    """
    stage = stage if precision == "fp32" else max(stage, 1)
    weight, gradient, optimizer = BYTES[precision]
    kept = [(0 if offloaded else optimizer, 1), (gradient, 2), (weight, 3)]
    # Shards are padded to equal sizes, so the division rounds up.
    return sum(
        size * parameters if stage < sharded_from else divide_rounding_up(size * parameters, ranks)
        for size, sharded_from in kept
    )


def saved_bytes(parameters: int) -> int:
    """Return the bytes of a checkpoint: the weights and moments in float32. A copy in host memory takes about as much.

    All ranks hold it together, in equal parts.
    """
    return 3 * 4 * parameters


def bucket_bytes(parameters: int, recipe: Recipe) -> int:
    """Return the bytes of the buffers that gradients and weights are exchanged in, on each rank.

    There is a float32 copy of at most one bucket of gradients, except in bf16 below stage 2, where gradients are
    reduced in place (trainer/distributed/bf16_updates.py). Stages 2 and 3 also have the bucket itself, which DeepSpeed
    allocates in the model's precision and at its full size however small the model is. Stage 3 also holds gathered
    weights while they are in use.
    """
    settings = recipe.deepspeed.settings.get("zero_optimization", {})
    bucket_size = settings.get("reduce_bucket_size", REDUCE_BUCKET_SIZE)
    live_parameters = settings.get("stage3_max_live_parameters", MAX_LIVE_PARAMETERS)
    stage = recipe.engine.zero_stage

    if stage < 2 and recipe.engine.precision == "bf16":
        return 0
    needed = 4 * min(parameters, bucket_size)
    if stage >= 2:
        needed += value_bytes(recipe) * bucket_size
    if stage == 3:
        needed += value_bytes(recipe) * min(parameters, live_parameters)
    return needed


def held_bytes(parameters: int, recipe: Recipe, ranks: int) -> int:
    """Return the bytes that each device holds whatever the micro-batch is: state and buffers.

    With offload, only the optimizer state is left out; offloaded weights are on the device while they are in use.
    """
    engine = recipe.engine
    state = state_bytes(parameters, engine.precision, engine.zero_stage, ranks, offloaded=engine.offload != "none")
    return state + bucket_bytes(parameters, recipe)


# Memory that depends on the micro-batch


def least_micro_batch(recipe: Recipe) -> int:
    """Return the tokens of the largest micro-batch; with batch.micro_tokens "auto", of the smallest that it may be."""
    batch = recipe.batch
    longest, _ = row_lengths(recipe)
    if batch.micro_batch:
        return batch.micro_batch * longest
    return batch.micro_tokens if isinstance(batch.micro_tokens, int) else smallest_micro_batch(batch, longest)


def rank_bytes(shape: EncoderShape, parameters: int, recipe: Recipe, ranks: int) -> int:
    """Return the bytes that a rank needs on its device: state, buffers, and the `least_micro_batch`."""
    token_bytes = activation_bytes(shape, recipe) + working_bytes(shape, recipe)
    return held_bytes(parameters, recipe, ranks) + round(least_micro_batch(recipe) * token_bytes)


def activation_bytes(shape: EncoderShape, recipe: Recipe) -> float:
    """Return the bytes that one token's activations keep for the backward pass.

    A layer keeps VECTORS_PER_LAYER vectors of the hidden size, keys and values, and the inner vectors of the
    feed-forward network; with dropout also one byte for each element of two vectors, if it is not compiled for a GPU.
    With engine.recompute each layer keeps only its input, and one layer at a time keeps the rest. The masked-LM head
    keeps LOGIT_BYTES per vocabulary entry at masked tokens, counted at the step with the largest masked share.
    ELECTRA's generator keeps its activations while the discriminator computes, whose head keeps two vectors and no
    logits.
    """
    if shape.generator is not None:
        discriminator = replace(shape, generator=None, vocab_size=0)
        head_bytes = 2 * shape.hidden_size * value_bytes(recipe)
        return activation_bytes(shape.generator, recipe) + activation_bytes(discriminator, recipe) + head_bytes

    size = value_bytes(recipe)
    input_bytes = shape.hidden_size * size

    keys_and_values = 2 * shape.num_key_value_heads * shape.head_size
    hidden = VECTORS_PER_LAYER * shape.hidden_size + keys_and_values
    layer_bytes = (hidden + _inner_vectors(shape) * shape.intermediate_size) * size
    if shape.hidden_dropout_prob:
        layer_bytes += 2 * shape.hidden_size
    if shape.two_streams:
        # The query stream adds one token per target, and attention keeps its scores.
        layer_bytes *= 1 + recipe.masking.prob
        layer_bytes += score_bytes(shape, recipe)

    if recipe.engine.recompute:
        all_layers = shape.num_hidden_layers * input_bytes + layer_bytes
    else:
        all_layers = shape.num_hidden_layers * layer_bytes

    return all_layers + recipe.predicted_share * shape.vocab_size * LOGIT_BYTES


def working_bytes(shape: EncoderShape, recipe: Recipe) -> float:
    """Return the bytes that one token takes temporarily in the backward pass: the gradients of one layer's activations.

    These are four vectors of the hidden size (queries, keys, values, and the residual sum), and the inner vectors of
    the feed-forward network.
    """
    layer_bytes = (4 * shape.hidden_size + _inner_vectors(shape) * shape.intermediate_size) * value_bytes(recipe)
    if shape.two_streams:
        # The gradients of the scores (1), of the scores by distance, which are twice as many (2), and the values that
        # the scores were computed from (1).
        layer_bytes += 4 * score_bytes(shape, recipe)
    return layer_bytes


def _inner_vectors(shape: EncoderShape) -> int:
    """Return how many vectors of the feed-forward size are kept: the activation's input and output.

    A gated network also keeps the gate and the product of both.
    """
    return 4 if shape.gated else 2


def value_bytes(recipe: Recipe) -> int:
    """Return the bytes of a number in the precision that the model computes in."""
    return BYTES[recipe.engine.precision][0]


def score_bytes(shape: EncoderShape, recipe: Recipe) -> float:
    """Return the bytes that an XLNet layer keeps of a token's scores: a bias for each head and key of the longest row.

    A masked token is also one of the query stream.
    """
    scores = shape.num_attention_heads * shape.max_position_embeddings
    return (1 + recipe.masking.prob) * scores * value_bytes(recipe)


def largest_micro_batch(shape: EncoderShape, parameters: int, recipe: Recipe, ranks: int, free_bytes: float) -> int:
    """Return how many tokens fit into a device's free memory next to the state: at most MOST_TOKENS, 0 if none do."""
    room = (1 - SAFETY_MARGIN) * free_bytes - held_bytes(parameters, recipe, ranks)
    tokens = int(room // (activation_bytes(shape, recipe) + working_bytes(shape, recipe)))
    return max(0, min(tokens, MOST_TOKENS))
