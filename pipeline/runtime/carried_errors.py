"""Errors a user can act on, on their way from a worker to the launcher.

Beam sends an exception on as the text of a traceback, so ours travel as JSON inside that text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from schemas import errors
from schemas.errors import ClozelineError

_MARK = "clozeline-error"


def carrying_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function for Beam so that its ClozelineErrors reach `carried_error` whole."""

    def wrapped(element, *side_inputs):  # no annotations: Beam would choose coders by them
        try:
            return function(element, *side_inputs)
        except ClozelineError as error:
            carried = json.dumps([type(error).__name__, str(error)])
            raise RuntimeError(f"<{_MARK}>{carried}</{_MARK}>") from error

    return wrapped


def is_carried(text: str) -> bool:
    """Whether a traceback holds an error of ours."""
    return f"<{_MARK}>" in text


def carried_error(text: str) -> ClozelineError | None:
    """The error that `carrying_errors` put into a traceback's text, if it did."""
    found = re.search(rf"<{_MARK}>(.*?)</{_MARK}>", text, re.DOTALL)
    if found is None:
        return None
    name, message = json.loads(found[1])
    return getattr(errors, name)(message)
