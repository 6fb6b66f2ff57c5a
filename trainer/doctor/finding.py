"""The result of one check: what was checked, its state, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from schemas.errors import ClozelineError, UsageError

State = Literal["ok", "note", "warning", "failed"]
"""note: not needed for this plan. warning: training starts, but slower or less safely. failed: it does not start."""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    value: what was found, as readable text. advice: what to do, empty if nothing. facts: the same as numbers and names,
    for --json. exit_code: the code that training would end with, 0 unless the check failed.
    """

    name: str
    state: State
    value: str
    advice: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    exit_code: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return asdict(self)


def failed(
    name: str, value: str, advice: str, facts: dict[str, Any] | None = None, code: int = UsageError.exit_code
) -> Finding:
    """Return a finding that keeps training from starting. code: the exit code of training."""
    return Finding(name, "failed", value, advice, facts or {}, code)


def failed_with(name: str, error: ClozelineError) -> Finding:
    """Return a finding for an error that training would end with. Its message says what to do."""
    return Finding(name, "failed", str(error), exit_code=error.exit_code)


def not_checked(name: str, error: BaseException) -> Finding:
    """Return a warning for a check that raised an unexpected error. It says nothing about whether training starts."""
    reason = " ".join(str(error).split()) or "no message"
    return Finding(name, "warning", f"could not be checked ({type(error).__name__}: {reason[:200]})")
