"""Carries errors that a user can act on from a worker to the launcher.

Beam passes on an exception as the text of its traceback, so our errors travel as JSON inside that text.
"""

from __future__ import annotations

import json
import re

from schemas import errors
from schemas.errors import ClozelineError

_MARK = "clozeline-error"


def carried(error: ClozelineError) -> RuntimeError:
    """Return what to raise in a worker, so that `carried_error` can restore the error in the launcher."""
    content = json.dumps([type(error).__name__, str(error)])
    return RuntimeError(f"<{_MARK}>{content}</{_MARK}>")


def is_carried(text: str) -> bool:
    """Whether a traceback's text contains one of our errors."""
    return f"<{_MARK}>" in text


def carried_error(text: str) -> ClozelineError | None:
    """Return the error that `carried` put into a traceback's text, or None when there is none."""
    match = re.search(rf"<{_MARK}>(.*?)</{_MARK}>", text, re.DOTALL)
    if match is None:
        return None

    name, message = json.loads(match[1])
    return getattr(errors, name)(message)
