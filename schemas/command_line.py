"""Command lines of one kind: the parser that all commands share, its help, and its errors of one line.

Help has one order everywhere: usage, one sentence, groups of flags with their defaults, notes, examples, exit codes.
It is as wide as the terminal. Errors name the nearest command, flag or value.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import shutil
import sys
import textwrap
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, NoReturn, Protocol

from schemas.errors import ClozelineError, UsageError, nearest_name
from schemas.terminal import one_line, tell_error

EXIT_CODES = "0 done, 2 usage or configuration, 3 bad data, 5 storage, 130 interrupted"

LONG_CHOICES = 30  # characters; longer lists of choices stand in the help text, where they wrap
LAST_GROUP = "other"
PLACES = ("--input", "--run", "--model", "--folder")  # flags that people try before a positional argument
NOT_SHOWN = (argparse.SUPPRESS, "")  # as defaults


def run(command: Callable[[], int]) -> int:
    """Run a command and return its exit code, or that of its error, which is printed."""
    try:
        return command()
    except ClozelineError as error:
        tell_error(one_line(str(error)))
        return error.exit_code


class Flags(Protocol):
    """A parser, or a group of its flags."""

    add_argument: Callable[..., argparse.Action]
    add_mutually_exclusive_group: Callable[..., Any]


class CommandParser(argparse.ArgumentParser):
    """The parser of one command, which raises UsageError where argparse would print its usage and exit.

    description: one sentence. examples: command lines. notes: text with line breaks. options: those of argparse, which
    may add some to the parsers of commands.
    """

    hint: Callable[[str, Iterable[str]], str]
    """What was probably meant by a flag that is not among the known ones."""

    commands: Mapping[str, CommandParser]
    """The parsers of its commands, by name, if it has commands."""

    values_of_flags: dict[str, Any]
    """The values of the flags that have been parsed so far."""

    _given: list[str]

    def __init__(
        self,
        prog: str,
        description: str = "",
        examples: Sequence[str] = (),
        exit_codes: str = EXIT_CODES,
        notes: str = "",
        **options: Any,
    ) -> None:
        # An abbreviation that works today would stop working when another flag begins with the same letters.
        super().__init__(prog, description=description, formatter_class=HelpFormatter, allow_abbrev=False, **options)
        self.examples = list(examples)
        self.exit_codes = exit_codes
        self.notes = notes
        self.hint = flag_hint
        self.commands = {}
        self._groups: dict[str, argparse._ArgumentGroup] = {}
        self._positionals.title = "arguments"
        self._optionals.title = LAST_GROUP
        for name in (None, "store"):
            self.register("action", name, StoreOnce)

    @property
    def known_flags(self) -> list[str]:
        """Every flag of this parser, as written on the command line."""
        return list(self._option_string_actions)

    def group(self, title: str) -> Flags:
        """Return the group with this title, which is added if there is none."""
        if title not in self._groups:
            self._groups[title] = self.add_argument_group(title)
        return self._groups[title]

    # Help

    def format_usage(self) -> str:
        return f"usage: {self._usage()}\n"

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self._usage(), self._actions, [])
        formatter.add_text(self.description)
        groups = [group for group in self._action_groups if group is not self._optionals]
        for group in [*groups, self._optionals]:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()

        parts = [formatter.format_help()]
        if self.notes:
            parts.append(filled(self.notes))
        if self.examples:
            parts.append("examples:\n" + "".join(f"  {example}\n" for example in self.examples))
        if self.exit_codes:
            parts.append(filled(f"exit codes: {self.exit_codes}".replace(": \n", ":\n")))
        return "\n".join(parts)

    def _usage(self) -> str:
        if self.usage:
            return self.usage
        given = [value_of(action) for action in self._get_positional_actions()]
        named = [action for action in self._actions if action.option_strings and action.required]
        words = [self.prog, *given, *(f"{one.option_strings[0]} {value_of(one)}" for one in named), "[options]"]
        return " ".join(words).replace("%", "%%")

    # Errors

    def parse_known_args(self, args=None, namespace=None):
        self._given = list(sys.argv[1:] if args is None else args)
        self.values_of_flags = {}
        return super().parse_known_args(args, namespace)

    def parse_args(self, args=None, namespace=None):
        parsed, others = self.parse_known_args(args, namespace)
        if others:
            raise self._unexpected(others)
        return parsed

    def _unexpected(self, others: list[str]) -> UsageError:
        flags = [word for word in others if word.startswith("-")]
        for word, key, value in zip(self._given, self._given[1:], self._given[2:], strict=False):
            if word == "--set" and "=" not in key and value == others[0] and not flags:
                whole = f"--set {key}={others[-1]}"
                return UsageError(f"--set {key}: expected KEY=VALUE without spaces, as in {whole}.")
        return unknown_flags(others, self.known_flags, self.prog, self._hint)

    def _hint(self, flag: str, known: Iterable[str]) -> str:
        positional = self._get_positional_actions()
        if positional and flag in PLACES:
            return f" {positional[0].metavar} stands without a flag."
        return self.hint(flag, known)

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else "."
        raise UsageError(f"{message}{end}{self._hints(message)} See `{self.prog} --help`.")

    def _hints(self, message: str) -> str:
        """Return hints for the unknown flags that resemble one that `message` asks for, or else the values of that."""
        if "arguments are required" not in message:
            return ""
        required = re.findall(r"--\w+", message)
        first = self._given[0] if self._given else "-"
        positionals = len(self._get_positional_actions())
        has_flags = any(word.startswith("-") for word in self._given)
        if not has_flags and len(required) == 1 and len(self._given) == positionals + 1:
            return f" Did you mean {required[0]} {self._given[-1]}?"
        if not first.startswith("-") and not positionals:
            return f" {first} has no flag before it."
        given = [argument.partition("=")[0] for argument in self._given if argument.startswith("-")]
        unknown = [flag for flag in given if flag not in self._option_string_actions]
        hints = [(flag, flag_hint(flag, required)) for flag in unknown]
        found = "".join(f" Unknown flag {flag}.{hint}" for flag, hint in hints if hint)
        choices = {flag: self._option_string_actions[flag].choices for flag in required}
        return found or "".join(f" {flag} is one of {', '.join(map(str, of))}." for flag, of in choices.items() if of)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            hint = nearest_name(str(value), choices)
            message = f"invalid choice: {value!r} (choose from {', '.join(choices)})"
            raise argparse.ArgumentError(action, f"{message}.{hint}" if hint else message)


class HelpFormatter(argparse.HelpFormatter):
    """Help with each default once, and with long lists of choices where they wrap."""

    def _expand_help(self, action: argparse.Action) -> str:
        text = action.help or ""
        if action.choices is not None and action.metavar is None and self._has_long_choices(action):
            text = f"{text}; one of {', '.join(map(str, action.choices))}"
        return help_with_default(text, getattr(action, "shown_default", action.default))

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        is_switch = action.nargs == "?" and action.const is True  # --dry_run, which may also be given as --dry_run=True
        return "" if is_switch else super()._format_args(action, default_metavar)

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Any:
        if action.metavar is None and self._has_long_choices(action):
            return lambda size: (default_metavar,) * size
        return super()._metavar_formatter(action, default_metavar)

    @staticmethod
    def _has_long_choices(action: argparse.Action) -> bool:
        return action.choices is not None and len(",".join(map(str, action.choices))) > LONG_CHOICES


def value_of(action: argparse.Action) -> str:
    """Return what the usage calls an argument's value."""
    name = action.metavar or action.dest.upper()
    if action.nargs == "+":
        return f"{name} [{name} ...]"
    return f"[{name}]" if action.nargs == "?" else str(name)


def help_with_default(text: str, default: object) -> str:
    """Append the default to a flag's help, unless the flag has none or the text already explains it."""
    is_shown = isinstance(default, str | int | float | os.PathLike) and not isinstance(default, bool)
    if not is_shown or default in NOT_SHOWN or "(default" in text:
        return text
    return f"{text} (default: {default:g})" if isinstance(default, float) else f"{text} (default: {default})"


def filled(text: str) -> str:
    """Return text with long lines broken at the terminal's width, and indented as far as the line's second column."""
    width = max(shutil.get_terminal_size().columns - 2, 20)  # as argparse has it
    lines = []
    for line in text.splitlines():
        start = " " * re.match(r" *(\S+ {2,})?", line).end()  # type: ignore[union-attr]  # it matches any line
        lines.append(textwrap.fill(line, width, subsequent_indent=start, break_on_hyphens=False))
    return "\n".join(lines) + "\n"


class StoreOnce(argparse.Action):
    """Stores a flag's value as argparse does by default, and raises UsageError for a second value that differs."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        if option_string is not None and isinstance(parser, CommandParser):
            first = parser.values_of_flags.setdefault(self.dest, values)
            if first != values:
                raise UsageError(f"{option_string} is given twice, as {first} and as {values}. Give it once.")
        setattr(namespace, self.dest, values)


def flag_hint(flag: str, known: Iterable[str]) -> str:
    """Return what was probably meant by an unknown flag, or an empty string."""
    if flag.startswith("--resume"):
        return " It is not needed: the same command continues what it began."
    if len(flag) == 2:
        meant = [name for name in known if name.startswith(f"-{flag}")]
        return f" Did you mean {' or '.join(meant)}?" if meant else ""
    # Without dashes, in which all flags are alike.
    names = [name.removeprefix("--") for name in known if name.startswith("--")]
    hint = nearest_name(flag.removeprefix("--"), names)
    longer = [name for name in names if flag.endswith(f"_{name}")]  # --vocab_size for --size
    return hint.replace("mean ", "mean --", 1) or "".join(f" Did you mean --{name}?" for name in longer[:1])


def unknown_flags(
    unknown: list[str], known: list[str], prog: str = "", hint: Callable[[str, Iterable[str]], str] = flag_hint
) -> UsageError:
    """Return the error for unknown flags, each with a hint, by default the nearest known one. Leaves out their values.

    prog: whose help to name.
    """
    flags = [word for word in unknown if word.startswith("-")]
    if not flags:
        first = " ".join(unknown[:3]) + " ..." * (len(unknown) > 3)
        flag = next((name for name in ("--input", "--text", "--pairs", "--task") if name in known), "")
        if flag and os.path.exists(unknown[0]):
            return UsageError(f"unexpected arguments: {first}. Did you mean {flag} {unknown[0]}?")
        advice = f" Give them behind {flag}." if flag else ""
        key, is_key, _ = unknown[0].partition("=")
        if "--config" in known and (is_key or os.path.exists(unknown[0])):
            meant = unknown[0] if is_key else f"data.pairs={key}"
            return UsageError(f"unexpected arguments: {first}. Did you mean --set {meant}?")
        return UsageError(
            f"unexpected arguments: {first}.{advice} If they come from a name with spaces or a pattern, quote it, so "
            "that the shell does not split or expand it: 'folder/*.txt'."
        )
    hints = [f"Unknown flag {flag}.{hint(flag.split('=')[0], known)}" for flag in flags]
    see = f" See `{prog} --help`." if prog else ""
    return UsageError(" ".join(hints) + see)


# Types of flags


def file_path(text: str) -> str:
    """Check an argument that names a file or a folder. An empty one, as from an unset variable, is an error.

    Raises UsageError for a name that the system does not take.
    """
    if not text.strip():
        raise ArgumentTypeError("it is empty; give a path or a URL")

    from schemas.urls import is_local, normal, too_long  # loads fsspec, which `clozeline --help` does not need

    path = normal(text)
    try:
        os.lstat(path if is_local(path) else ".")
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise too_long(path) from error
    return path


def folder_path(text: str) -> str:
    """Check an argument that names a folder, local or a URL."""
    return file_path(text)


def local_folder(text: str) -> str:
    """Check an argument that names a local folder. A URL would otherwise be a local folder such as "s3:"."""
    folder = folder_path(text)
    if "://" in folder:
        raise ArgumentTypeError(
            f"{text} is a URL. The command resumes from what it saved on this machine, so it needs a local folder; "
            "copy that folder afterwards"
        )
    return folder


def whole_number_from(lowest: int, highest: float = inf) -> Callable[[str], int]:
    """Return a check for an argument that must be a whole number of at least `lowest` and at most `highest`."""
    expected = "above 0" if lowest == 1 else f"of {lowest} or more"
    if highest < inf:
        expected = f"from {lowest} to {highest:,}"

    def whole_number(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= highest:
            raise ArgumentTypeError(f"{text!r} is not a whole number {expected}")
        return int(text)

    return whole_number


positive = whole_number_from(1)
