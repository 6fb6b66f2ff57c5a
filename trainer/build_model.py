"""Builds the model that a run starts from: fresh weights, or those of a Hugging Face folder.

Also checks that the pairs fit the model, and finds what the recipe asks for and will not get.
"""

from __future__ import annotations

import torch
from deepspeed.accelerator import get_accelerator

from schemas.errors import DataError, UsageError
from schemas.vocabulary import Vocabulary
from trainer.checkpoint.layout import steps_saved
from trainer.config.schema import Recipe
from trainer.data.dataset import PairFolder
from trainer.describe import micro_batch_tokens
from trainer.distributed.collectives import run_on_rank_0
from trainer.logs import logger
from trainer.models.families import encoder_shape
from trainer.models.flops import flops_per_token, peak_flops
from trainer.models.pretraining import PretrainingModel, build_model
from trainer.models.warm_start import warm_start

MAX_BF16_TOKENS_ON_CPU = 8192
"""Tokens of a micro-batch; see `check_micro_batch`."""


def build_initial_model(recipe: Recipe, folders: list[PairFolder]) -> PretrainingModel:
    """Build the model of the run's recipe on the CPU.

    model.init_from is read only if there is no checkpoint to resume from. A collective call.

    Raises DataError if the pairs' vocabulary does not fit, UsageError if bf16 on a CPU cannot
    train its micro-batches, and either as `warm_start` does.
    """
    vocabulary = folders[0].vocabulary
    check_model_vocabulary(recipe, vocabulary, folders[0].folder)
    check_micro_batch(recipe, max(folder.max_length for folder in folders))

    model = build_model(recipe.model, vocabulary.size, recipe.run.seed)
    for note in notes(recipe, folders, model):
        logger.info(note)

    source = recipe.model.init_from
    if source is not None and not run_on_rank_0(lambda: steps_saved(recipe.run.folder)):
        initialized = warm_start(model, source, vocabulary)
        missing = f"; it lacks {', '.join(initialized)}, which start from random weights" if initialized else ""
        logger.info("Beginning with the weights of %s%s.", source, missing)

    model.encoder.recompute = recipe.engine.recompute
    if recipe.engine.compile:
        model.compile_parts()
    return model


def check_micro_batch(recipe: Recipe, longest: int) -> None:
    """Raise UsageError if bf16 on a CPU would make the gradient of a large micro-batch wrong.

    torch's CPU kernels sum the gradients of layer norms, biases and embeddings over the tokens in bfloat16. For a
    small BERT the gradient is off by 1.6 % at 3,072 tokens, 3.5 % at 12,288 and 21 % at 49,152. GPUs sum in float32.
    """
    if recipe.engine.precision != "bf16" or device_name() != "cpu":
        return

    tokens = micro_batch_tokens(recipe, longest)
    if tokens > MAX_BF16_TOKENS_ON_CPU:
        raise UsageError(
            f"engine.precision bf16 on a CPU: a micro-batch of {tokens:,} tokens is more than the "
            f"{MAX_BF16_TOKENS_ON_CPU:,} up to which torch's gradients are accurate. Use engine.precision fp32, or a "
            "smaller batch.micro_batch."
        )


def check_model_vocabulary(recipe: Recipe, vocabulary: Vocabulary, folder: str) -> None:
    """Raise DataError if the pairs' vocabulary does not fit the recipe's model."""
    vocab_size = recipe.model.vocab_size
    if vocab_size is not None and vocab_size != vocabulary.size:
        raise DataError(
            f"{folder} has a vocabulary of {vocabulary.size} tokens, but model.vocab_size is {vocab_size}. "
            f"Use --set model.vocab_size={vocabulary.size}, or pairs with a vocabulary of {vocab_size}."
        )

    if recipe.model.family == "roberta" and vocabulary.special_id("pad") != 1:
        raise DataError(
            f'{folder} has a {vocabulary.model} vocabulary; "roberta" counts positions from the id of <pad>, 1, and '
            "needs pairs with a bytebpe vocabulary. Rebuild them with one, or choose another model.family."
        )


def notes(recipe: Recipe, folders: list[PairFolder], model: PretrainingModel) -> list[str]:
    """Return what the pairs offer and the model does not use, one sentence each."""
    labeled = [folder.folder for folder in folders if folder.manifest.options.get("objective") in ("nsp", "sop")]
    if not labeled or model.pair_head is not None:
        return []
    return [f"The pair labels of {', '.join(labeled)} are not predicted: {recipe.model.family} has no pair head."]


def tokens_at_peak(recipe: Recipe, folders: list[PairFolder], world_size: int) -> float | None:
    """Return the tokens per second of a phase if every device computed at its peak.

    None where no peak is known: on CPUs, on unknown GPUs, and in fp32.
    """
    if device_name() != "cuda" or recipe.engine.precision == "fp32":
        return None

    peak = peak_flops(torch.cuda.get_device_name())
    if peak is None:
        return None

    shape = encoder_shape(recipe.model, folders[0].vocabulary.size)
    return world_size * peak / flops_per_token(shape, mean_seen(folders), recipe.masking.prob)


def mean_seen(folders: list[PairFolder]) -> float:
    """Return how many tokens a token attends to on average.

    Each of a row's n tokens attends to n, so this is the sum of squared lengths divided by the sum of lengths.
    """
    tokens = 0
    squares = 0
    for folder in folders:
        rows_by_length = folder.manifest.statistics["lengths"]
        for length, rows in enumerate(rows_by_length):
            tokens += length * rows
            squares += length * length * rows

    return squares / tokens


def device_name() -> str:
    """Return the kind of device that this process trains on, such as "cpu" or "cuda"."""
    return get_accelerator().device_name()  # type: ignore[union-attr]
