"""argparse with one-line errors that name what is wrong and the nearest flag. A flag given twice is an error."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from schemas.errors import UsageError, nearest_name


class OneLineParser(argparse.ArgumentParser):
    """A parser that raises UsageError where argparse would print its usage and exit."""

    values_of_flags: dict[str, Any]
    """The values of the flags that have been parsed so far."""

    _given: list[str]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name in (None, "store"):
            self.register("action", name, StoreOnce)

    @property
    def known_flags(self) -> list[str]:
        """Every flag of this parser, as written on the command line."""
        return list(self._option_string_actions)

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        self._given = sys.argv[1:] if args is None else list(args)
        self.values_of_flags = {}
        return super().parse_known_args(args, namespace)

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

            hint = flag_hint(flag, candidates)
            if hint:
                hints.append(f" Unknown flag {flag}.{hint}")
        return "".join(hints)


class StoreOnce(argparse.Action):
    """Stores a flag's value as argparse does by default, and raises UsageError for a second value that differs."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:  # type: ignore[override]
        if option_string is not None and isinstance(parser, OneLineParser):
            first = parser.values_of_flags.setdefault(self.dest, values)
            if first != values:
                raise UsageError(f"{option_string} is given twice, as {first} and as {values}. Give it once.")
        setattr(namespace, self.dest, values)


def flag_hint(flag: str, known: Iterable[str]) -> str:
    """Return what was probably meant by an unknown flag, or an empty string."""
    if flag.startswith("--resume"):
        return " It is not needed: the same command continues what it began."
    return nearest_name(flag, known)
