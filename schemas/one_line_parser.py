"""argparse with one-line errors that name what is wrong and the nearest flag. A flag given twice is an error."""

from __future__ import annotations

import argparse
import re
import sys
from typing import NoReturn

from schemas.errors import UsageError, nearest_name


class OneLineParser(argparse.ArgumentParser):
    """A parser that raises UsageError where argparse would print its usage and exit."""

    _given: list[str]

    @property
    def known_flags(self) -> list[str]:
        """Every flag of this parser, as written on the command line."""
        return list(self._option_string_actions)

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        self._given = sys.argv[1:] if args is None else list(args)
        self._refuse_repeated()
        return super().parse_known_args(args, namespace)

    def _refuse_repeated(self) -> None:
        """Raise UsageError for a flag that is given twice with a value: argparse would drop the first in silence."""
        words = self._given[: self._given.index("--")] if "--" in self._given else self._given
        values: dict[str, str] = {}
        for number, word in enumerate(words):
            flag, equals, value = word.partition("=")
            action = self._option_string_actions.get(flag)
            if action is None or not word.startswith("--") or type(action).__name__ != "_StoreAction":
                continue
            value = value if equals else " ".join(words[number + 1 : number + 2])
            if values.setdefault(flag, value) != value:
                raise UsageError(f"{flag} is given twice, as {values[flag]} and as {value}. Give it once.")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.{self._misspelled_flags(message)} See `{self.prog} --help`.")

    def _misspelled_flags(self, message: str) -> str:
        """Return hints for the unknown flags that resemble one that `message` asks for, or any if it refuses flags."""
        if "arguments are required" in message:
            candidates = re.findall(r"--\w+", message)
        elif "unrecognized arguments" in message:
            candidates = self.known_flags
        else:
            return ""

        given = [argument.partition("=")[0] for argument in self._given if argument.startswith("--")]
        hints = []
        for flag in given:
            if flag in self._option_string_actions:
                continue

            if flag.startswith("--resume"):
                hints.append(f" {flag} is not needed: the same command continues what it began.")
                continue

            hint = nearest_name(flag, candidates)
            if hint:
                hints.append(f" Unknown flag {flag}.{hint}")
        return "".join(hints)
