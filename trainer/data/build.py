"""Builds a rank's stream of batches from a recipe, and checks first that data, recipe and model fit together."""

from __future__ import annotations

from dataclasses import replace

import torch

from schemas.errors import DataError, UsageError
from schemas.masking import Masking
from schemas.vocabulary import read_vocabulary
from trainer.config.schema import Recipe
from trainer.data.dataset import PairFolder
from trainer.data.fit import check_rows
from trainer.data.loader import CPU, BatchFormat, MaskingSchedule, Stream
from trainer.data.mixture import build_sources
from trainer.data.padding import BatchShape, shape_for
from trainer.data.rank_share import RankShare
from trainer.logs import logger
from trainer.models.families import FAMILIES

BYTES_PER_GIGABYTE = 10**9


def open_folders(recipe: Recipe) -> list[PairFolder]:
    """Open the folders of data.pairs, and check them against the recipe's vocabulary and model.

    Raises UsageError if data.pairs names no folder, and DataError if a folder does not fit.
    """
    folders = [open_folder(recipe, folder) for folder in recipe.data.folders]
    if not folders:
        raise UsageError("data.pairs names no folder. Give one that `clozeline pairs` wrote.")

    if recipe.data.vocab is not None:
        check_data_vocabulary(folders[0], recipe.data.vocab)
    for folder in folders:
        check_rows(recipe, folder.manifest, folder.folder)
    warn_of_mixed_labels(folders)
    return folders


def warn_of_mixed_labels(folders: list[PairFolder]) -> None:
    """Log a warning if the pair labels of two folders mean different things."""
    objectives = {folder.manifest.options["objective"]: folder.folder for folder in folders}
    if {"nsp", "sop"} <= set(objectives):
        logger.warning(
            "%s has pairs for nsp and %s for sop: one head learns that label 1 means a random second segment and that "
            "it means swapped ones. Build both with the same --objective, unless that is meant.",
            objectives["nsp"],
            objectives["sop"],
        )


def open_folder(recipe: Recipe, folder: str) -> PairFolder:
    """Open a folder of pairs as a run of this recipe reads it: through the recipe's cache, and once per node."""
    cache_bytes = int(recipe.data.cache_gigabytes * BYTES_PER_GIGABYTE)
    return PairFolder(folder, recipe.data.cache, cache_bytes, run=recipe.run.output)


def check_data_vocabulary(folder: PairFolder, path: str) -> None:
    """Raise DataError if the folder was built with another vocabulary than the one at `path`."""
    expected = read_vocabulary(path)
    if expected.fingerprint != folder.vocabulary.fingerprint:
        raise DataError(
            f"{folder.folder} was built with vocabulary {folder.vocabulary.fingerprint} ({folder.vocabulary.size} "
            f"tokens), but data.vocab {path} is {expected.fingerprint} ({expected.size} tokens). "
            "Rebuild the pairs with it, or remove data.vocab."
        )


def build_stream(recipe: Recipe, folders: list[PairFolder], share: RankShare, device: torch.device = CPU) -> Stream:
    """Return the stream of one rank, with its batches on `device`.

    Raises UsageError or DataError if folders, weights and batch do not fit together.
    """
    by_tokens = recipe.batch.global_tokens is not None
    sources = build_sources(folders, recipe.data.weights, recipe.run.seed, by_tokens)
    check_size(folders, recipe, share)

    section = recipe.masking
    traits = FAMILIES[recipe.model.family]
    masking = Masking(section.kind, section.prob, section.max_predictions, shown_shares(section.replacement))
    schedule = MaskingSchedule(
        masking, section.stored, section.final_prob, recipe.run.max_steps, permuted=traits.two_streams
    )
    is_causal = recipe.objective.kind == "clm"
    batch_format = BatchFormat(shape_of(folders, recipe, share), device, is_causal, needs_draws(recipe))
    return Stream(sources, share, schedule, recipe.run.seed, batch_format)


def shown_shares(replacement: str) -> tuple[float, float]:
    """Return masking.replacement as `Masking.shown`: the shares of masked tokens shown as [MASK] and unchanged.

    Example: `shown_shares("80/10/10")` -> `(0.8, 0.1)`.
    """
    masked, kept, _random = (int(percent) / 100 for percent in replacement.split("/"))
    return masked, kept


def needs_draws(recipe: Recipe) -> bool:
    """Return whether the model draws replacements of masked tokens."""
    return FAMILIES[recipe.model.family].replaced_tokens


def check_size(folders: list[PairFolder], recipe: Recipe, share: RankShare) -> None:
    """Raise DataError if all folders together do not fill one global batch, so rows would repeat within a step."""
    unit = "rows" if recipe.batch.global_tokens is None else "tokens"
    available = sum(folder.manifest.totals[unit] for folder in folders)
    if available < share.size:
        raise DataError(
            f"{', '.join(folder.folder for folder in folders)}: {available:,} {unit}, fewer than one global batch of "
            f"{share.size:,}. Use more text, --dupe_factor, or a smaller batch."
        )


def shape_of(folders: list[PairFolder], recipe: Recipe, share: RankShare) -> BatchShape | None:
    """Return the shape to which all micro-batches are padded, or None if batch.shape is `exact`."""
    if recipe.batch.shape == "exact":
        return None
    if share.ramp is None:
        return shape_of_size(folders, recipe, share)

    # One shape for all sizes of a ramp: the largest.
    shares = [replace(share, size=size, micro_batches=micro_batches) for size, micro_batches in share.ramp.distinct]
    shapes = [shape_of_size(folders, recipe, one) for one in (share, *shares)]
    largest = max(shapes, key=lambda shape: shape.tokens)
    return replace(largest, most_tokens=max(shape.most_tokens or 0 for shape in shapes))


def shape_of_size(folders: list[PairFolder], recipe: Recipe, share: RankShare) -> BatchShape:
    """Return the shape for global batches of the share's size."""
    batch = recipe.batch
    longest = max(folder.max_length for folder in folders)
    tokens = sum(folder.manifest.totals["tokens"] for folder in folders)
    rows = sum(folder.manifest.totals["rows"] for folder in folders)

    if batch.global_batch is not None:
        # Few rows are as long as the longest, so nearly all batches fit into a smaller shape.
        most_tokens = -(-share.size // share.micro_batches_per_step) * longest
        usual_tokens = min(most_tokens, usual_row_tokens(folders, share) + longest)
    else:
        # A global batch exceeds its size by less than one row of each folder, and no two micro-batches differ by more
        # than one row.
        most_tokens_per_step = share.size + sum(folder.max_length for folder in folders)
        most_tokens = -(-most_tokens_per_step // share.micro_batches_per_step) + longest
        usual_tokens = most_tokens

    shape = shape_for(usual_tokens, tokens / rows, longest, recipe.predicted_share, padded=batch.shape == "padded")
    return replace(shape, most_tokens=max(most_tokens, shape.tokens))


def usual_row_tokens(folders: list[PairFolder], share: RankShare) -> int:
    """Return a number of tokens that a micro-batch rarely exceeds by more than one row.

    It is the micro-batch's part of a global batch of mean size plus four standard deviations. Row lengths are taken
    from the folders' manifests.
    """
    rows = 0
    tokens = 0
    squares = 0
    for folder in folders:
        for length, rows_of_length in enumerate(folder.manifest.statistics["lengths"]):
            rows += rows_of_length
            tokens += length * rows_of_length
            squares += length * length * rows_of_length

    mean = tokens / rows
    deviation = max(0.0, squares / rows - mean**2) ** 0.5
    tokens_of_step = share.size * mean + 4 * share.size**0.5 * deviation
    return int(tokens_of_step / share.micro_batches_per_step)
