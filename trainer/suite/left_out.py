"""Finds the minimal pairs that a suite leaves empty for encoders that cannot judge them."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import UsageError
from trainer.logs import logger
from trainer.suite.encoders import Encoder
from trainer.suite.minimal_pairs.refusals import refusal_at_start
from trainer.suite.plan import job_name
from trainer.suite.suite_file import OpenSuite


def pairs_left_out(suite: OpenSuite, encoders: Sequence[Encoder], skip: bool) -> dict[str, str]:
    """Return the jobs on minimal pairs that cannot succeed, each with the reason, and log them.

    skip: whether to leave out required minimal pairs as well. Otherwise only optional ones may be left out.
    Raises UsageError that names the encoders if a required part is among them.
    """
    refusals = {encoder.label: refusal_at_start(encoder) for encoder in encoders}
    reasons = [reason for reason in refusals.values() if reason is not None]
    required = [pairs.name for pairs in suite.minimal_pairs if not pairs.optional]
    if reasons and required and not skip:
        raise UsageError(
            f"{' '.join(reasons)} The suite {suite.entry.name} contains the minimal pairs {', '.join(required)}: leave "
            "these scores empty with --skip_missing, or name other tasks with --only."
        )

    left_out = {}
    for encoder in encoders:
        reason = refusals[encoder.label]
        if reason is not None:
            left_out |= {job_name(encoder.label, pairs.name): reason for pairs in suite.minimal_pairs}

    for name, reason in left_out.items():
        logger.info("%s is left out: %s", name, reason)
    return left_out
