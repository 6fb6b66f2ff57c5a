"""Builds a run's model and its initial weights: random, those of a Hugging Face folder, or tiles of such weights.

Also checks that the pairs fit the model, and reports what they offer but the model will not use.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from deepspeed import DeepSpeedEngine
from numpy.typing import NDArray
from torch import Tensor

from schemas.errors import UsageError
from schemas.vocabulary import Vocabulary
from trainer.attention_choice import choose_attention
from trainer.config.schema import Recipe
from trainer.data.counts import WordFrequencies, statistics_for, unigram_counts
from trainer.data.fit import LABELED, check_model_vocabulary, missing_pair_objective
from trainer.data.folder import PairFolder
from trainer.distributed.collectives import run_on_rank_0
from trainer.distributed.threads import device_kind
from trainer.engine import DTYPES, send_weights
from trainer.logs import logger
from trainer.models.attention import choose_flash, kernel_for
from trainer.models.encoder import Encoder
from trainer.models.families import GENERATOR_FOLDER
from trainer.models.hf_load import warm_start_model
from trainer.models.pretraining import MaskedLMHead, PretrainingModel
from trainer.models.starting_weights import (
    add_identity_to_head,
    build_model,
    drawn_weights,
    empty_model,
    ignored_keys,
    needs_statistics,
    with_starting_weights,
)
from trainer.models.tiling import tile_model
from trainer.models.xlnet import TwoStreamEncoder


def build_initial_model(recipe: Recipe, folders: list[PairFolder], attention: str | None = None) -> PretrainingModel:
    """Build the model of a phase's recipe without weights, on the meta device. A collective call.

    attention: what the steps before used, which is used again (attention_choice.py); None if there are none.

    Raises DataError if the pairs' vocabulary does not fit.
    """
    vocabulary = folders[0].vocabulary
    check_model_vocabulary(recipe, vocabulary, folders[0].folder)

    model = empty_model(recipe.model, vocabulary.size, vocabulary.special_id("mask"))
    for note in notes(recipe, folders, model):
        logger.info(note)

    for encoder in model.encoders():
        encoder.recompute = recipe.engine.recompute
        if device_kind() == "cuda":
            log_attention(encoder, recipe.engine.precision)
    if device_kind() == "cuda":
        choose_attention(model, recipe, folders, attention)
    if compiles(recipe, device_kind()):
        check_compiler(device_kind())
        model.compile_parts()
    return model


def fill_in_initial_weights(engine: DeepSpeedEngine, recipe: Recipe, folders: list[PairFolder]) -> None:
    """Load a run's initial weights into its engine. Rank 0 draws or reads them. A collective call.

    Raises DataError, StorageError or UsageError on every rank as `initial_weights` does.
    """
    weights: list[Iterator[tuple[str, Tensor]]] = []
    # run_on_rank_0 sends what it returns to all ranks. An iterator cannot be sent, so it is kept in a list.
    run_on_rank_0(lambda: weights.append(initial_weights(recipe, folders)))
    send_weights(engine, weights[0] if weights else None)


def initial_weights(recipe: Recipe, folders: list[PairFolder]) -> Iterator[tuple[str, Tensor]]:
    """Return an iterator over the name and the initial float32 values of every parameter.

    Random weights are drawn lazily, one tensor at a time. Those of model.init_from or model.tile_from are read and
    checked right away, as `warm_start` and `tile_model` do, which takes the memory of the whole model. Word vectors
    are computed right away, too, and take some nine times the memory of the co-occurrences they come from meanwhile.
    """
    vocabulary = folders[0].vocabulary
    if recipe.model.init_from is None and recipe.model.tile_from is None:
        shapes = empty_model(recipe.model, vocabulary.size, vocabulary.special_id("mask"))
        drawn = drawn_weights(shapes, shapes.shape, recipe.model.initializer_range, recipe.run.seed)
        text = statistics_for(recipe, folders) if needs_statistics(recipe.model) else None
        return with_starting_weights(drawn, shapes.shape, recipe, text)

    model = build_model(recipe.model, vocabulary.size, recipe.run.seed, vocabulary.special_id("mask"))
    fill_from_folder(model, recipe, folders)
    return model.named_parameters()


def fill_from_folder(model: PretrainingModel, recipe: Recipe, folders: list[PairFolder]) -> None:
    """Fill a model with the weights of model.init_from, or with tiles of those of model.tile_from, and log it.

    A masked-LM head with a bias that the folder lacks begins as `begin_head` says.
    """
    vocabulary = folders[0].vocabulary
    if recipe.model.tile_from is not None:
        source = recipe.model.tile_from
        initialized = tile_model(model, recipe.model, source, vocabulary)
        begun_with = f"tiles of the weights of {source}"
    else:
        source = recipe.model.init_from
        assert source is not None, "one of the two is set"
        initialized = warm_start_model(model, source, vocabulary)
        begun_with = f"the weights of {source}"

    missing = f" They lack {', '.join(initialized)}, which start from random weights" if initialized else ""
    lacks_head = any(head == GENERATOR_FOLDER or head.endswith("mlm_head") for head in initialized)
    if lacks_head and model.mlm_head.bias is not None:
        counts_V = unigram_counts(recipe, folders, begins=True)
        begin_head(model.mlm_head, model.mlm_head.bias, counts_V)
        missing += ", except that masked tokens are first predicted from how frequent they are in data.pairs"
    logger.info("Beginning with %s.%s", begun_with, missing and f"{missing}.")


@torch.no_grad()
def begin_head(head: MaskedLMHead, bias_R: Tensor, counts_V: NDArray[np.int64]) -> None:
    """Let a masked-LM head without trained weights begin with token frequencies, and with the encoder's own vectors.

    bias_R: the head's, with a value for each row of the embeddings. Spare rows begin as tokens that never occur.
    docs/measurements.md compares this start with a drawn head.
    """
    counts_R = np.pad(counts_V, (0, len(bias_R) - len(counts_V)))
    bias_R.copy_(-torch.from_numpy(WordFrequencies(counts_R).losses_V))
    if head.dense is not None:
        add_identity_to_head(head.dense.weight)


def compiles(recipe: Recipe, device: str) -> bool:
    """Return whether to compile the model: engine.compile, where "auto" depends on device, batch shape and stage."""
    if recipe.engine.compile != "auto":
        return recipe.engine.compile
    return device == "cuda" and recipe.batch.shape != "exact" and recipe.engine.zero_stage < 3


def check_compiler(device: str) -> None:
    """Raise UsageError if torch.compile would lack a C++ compiler (on a GPU, a C compiler) or the headers of Python."""
    variable, usual = ("CC", ["gcc", "clang"])
    if device == "cpu":
        variable, usual = ("CXX", ["clang++" if sys.platform == "darwin" else "g++"])
    programs = [os.environ[variable]] if variable in os.environ else usual
    header = Path(sysconfig.get_path("include"), "Python.h")

    fault = None if header.exists() else f"{header} does not exist"
    if not any(map(shutil.which, programs)):
        fault = f"{' or '.join(programs)} is not on PATH"
    if fault:
        raise UsageError(
            f"engine.compile needs a compiler and Python's headers, and {fault}. Install them (on Debian and Ubuntu: "
            "apt-get install g++ python3-dev), or give --set engine.compile=false."
        )


def log_attention(encoder: Encoder | TwoStreamEncoder, precision: str) -> None:
    """Log which attention kernel an encoder uses on this rank's GPU, after choosing the fastest flash attention."""
    if isinstance(encoder, TwoStreamEncoder):
        logger.info("Attention: a padded grid; flash attention does not add relative positions.")
        return

    shape = encoder.shape
    capability = torch.cuda.get_device_capability()
    if kernel_for("cuda", DTYPES[precision], shape.head_size, capability) != "packed":
        logger.info("Attention: a padded grid; flash attention is for 16 bits, on GPUs from A100 on.")
        return

    logger.info("Attention: %s.", choose_flash(shape.attention_probs_dropout_prob))


def warn_of_vocabulary(recipe: Recipe, vocabulary: Vocabulary, folder: str) -> None:
    """Log a warning if XLNet will be trained on pairs whose vocabulary lacks XLNet's special tokens.

    XLNet can train on any pairs, so they are accepted, but the export will not have XLNet's tokenizer.
    """
    if recipe.model.family != "xlnet" or vocabulary.is_xlnet:
        return

    logger.warning(
        "%s has a %s vocabulary without XLNet's special tokens, so the export will not have XLNet's tokenizer. For one "
        "that has, rebuild the pairs with a vocabulary of `clozeline vocab --model unigram --special_tokens "
        "xlnet`.",
        folder,
        vocabulary.model,
    )


def notes(recipe: Recipe, folders: list[PairFolder], model: PretrainingModel) -> list[str]:
    """Return one sentence for each thing that the recipe or the pairs offer and the model does not use."""
    sizes = {name: parameter.shape for name, parameter in model.named_parameters()}
    ignored = ignored_keys(recipe.model, model.shape, sizes)
    found = [f"model.{key} changes nothing: {reason}." for key, reason in ignored.items()]

    labeled = [folder.folder for folder in folders if folder.manifest.options.get("objective") in LABELED]
    if labeled and model.pair_head is None:
        found.append(
            f"The pair labels of {', '.join(labeled)} are not predicted: {recipe.model.family} has no pair head."
        )
    elif labeled and recipe.objective.kind == "clm":
        found.append(f"The pair labels of {', '.join(labeled)} are not predicted while objective.kind is clm.")
    missing = missing_pair_objective(recipe, {folder.folder: folder.manifest for folder in folders})
    return [*found, missing] if missing else found
