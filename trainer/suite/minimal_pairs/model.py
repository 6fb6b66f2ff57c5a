"""Opens a masked language model for minimal pairs, or explains why a folder cannot be used."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import AutoModelForMaskedLM, AutoTokenizer

from schemas.errors import UsageError
from trainer.finetune.opening import read_config
from trainer.suite.job_command import open_model
from trainer.suite.minimal_pairs.refusals import refusal_of


def open_masked_lm(folder: str, random_weights: bool) -> tuple[Any, Any]:
    """Return the model, in evaluation mode on the job's device, and its tokenizer.

    Raises UsageError with the reason if the folder holds no masked language model, and DataError for damaged weights.
    """
    config = read_config(folder)
    if type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        raise UsageError(refusal_of(folder, config.model_type))

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not tokenizer.is_fast or tokenizer.mask_token_id is None:
        raise UsageError(f"{folder} has no mask token, or no tokenizer.json. Minimal pairs need both.")

    model, missing = open_model(AutoModelForMaskedLM, folder, random_weights)
    # A head that is missing from the folder would have random weights, so every score would be random.
    if missing:
        raise UsageError(refusal_of(folder, config.model_type))
    return model, tokenizer
