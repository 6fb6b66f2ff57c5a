"""Describes a recipe for `--describe`: its model's size, FLOPs per token and memory, before anything is built.

Memory is what the method needs, not what an allocator rounds it up to (trainer/memory.py).
"""

from __future__ import annotations

from typing import Any

from schemas import storage
from schemas.errors import UsageError
from schemas.manifest import NAME, read_manifest
from schemas.vocabulary import VOCABULARY_FOLDER, read_vocabulary
from trainer.config.phases import phases_of
from trainer.config.schema import Recipe
from trainer.data.folder import check_model_vocabulary, check_rows
from trainer.memory import activation_bytes, bucket_bytes, count_parameters, meta_model, state_bytes
from trainer.models.families import encoder_shape
from trainer.models.flops import flops_per_token

RANKS = (1, 8)
"""World sizes for which memory per rank is reported."""


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return parameter counts, FLOPs per token and bytes of memory, as a dictionary that JSON can hold.

    Row lengths come from the pairs if those are finished. Otherwise all rows are taken to have data.max_length tokens,
    or else model.max_position_embeddings. Activations are those of one token, and of a micro-batch if it has a number.

    Raises UsageError if neither the recipe nor the pairs state the vocabulary's size, and UsageError or DataError if
    the rows of a phase do not fit the model.
    """
    for number, phase in enumerate(phases_of(recipe), start=1):
        check_phase(phase.recipe, f"phase {number}: " if recipe.phases else "")

    shape = encoder_shape(recipe.model, vocabulary_size(recipe))
    model = meta_model(shape)
    parameters = count_parameters(model)

    longest, mean_seen = row_lengths(recipe)
    token_bytes = round(activation_bytes(shape, recipe))
    tokens = None if recipe.batch.chooses_micro_batch else micro_batch_tokens(recipe, longest)
    precision = recipe.engine.precision
    masked = 1.0 if recipe.objective.kind == "clm" else recipe.masking.prob

    return {
        "family": shape.family,
        "parameters": parameters,
        "parameters_without_heads": count_parameters(model.encoders()[0]),
        "vocabulary": shape.vocab_size,
        "length": longest,
        "masked": masked,
        "flops_per_token": round(flops_per_token(shape, mean_seen, masked)),
        "bytes_per_rank": {
            f"zero_{stage}": {str(ranks): state_bytes(parameters, precision, stage, ranks) for ranks in RANKS}
            for stage in range(4)
        },
        "bucket_bytes": bucket_bytes(parameters, recipe),
        "activation_bytes_per_token": token_bytes,
        "micro_batch_tokens": tokens,
        "activation_bytes": None if tokens is None else tokens * token_bytes,
        **described_length(recipe),
    }


def described_length(recipe: Recipe) -> dict[str, Any]:
    """Return what is known about the length of a run with run.max_hours; an empty dictionary for any other run."""
    run = recipe.run
    if run.max_hours is None:
        return {}
    return {
        "max_hours": run.max_hours,
        "steps": f"as many as fit into {run.max_hours:g} hours, at most {run.max_steps:,}; measured at the start",
    }


def finished_folders(recipe: Recipe) -> list[str]:
    """Return the recipe's folders of pairs that are finished, that is, have a manifest."""
    return [folder for folder in recipe.data.folders if storage.exists(storage.join(folder, NAME))]


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

    # Each of the L tokens of a row attends to L tokens, so the mean over tokens is sum(L**2) / sum(L).
    longest = 0
    tokens = 0
    squares = 0
    for manifest in manifests:
        longest = max(longest, manifest.options["max_length"])
        for length, rows in enumerate(manifest.statistics["lengths"]):
            tokens += length * rows
            squares += length * length * rows

    return longest, squares / tokens


def vocabulary_size(recipe: Recipe) -> int:
    """Return the size that the recipe states, or else that of the pairs' vocabulary."""
    if recipe.model.vocab_size is not None:
        return recipe.model.vocab_size

    folders = finished_folders(recipe)
    if folders:
        return read_manifest(folders[0], "pairs").options["vocabulary_size"]

    raise UsageError(
        f"{', '.join(recipe.data.folders)}: no finished pairs yet, so the size of the vocabulary is unknown. "
        "Give it with --set model.vocab_size=30522."
    )


def micro_batch_tokens(recipe: Recipe, longest: int) -> int:
    """Return the tokens of the largest micro-batch, if the longest row has `longest` tokens.

    Raises ValueError for batch.micro_tokens "auto", whose value depends on the device.
    """
    batch = recipe.batch
    if batch.micro_batch:
        return batch.micro_batch * longest
    if not isinstance(batch.micro_tokens, int):
        raise ValueError("batch.micro_tokens has no number yet.")
    return batch.micro_tokens
