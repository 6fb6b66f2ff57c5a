"""Finds encoders that cannot judge minimal pairs by their config.json alone, before any training.

Whether the weights of a head are really in the folder is only known once transformers has opened it (model.py).
"""

from __future__ import annotations

import re
from pathlib import Path

from trainer.suite.encoders import Encoder
from trainer.suite.plan import read_json

WHY_NOT = {
    "xlnet": "XLNet predicts tokens in a random order and reads no mask token in their place, so the likelihood of a "
    "sentence with single tokens masked is not defined for it",
    "electra": "a replaced-token detector tells which tokens were replaced and gives none of them a probability",
}
"""Why some families cannot be used, by model_type. ELECTRA's generators have the same model_type as discriminators, and
are recognized by their architecture and their weights."""

NO_MASKED_LM = re.compile(
    r"(?<!LMHead)Model$|For(SequenceClassification|TokenClassification|MultipleChoice|QuestionAnswering)$"
)
"""Architectures without a masked-LM head: bare encoders such as BertModel, and fine-tuned folders."""


def refusal_of(folder: str, model_type: str) -> str:
    """Return why a folder cannot judge minimal pairs, as a sentence with what else may be used."""
    no_head = "it has no head that predicts masked tokens. Bare encoders and fine-tuned folders have none"
    reason = WHY_NOT.get(model_type, no_head)
    generator = f" Its generator does: {folder}/generator." if model_type == "electra" else ""
    return f"{folder} cannot judge minimal pairs: {reason}.{generator}"


def refusal_at_start(encoder: Encoder) -> str | None:
    """Return why an encoder cannot judge minimal pairs, None if nothing rules it out so far.

    A checkpoint of a run is judged by the run's family, because its folder may not be written yet.
    """
    if encoder.family is not None:
        return refusal_of(encoder.folder, encoder.family) if encoder.family in WHY_NOT else None

    config = read_json(Path(encoder.folder) / "config.json")
    model_type = str(config.get("model_type", ""))
    if model_type == "xlnet":
        return refusal_of(encoder.folder, model_type)

    # With random weights every head is there, only untrained.
    architectures = config.get("architectures") or []
    if encoder.random_weights or not architectures:
        return None

    detects_replacements = architectures == ["ElectraForPreTraining"]
    has_no_head = all(NO_MASKED_LM.search(name) for name in architectures)
    return refusal_of(encoder.folder, model_type) if detects_replacements or has_no_head else None
