"""One line of the answer: what was looked at, how it is, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from schemas.errors import ClozelineError, UsageError

State = Literal["ok", "note", "warning", "failed"]
"""note: not needed for what was asked. warning: training starts, but slower or less safe. failed: it does not start."""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    value: what was found, for a person. advice: what to do, empty if nothing. facts: the same as numbers and names,
    for --json. exit_code: what training would end with, 0 unless the check failed.
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
    """Return a finding that training cannot start with."""
    return Finding(name, "failed", value, advice, facts or {}, code)


def failed_with(name: str, error: ClozelineError) -> Finding:
    """Return a finding for an error that training would end with. Its message says what to do."""
    return Finding(name, "failed", str(error), exit_code=error.exit_code)


def not_checked(name: str, error: BaseException) -> Finding:
    """Return a finding for a check that broke: nothing is known, and training may well start."""
    reason = " ".join(str(error).split()) or "no message"
    return Finding(name, "warning", f"could not be checked ({type(error).__name__}: {reason[:200]})")
