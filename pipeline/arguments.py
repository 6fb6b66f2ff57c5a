"""argparse as the command line uses it: one line for an error, and help that names defaults where there are any."""

from __future__ import annotations

import argparse
import re
import sys
import unicodedata
from typing import NoReturn

from schemas.errors import UsageError, nearest_name


class Parser(argparse.ArgumentParser):
    """argparse with our exit code and one line, which names a misspelled flag, instead of the whole usage."""

    _given: list[str]

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.{self._misspelled(message)} See `{self.prog} --help`.")

    def _misspelled(self, message: str) -> str:
        """Name each given flag that is close to one that `message` says is missing."""
        if "arguments are required" not in message:
            return ""

        missing = re.findall(r"--\w+", message)
        given = [argument.partition("=")[0] for argument in self._given if argument.startswith("--")]
        unknown = [flag for flag in given if flag not in self._option_string_actions]
        hints = [(flag, nearest_name(flag, missing)) for flag in unknown]
        return "".join(f" Unknown flag {flag}.{hint}" for flag, hint in hints if hint)


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds the default to a flag's help where there is one that says something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.nargs == 0:
            return action.help
        return super()._get_help_string(action)


def one_line(text: str) -> str:
    """The text with line breaks and terminal controls escaped: names of files may hold both."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


BIDI_CONTROLS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that reorder the text after them, past the end of what holds them."""


def terminal_safe(text: str) -> str:
    """Return text of a corpus with line ends kept and everything that could steer a terminal escaped.

    Letters, marks and spaces of all scripts stay; joiners, which some scripts and emoji need, stay too.
    """
    return "".join(_escaped(c) if _steers_terminal(c) else c for c in text)


def _steers_terminal(character: str) -> bool:
    if character == "\n":
        return False
    return unicodedata.category(character) in ("Cc", "Cs") or character in BIDI_CONTROLS


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
