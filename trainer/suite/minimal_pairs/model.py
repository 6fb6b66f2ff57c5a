"""Opens a masked language model, and says why a folder is none."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import AutoModelForMaskedLM, AutoTokenizer

from schemas.errors import DataError, UsageError
from schemas.randomness import key
from trainer.finetune.model import quiet_transformers, read_config
from trainer.suite.child import device_of_job

WHY_NOT = {
    "xlnet": "XLNet predicts tokens in a random order and reads no mask token in their place, so the likelihood of a "
    "sentence with single tokens masked is not defined for it",
    "electra": "a replaced-token detector tells which tokens were replaced and gives none of them a probability",
}
"""Why some families are refused, by model_type. ELECTRA's generators have the discriminators' model_type, and are
recognized by their weights."""


def open_masked_lm(folder: str, random_weights: bool) -> tuple[Any, Any]:
    """Return the model, in evaluation mode on the job's device, and its tokenizer.

    Raises UsageError if the folder holds no masked language model, with the reason, and DataError for damaged weights.
    """
    config = read_config(folder)
    if type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        raise UsageError(_refusal(folder, config))

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not tokenizer.is_fast or tokenizer.mask_token_id is None:
        raise UsageError(f"{folder} has no mask token, or no tokenizer.json. Minimal pairs need both.")

    torch.manual_seed(key("minimal_pairs", "weights") >> 1)
    if random_weights:
        model = AutoModelForMaskedLM.from_config(config)
    else:
        with quiet_transformers():
            model = _with_its_weights(folder, config)

    return model.float().eval().to(device_of_job()), tokenizer


def _with_its_weights(folder: str, config: Any) -> Any:
    try:
        model, told = AutoModelForMaskedLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # transformers raises many types here: of missing, damaged and misfit files
        reason = str(error).splitlines()[0]
        raise DataError(f"The weights in {folder} cannot be read: {reason}. Export or download them again.") from error

    # Without weights of its own the head would be random, and so would all scores be.
    if told["missing_keys"]:
        raise UsageError(_refusal(folder, config))
    return model


def _refusal(folder: str, config: Any) -> str:
    reason = WHY_NOT.get(
        config.model_type, "it has no head that predicts masked tokens, as fine-tuned folders have none"
    )
    generator = f" Its generator does: {folder}/generator." if config.model_type == "electra" else ""
    return f"{folder} cannot judge minimal pairs: {reason}.{generator}"
