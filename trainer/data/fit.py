"""Whether pairs are for the model of a recipe, as their manifests and vocabularies tell: what needs no torch."""

from __future__ import annotations

from schemas.errors import DataError, UsageError
from schemas.manifest import Manifest
from schemas.vocabulary import Vocabulary
from trainer.config.schema import Recipe
from trainer.models.families import pair_objective

LABELED = {"nsp", "sop"}
"""The objectives whose rows have pair labels."""


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
            f"{recipe.model.max_position_embeddings}. Rebuild the pairs with a smaller --max_length"
            f"{'' if recipe.model.init_from else ', or raise it'}."
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


def missing_pair_objective(recipe: Recipe, manifests: dict[str, Manifest]) -> str:
    """Return a sentence if the model has a head for pair labels and no folder has any; empty otherwise.

    manifests: of all folders of data.pairs, by path.
    """
    wanted = pair_objective(recipe)
    objectives = {folder: manifest.options["objective"] for folder, manifest in manifests.items()}
    if not wanted or not objectives or not LABELED.isdisjoint(objectives.values()):
        return ""
    have = " and ".join(f"{folder} has {objective}" for folder, objective in objectives.items())
    return (
        f"{have}, so no pair objective is trained: {wanted.upper()}, which {recipe.model.family} is made for, needs "
        f"pairs of --objective {wanted}."
    )
