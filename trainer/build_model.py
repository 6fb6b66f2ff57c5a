"""The model that a run begins with: fresh weights, or those of a Hugging Face folder, and what its user should know."""

from __future__ import annotations

import torch
from deepspeed.accelerator import get_accelerator

from schemas.errors import DataError, UsageError
from schemas.vocabulary import Vocabulary
from trainer.checkpoint import layout as checkpoints
from trainer.config.schema import Recipe
from trainer.data.dataset import PairFolder
from trainer.models.families import encoder_shape
from trainer.models.flops import flops_per_token, peak_flops
from trainer.models.pretraining import PretrainingModel, build_model
from trainer.models.warm_start import warm_start

MOST_TOKENS_OF_BF16_ON_CPU = 8192


def build_initial_model(recipe: Recipe, folders: list[PairFolder], rank: int) -> PretrainingModel:
    """A model as [model] describes it; model.init_from is read only when there is no checkpoint to go on from.

    Raises DataError when its vocabulary is not the pairs', UsageError or DataError as `warm_start` does.
    """
    vocabulary = folders[0].vocabulary
    check_model_vocabulary(recipe, vocabulary, folders[0].folder)
    check_micro_batch(recipe, max(folder.max_length for folder in folders))
    model = build_model(recipe.model, vocabulary.size, recipe.run.seed)
    told = notes(recipe, folders, model)
    source = recipe.model.init_from
    if source is not None and not checkpoints.steps_saved(recipe.run.folder):
        fresh = warm_start(model, source, vocabulary)
        absent = f"; it lacks {', '.join(fresh)}, which start afresh" if fresh else ""
        told.append(f"Beginning with the weights of {source}{absent}.")
    model.encoder.recompute = recipe.engine.recompute
    if recipe.engine.compile:
        model.encoder.compile_layers()
    if rank == 0:
        print(*told, sep="\n", end="\n" if told else "", flush=True)
    return model


def check_micro_batch(recipe: Recipe, longest: int) -> None:
    """Raise UsageError when bf16 on a CPU would spoil the gradient of a large micro-batch.

    torch's CPU kernels add up the gradients of layer norms, biases and embeddings over the tokens in bfloat16. Of a
    small BERT the gradient is 1.6 % off at 3,072 tokens, 3.5 % at 12,288 and 21 % at 49,152. GPUs add up in float32.
    """
    if get_accelerator().device_name() != "cpu" or recipe.engine.precision != "bf16":  # type: ignore[union-attr]
        return
    tokens = recipe.batch.micro_tokens or (recipe.batch.micro_batch or 0) * longest
    if tokens > MOST_TOKENS_OF_BF16_ON_CPU:
        raise UsageError(
            f"engine.precision bf16 on a CPU: a micro-batch of {tokens:,} tokens is more than the "
            f"{MOST_TOKENS_OF_BF16_ON_CPU:,} whose gradient it computes well. Use engine.precision fp32, or a smaller "
            "batch.micro_batch."
        )


def check_model_vocabulary(recipe: Recipe, vocabulary: Vocabulary, folder: str) -> None:
    """Raises DataError when the pairs' vocabulary is not what the recipe's model takes."""
    wanted, family = recipe.model.vocab_size, recipe.model.family
    if wanted is not None and wanted != vocabulary.size:
        raise DataError(
            f"{folder} has a vocabulary of {vocabulary.size} tokens, but model.vocab_size is {wanted}. "
            f"Use --set model.vocab_size={vocabulary.size}, or pairs with a vocabulary of {wanted}."
        )
    if family == "roberta" and vocabulary.special_id("pad") != 1:
        raise DataError(
            f'{folder} has a {vocabulary.model} vocabulary; "roberta" counts positions from the id of <pad>, 1, and '
            "needs pairs with a bytebpe vocabulary. Rebuild them with one, or choose another model.family."
        )


def notes(recipe: Recipe, folders: list[PairFolder], model: PretrainingModel) -> list[str]:
    """What the recipe or the pairs ask for and will not get, a sentence each."""
    told = []
    labeled = [folder.folder for folder in folders if folder.manifest.options.get("objective") in ("nsp", "sop")]
    if labeled and model.pair_head is None:
        told.append(
            f"The pair labels of {', '.join(labeled)} are not predicted: {recipe.model.family} has no pair head."
        )
    return told


def tokens_at_peak(recipe: Recipe, folders: list[PairFolder], world_size: int) -> float | None:
    """Tokens a second if every device computed at its peak; None where none is known: on CPU, and in fp32."""
    if get_accelerator().device_name() != "cuda" or recipe.engine.precision == "fp32":  # type: ignore[union-attr]
        return None
    peak = peak_flops(torch.cuda.get_device_name())
    shape = encoder_shape(recipe.model, folders[0].vocabulary.size)
    return peak and world_size * peak / flops_per_token(shape, mean_seen(folders), recipe.masking.prob)


def mean_seen(folders: list[PairFolder]) -> float:
    """How many tokens a token looks at: the sum of the rows' squared lengths over the sum of their lengths."""
    tokens, squares = 0, 0
    for folder in folders:
        rows_by_length = folder.manifest.statistics["lengths"]
        tokens += sum(length * rows for length, rows in enumerate(rows_by_length))
        squares += sum(length * length * rows for length, rows in enumerate(rows_by_length))
    return squares / tokens
