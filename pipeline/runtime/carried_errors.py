"""Errors that a user can act on, on their way from a worker to the launcher.

Beam passes an exception on as the text of its traceback, so our errors travel as JSON inside that text.
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
    """Wrap a function for Beam so that `carried_error` can restore its ClozelineErrors in the launcher."""

    def wrapped(element, *side_inputs):  # without annotations, because Beam would choose coders by them
        try:
            return function(element, *side_inputs)
        except ClozelineError as error:
            raise _carrier(error) from error

    return wrapped


def carrying_errors_of_each(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do what `carrying_errors` does for a generator function."""

    def wrapped(element, *side_inputs):
        try:
            yield from function(element, *side_inputs)
        except ClozelineError as error:
            raise _carrier(error) from error

    return wrapped


def _carrier(error: ClozelineError) -> RuntimeError:
    content = json.dumps([type(error).__name__, str(error)])
    return RuntimeError(f"<{_MARK}>{content}</{_MARK}>")


def is_carried(text: str) -> bool:
    """Whether a traceback's text holds an error of ours."""
    return f"<{_MARK}>" in text


def carried_error(text: str) -> ClozelineError | None:
    """Return the error that `carrying_errors` put into a traceback's text, or None when there is none."""
    match = re.search(rf"<{_MARK}>(.*?)</{_MARK}>", text, re.DOTALL)
    if match is None:
        return None

    name, message = json.loads(match[1])
    return getattr(errors, name)(message)
