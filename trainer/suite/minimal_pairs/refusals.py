"""Tells from config.json alone which encoders cannot judge minimal pairs, so that a suite knows it before any training.

Whether the weights of a head are really in the folder is only known once transformers has opened it (model.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import UsageError
from trainer.suite.encoders import Encoder
from trainer.suite.plan import name_of, read_json
from trainer.suite.suite_file import OpenSuite

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
    """Return why an encoder cannot judge minimal pairs, None if its config.json is missing or does not rule it out."""
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


def pairs_left_out(suite: OpenSuite, encoders: Sequence[Encoder], skip: bool) -> dict[str, str]:
    """Return the jobs on minimal pairs that cannot succeed, each with the reason.

    skip: whether to leave out required minimal pairs as well. Otherwise only optional ones may be left out.
    Raises UsageError that names the encoders if a required part is among them, or if no part of the suite is left.
    """
    refusals = {encoder.label: refusal_at_start(encoder) for encoder in encoders}
    reasons = [reason for reason in refusals.values() if reason is not None]
    if not reasons:
        return {}

    every_encoder_is_refused = len(reasons) == len(encoders)
    if suite.minimal_pairs and every_encoder_is_refused and not suite.tasks:
        raise UsageError(
            f"{' '.join(reasons)} The suite {suite.entry.name} then has nothing to run. Choose other tasks of it, or "
            "another suite."
        )

    required = [pairs.name for pairs in suite.minimal_pairs if not pairs.optional]
    if required and not skip:
        raise UsageError(
            f"{' '.join(reasons)} The suite {suite.entry.name} contains the minimal pairs {', '.join(required)}: leave "
            "these scores empty with --skip_missing, or name other tasks with --only."
        )

    left_out = {}
    for encoder in encoders:
        reason = refusals[encoder.label]
        if reason is not None:
            left_out |= {name_of(encoder, pairs.name): reason for pairs in suite.minimal_pairs}
    return left_out
