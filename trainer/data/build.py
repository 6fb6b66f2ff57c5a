"""From a recipe to the stream of one rank: open the folders, check that they fit together, settle the shape."""

from __future__ import annotations

import torch

from schemas.errors import DataError, UsageError
from schemas.masking import Masking
from schemas.vocabulary import read_vocabulary
from trainer.config.schema import Recipe
from trainer.data.dataset import PairFolder
from trainer.data.loader import CPU, MaskingSchedule, RankShare, Stream
from trainer.data.mixture import build_sources
from trainer.data.padding import BatchShape, shape_for


def open_folders(recipe: Recipe) -> list[PairFolder]:
    """The recipe's pairs, checked against its vocabulary and its model. Raises DataError."""
    most = int(recipe.data.cache_gigabytes * 10**9)
    folders = [PairFolder(folder, recipe.data.cache, most) for folder in recipe.data.folders]
    if not folders:
        raise UsageError("data.pairs names no folder. Give one that `python -m pipeline pairs` wrote.")
    if recipe.data.vocab is not None:
        check_data_vocabulary(folders[0], recipe.data.vocab)
    for folder in folders:
        check_folder(folder, recipe)
    return folders


def check_data_vocabulary(folder: PairFolder, path: str) -> None:
    wanted = read_vocabulary(path)
    if wanted.fingerprint != folder.vocabulary.fingerprint:
        raise DataError(
            f"{folder.folder} was made with vocabulary {folder.vocabulary.fingerprint} ({folder.vocabulary.size} "
            f"tokens), but data.vocab {path} is {wanted.fingerprint} ({wanted.size} tokens). "
            "Rebuild the pairs with it, or leave data.vocab out."
        )


def check_folder(folder: PairFolder, recipe: Recipe) -> None:
    """What the model or the masks need and the folder has not. Raises DataError."""
    if folder.max_length > recipe.model.max_position_embeddings:
        raise DataError(
            f"{folder.folder} has rows of up to {folder.max_length} tokens, but model.max_position_embeddings is "
            f"{recipe.model.max_position_embeddings}. Raise it, or rebuild the pairs with a smaller --max_length."
        )
    if recipe.masking.stored and not folder.static_masks:
        raise DataError(
            f"{folder.folder} holds no masks for masking.stored. Rebuild it with --static_masks K, or leave that out."
        )
    if recipe.batch.micro_tokens and recipe.batch.micro_tokens < 4 * folder.max_length:
        raise UsageError(
            f"batch.micro_tokens {recipe.batch.micro_tokens} is too few for rows of up to {folder.max_length} tokens. "
            f"Give at least {4 * folder.max_length}."
        )


def build_stream(recipe: Recipe, folders: list[PairFolder], share: RankShare, device: torch.device = CPU) -> Stream:
    """The stream of one rank, its batches on `device`.

    Raises UsageError or DataError when folders, weights and batch do not fit together.
    """
    seed, by_tokens = recipe.run.seed, recipe.batch.global_tokens is not None
    sources = build_sources(folders, recipe.data.weights, seed, by_tokens)
    check_size(folders, recipe, share)
    masking = Masking(recipe.masking.kind, recipe.masking.prob, recipe.masking.max_predictions)
    drawing = MaskingSchedule(masking, recipe.masking.stored, recipe.masking.final_prob, recipe.run.max_steps)
    return Stream(sources, share, drawing, seed, shape_of(folders, recipe, share), device)


def check_size(folders: list[PairFolder], recipe: Recipe, share: RankShare) -> None:
    """Raises DataError when all folders together do not fill one global batch: rows would recur within a step."""
    unit = "rows" if recipe.batch.global_tokens is None else "tokens"
    found = sum(folder.manifest.totals[unit] for folder in folders)
    if found < share.size:
        raise DataError(
            f"{', '.join(folder.folder for folder in folders)}: {found:,} {unit}, fewer than one global batch of "
            f"{share.size:,}. Use more text, --dupe_factor, or a smaller batch."
        )


def shape_of(folders: list[PairFolder], recipe: Recipe, share: RankShare) -> BatchShape | None:
    """The one shape of all micro-batches, None for `exact`."""
    batch, longest = recipe.batch, max(folder.max_length for folder in folders)
    if batch.shape == "exact":
        return None
    totals = [folder.manifest.totals for folder in folders]
    mean = sum(total["tokens"] for total in totals) / sum(total["rows"] for total in totals)
    prob = max(recipe.masking.prob, recipe.masking.final_prob or 0.0)
    if batch.micro_batch is not None:
        return shape_for(batch.micro_batch * longest, mean, longest, prob, batch.shape == "padded")
    # A batch exceeds its size by less than a row of each folder, and no two micro-batches differ by more than a row.
    most_tokens = share.size + sum(folder.max_length for folder in folders)
    most = -(-most_tokens // share.micro_batches_per_step) + longest
    return shape_for(most, mean, longest, prob, batch.shape == "padded")
