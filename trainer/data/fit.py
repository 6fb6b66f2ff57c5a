"""Checks that a recipe's model, masks and batches fit a folder of pairs, by its manifest and vocabulary alone.

`--describe` makes the same checks as training without opening a shard, so nothing here may need Arrow or DeepSpeed.
"""

from __future__ import annotations

from schemas.errors import DataError, UsageError
from schemas.manifest import Manifest
from schemas.vocabulary import Vocabulary
from trainer.config.schema import Recipe


def check_model_vocabulary(recipe: Recipe, vocabulary: Vocabulary, folder: str) -> None:
    """Raise DataError if the pairs' vocabulary does not fit the recipe's model."""
    vocab_size = recipe.model.vocab_size
    # The rows of a folder, some of which may be spare, are compared when its weights are read.
    begins_with_folder = recipe.model.init_from is not None or recipe.model.tile_from is not None
    if vocab_size is not None and vocab_size != vocabulary.size and not begins_with_folder:
        raise DataError(
            f"{folder} has a vocabulary of {vocabulary.size} tokens, but model.vocab_size is {vocab_size}. "
            f"Use --set model.vocab_size={vocabulary.size}, or pairs with a vocabulary of {vocab_size}."
        )

    pad_id = vocabulary.special_id("pad")
    if recipe.model.family == "roberta" and pad_id != 1:
        advice = "Choose another model.family."
        if not begins_with_folder:
            advice = (
                "Build pairs with a vocabulary of `clozeline vocab --model bytebpe`, or choose another model.family."
            )
        raise DataError(
            f"{folder} has a vocabulary whose padding token is id {pad_id}, expected 1: roberta counts positions from "
            f"that id, so it cannot be trained with another one. {advice}"
        )


def check_rows(recipe: Recipe, manifest: Manifest, folder: str) -> None:
    """Check that a folder's rows are what the model, the masks and the batches need.

    Raises DataError, or UsageError if batch.micro_tokens is too small for them.
    """
    longest = int(manifest.options["max_length"])
    if longest > recipe.model.max_position_embeddings:
        raise DataError(
            f"{folder} has rows of up to {longest} tokens, but model.max_position_embeddings is "
            f"{recipe.model.max_position_embeddings}. Raise it, or rebuild the pairs with a smaller --max_length."
        )

    if recipe.masking.stored and not manifest.options.get("static_masks"):
        raise DataError(
            f"{folder} holds no masks for masking.stored. Rebuild it with --static_masks K, or remove masking.stored."
        )

    batch = recipe.batch
    if batch.global_tokens and isinstance(batch.micro_tokens, int) and batch.micro_tokens < 4 * longest:
        raise UsageError(
            f"batch.micro_tokens {batch.micro_tokens} is too few for rows of up to {longest} tokens. "
            f"Give at least {4 * longest}."
        )
