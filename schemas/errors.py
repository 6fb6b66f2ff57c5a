"""Errors that a user can act on, each with the exit code that the command ends with.

    0 done    1 a run that cannot continue    2 usage or configuration    3 bad data    4 bad checkpoint
    5 storage    75 preempted and saved    130 interrupted

A message says what happened with the value and the path, what was expected, and what to do next. Command lines
print it without a traceback. Any other exception is a bug in Clozeline and keeps its traceback.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it: 128 + SIGINT."""


class ClozelineError(Exception):
    """Base of the errors a user can act on. `exit_code` is the process's exit status.

    everywhere: whether every process of a run raises this error. If so, only one of them needs to print it.
    """

    exit_code = 1
    everywhere = False


class UsageError(ClozelineError):
    """A flag, a recipe or a path is wrong; nothing was started."""

    exit_code = 2
    everywhere = True


class DataError(ClozelineError):
    """Input text, a shard, a manifest or a vocabulary is not what it should be."""

    exit_code = 3


class CheckpointError(ClozelineError):
    """A checkpoint cannot be trusted or does not belong to this run."""

    exit_code = 4


class StorageError(ClozelineError):
    """A disk, a folder or an object store failed: it is full, read-only, forbidden or unreachable.

    The input and the options are fine, so the same command succeeds once the cause is removed.
    """

    exit_code = 5


class PreemptedError(ClozelineError):
    """A signal stopped the run and everything is saved; the same command resumes. EX_TEMPFAIL of sysexits.h."""

    exit_code = 75
    everywhere = True


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return the closest known name as a hint, or an empty string.

    Example: `nearest_name("sead", ["seed"])` -> `" Did you mean seed?"`.
    """
    known = list(known)
    letters = sorted(name.casefold())
    swapped = [one for one in known if one != name and sorted(one.casefold()) == letters]  # which difflib misses
    longer = [one for one in known if one.startswith(f"{name}_")]
    close = swapped[:1] or longer[:1] or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close and close[0] != name and unicodedata.normalize("NFC", close[0]) == unicodedata.normalize("NFC", name):
        return f" Did you mean {close[0]}? The two differ only in their Unicode form: composed or decomposed letters."
    return f" Did you mean {close[0]}?" if close else ""
