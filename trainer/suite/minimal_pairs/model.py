"""Opens a masked language model for minimal pairs, or explains why a folder cannot be used."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import AutoModelForMaskedLM, AutoTokenizer

from schemas.errors import UsageError
from trainer.finetune.model import read_config
from trainer.suite.job_command import open_model

WHY_NOT = {
    "xlnet": "XLNet predicts tokens in a random order and reads no mask token in their place, so the likelihood of a "
    "sentence with single tokens masked is not defined for it",
    "electra": "a replaced-token detector tells which tokens were replaced and gives none of them a probability",
}
"""Why some families cannot be used, by model_type. ELECTRA's generators have the same model_type as discriminators, and
are recognized by their weights."""


def open_masked_lm(folder: str, random_weights: bool) -> tuple[Any, Any]:
    """Return the model, in evaluation mode on the job's device, and its tokenizer.

    Raises UsageError with the reason if the folder holds no masked language model, and DataError for damaged weights.
    """
    config = read_config(folder)
    if type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        raise _refusal(folder, config)

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not tokenizer.is_fast or tokenizer.mask_token_id is None:
        raise UsageError(f"{folder} has no mask token, or no tokenizer.json. Minimal pairs need both.")

    model, missing = open_model(AutoModelForMaskedLM, folder, random_weights)
    # A head that is missing from the folder would have random weights, so every score would be random.
    if missing:
        raise _refusal(folder, config)
    return model, tokenizer


def _refusal(folder: str, config: Any) -> UsageError:
    no_head = "it has no head that predicts masked tokens. Bare encoders and fine-tuned folders have none"
    reason = WHY_NOT.get(config.model_type, no_head)
    generator = f" Its generator does: {folder}/generator." if config.model_type == "electra" else ""
    return UsageError(f"{folder} cannot judge minimal pairs: {reason}.{generator}")
