"""Chooses the kernel of attention with dropout, and within windows, on GPUs: the Triton kernel, or torch's.

The Triton kernel (models/attention_triton.py) is for short rows with dropout: BERT's, RoBERTa's, ALBERT's or ELECTRA's;
and for the layers of ModernBERT and its descendants in which a token sees only those near it. Each rank compares it
with plain attention in float32 on rows as long as the run's own, and it is used only if all ranks find it right and
rank 0 also finds it at least MIN_SPEEDUP times as fast as torch's flash attention. With engine.deterministic no clock
decides, so it is used if it is right. The environment variable CLOZELINE_TRITON_ATTENTION=0 turns it off.

With dropout, the two drop other weights. So checkpoints record the kernel, a resume uses the recorded one, and the next
choice is made where the next phase begins. A run that starts again without a checkpoint chooses again.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
from typing import NamedTuple

import numpy as np
import torch

from schemas.errors import UsageError
from trainer.checkpoint.format import FoundCheckpoint
from trainer.config.phases import Phase
from trainer.config.schema import Recipe
from trainer.data.folder import PairFolder, moments, rows_by_length
from trainer.distributed.collectives import run_on_all_ranks
from trainer.distributed.process_group import device_of_rank
from trainer.engine import DTYPES
from trainer.logs import logger
from trainer.models.attention import AttentionRule, kernel_for
from trainer.models.attention_trial import compare
from trainer.models.encoder import Attention, Encoder
from trainer.models.pretraining import PretrainingModel
from trainer.models.shape import EncoderShape

FLASH = "FlashAttention-2"
TRITON = "Triton"
"""What a checkpoint records. The first stands for any flash attention of torch."""

TORCHS = "torch's flash attention"

SWITCH = "CLOZELINE_TRITON_ATTENTION"

MAX_LENGTH = 512
"""Tokens of the longest row with dropout. With longer ones, the kernel was not compared."""

HEAD_SIZES = (32, 64, 128)

MIN_SPEEDUP = 1.05
"""Less is not worth another kernel, and would be chosen in one trial and not in the next."""

TRIAL_TOKENS = 32_768
"""Tokens of the timed rows, half of what a large GPU computes at once. Their projections take 1.5 GB in BERT-large."""

OTHER_WEIGHTS = (
    "The steps before used the Triton kernel for attention with dropout, and %s. Flash attention drops other weights, "
    "so the losses to come are not those of a run that was not interrupted."
)


NO_FLASH = "flash attention does not work here"


class Trial(NamedTuple):
    """What a rank found. fault: why the Triton kernel cannot be used here, None if it can. speedup: over flash."""

    fault: str | None
    speedup: float = 0.0


def choose_attention(model: PretrainingModel, recipe: Recipe, folders: list[PairFolder], recorded: str | None) -> None:
    """Let the model use the Triton kernel if it is right and faster, and log what is used. A collective call.

    recorded: what the checkpoint that the run resumes from was trained with, which is used again; None for a choice.
    """
    longest = max(folder.max_length for folder in folders)
    rules = {rule: size for rule, size in rules_of(model).items() if rule.window is not None or longest <= MAX_LENGTH}
    is_off = os.environ.get(SWITCH) == "0"
    if not rules or recipe.engine.precision == "fp32" or recipe.objective.kind == "clm" or is_off:
        if recorded == TRITON and has_dropout(model):
            logger.warning(OTHER_WEIGHTS, f"the recipe or {SWITCH} has changed since")
        return

    has_windows = all(rule.window is not None for rule in rules)
    what = "Attention within windows" if has_windows else "Attention with dropout"
    dtype = DTYPES[recipe.engine.precision]
    if recorded == FLASH:
        if has_flash(rules, dtype):
            logger.info("%s: %s, as in the steps before.", what, TORCHS)
        return

    lengths = row_lengths(folders, TRIAL_TOKENS)
    trials = run_on_all_ranks(lambda: try_kernel(rules, lengths, longest, dtype))
    fault, speedup = outcome_of(trials, any_speed=recorded == TRITON or recipe.engine.deterministic)
    if fault is not None:
        if fault != NO_FLASH:
            logger.info("%s: %s; not the Triton kernel: %s.", what, TORCHS, fault)
        if recorded == TRITON and has_dropout(model):
            logger.warning(OTHER_WEIGHTS, "it cannot be used here")
        return

    set_triton(model, rules)
    reason = "as in the steps before" if recorded else f"{speedup:.2f} times as fast as {TORCHS} here"
    logger.info("%s: a Triton kernel, %s.", what, reason)


def outcome_of(trials: list[Trial], any_speed: bool) -> Trial:
    """Return what all ranks act on, from what each of them found: the first fault, and the speed on rank 0.

    any_speed: whether the kernel is used however slow it is.
    """
    fault = next((trial.fault for trial in trials if trial.fault is not None), None)
    speedup = trials[0].speedup
    if fault is None and speedup < MIN_SPEEDUP and not any_speed:
        fault = f"it is {speedup:.2f} times as fast here"
    return Trial(fault, speedup)


def has_flash(rules: dict[AttentionRule, int], dtype: torch.dtype) -> bool:
    """Return whether this rank's GPU has flash attention for the heads of these rules."""
    capability = torch.cuda.get_device_capability(device_of_rank())
    return all(kernel_for("cuda", dtype, head_size, capability) == "packed" for head_size in rules.values())


def recorded_attention(phase: Phase, checkpoint: FoundCheckpoint | None) -> str | None:
    """Return the attention kernel of the steps that this phase has made, None if it begins.

    Checkpoints without one were trained with FlashAttention-2.
    """
    if checkpoint is None or checkpoint.state.step == phase.steps_before:
        return None
    return checkpoint.state.attention or FLASH


def attention_of(model: torch.nn.Module) -> str:
    """Return what checkpoints record of a model, or of an engine with one, on a GPU."""
    modules = [module for module in model.modules() if isinstance(module, Attention)]
    return TRITON if any(module.triton for module in modules) else FLASH


def set_triton(model: PretrainingModel, rules: dict[AttentionRule, int]) -> None:
    """Let the layers with these rules use the Triton kernel."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.triton = rules.get(rule_of(module.shape, module.window)) == module.shape.head_size


def has_dropout(model: PretrainingModel) -> bool:
    return any(encoder.shape.attention_probs_dropout_prob > 0 for encoder in model.encoders())


def rule_of(shape: EncoderShape, window: int | None) -> AttentionRule:
    """Return the rule of a layer in training if it uses the Triton kernel."""
    return AttentionRule(shape.num_attention_heads, shape.attention_probs_dropout_prob, window, triton=True)


def rules_of(model: PretrainingModel) -> dict[AttentionRule, int]:
    """Return the rules of the model's layers in training that the Triton kernel can compute, and their head sizes."""
    rules = {}
    for encoder in model.encoders():
        shape = encoder.shape
        shares_keys = shape.num_key_value_heads != shape.num_attention_heads
        if not isinstance(encoder, Encoder) or shares_keys or shape.head_size not in HEAD_SIZES:
            continue
        for layer in range(shape.num_hidden_layers):
            rule = rule_of(shape, shape.window_of(layer))
            if rule.uses_triton and rule.window != 0:
                rules[rule] = shape.head_size
    return rules


def row_lengths(folders: list[PairFolder], tokens: int) -> list[int]:
    """Return lengths with the distribution of all folders' rows, about `tokens` tokens in total, in a random order."""
    counts_L = rows_by_length(folder.manifest for folder in folders)
    rows, all_tokens, _ = moments(counts_L)
    wanted = max(1, round(tokens * rows / all_tokens))

    # The quantiles of all rows at equal distances.
    places = (np.arange(wanted) + 0.5) * rows / wanted
    lengths = np.searchsorted(np.cumsum(counts_L), places, side="right").tolist()
    random.Random(0).shuffle(lengths)
    return lengths


def try_kernel(rules: dict[AttentionRule, int], lengths: list[int], longest: int, dtype: torch.dtype) -> Trial:
    """Compare the Triton kernel with plain and flash attention on this rank's GPU. Leaves no trace.

    Any exception is a fault, since compilers and drivers raise many kinds. Raises UsageError if the GPU is of no use
    after it.
    """
    device = device_of_rank()
    if not has_flash(rules, dtype):
        return Trial(NO_FLASH)
    try:
        importlib.import_module("trainer.models.attention_triton")
        with torch.random.fork_rng([device]):
            trial = Trial(*compare(rules, lengths, longest, torch.empty(0, dtype=dtype, device=device)))
    except ModuleNotFoundError as error:
        trial = Trial(f"the package {error.name} is not installed")
    except Exception as error:
        trial = Trial(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")

    gc.collect()
    try:
        torch.cuda.empty_cache()
        torch.cuda.synchronize(device)
    except RuntimeError:
        broken = (
            f"The trial of the Triton attention kernel broke the GPU's context ({trial.fault}). Start again with the "
            f"environment variable {SWITCH}=0."
        )
        logger.error(broken)  # other ranks may end this one before it can say so
        raise UsageError(broken) from None
    return trial
