"""Command-line flags, each declared once, as a field of a dataclass.

    @dataclass(frozen=True, kw_only=True)
    class ShardJob:
        seed: int = option(0, help="seed for shuffling", check=int)

The field gives the flag its name, default, help and check. `add_flags` adds the fields to an argparse parser, and
`recorded_options` returns the options that a manifest records.

A flag that the user leaves out is absent from the parsed arguments, rather than present with its default. A job can
therefore reject a flag that would have no effect, even if the user gave it with its default value.
"""

from __future__ import annotations

import argparse
import dataclasses
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from schemas.command_line import CommandParser, Flags, folder_path, positive

_KEY = "flag"

Check = Callable[[str], Any] | tuple[str, ...]


@dataclass(frozen=True)
class Flag:
    """How a field appears on the command line, and whether the manifest records it among its options.

    check: converts the argument's text to a value, or raises ArgumentTypeError; or the texts that are allowed.
    many: takes one value or more and may be repeated; the field is a list of all.
    """

    help: str
    check: Check = str
    metavar: str | None = None
    is_recorded: bool = True
    many: bool = False


@dataclass(frozen=True)
class Switch:
    """A flag without a value. If `off_help` is set, a second flag, --no_NAME, turns it off."""

    help: str
    off_help: str = ""
    is_recorded: bool = True


def option(
    default: Any = MISSING, *, help: str, check: Check = str, metavar: str | None = None, recorded: bool = True
) -> Any:
    """Return a dataclass field for a flag with a value. Without a default the flag is required."""
    return dataclasses.field(default=default, metadata={_KEY: Flag(help, check, metavar, recorded)})


def several(*, help: str, metavar: str, recorded: bool = True) -> Any:
    """Return a dataclass field for a flag with one text or more, which may be repeated. The default is None."""
    return dataclasses.field(default=None, metadata={_KEY: Flag(help, str, metavar, recorded, many=True)})


def switch(*, help: str, recorded: bool = True) -> Any:
    """Return a dataclass field for a flag that is off unless it is given."""
    return dataclasses.field(default=False, metadata={_KEY: Switch(help, is_recorded=recorded)})


def switch_pair(*, help: str, off_help: str) -> Any:
    """Return a dataclass field for --NAME and --no_NAME. With None, the default, other options decide the value."""
    return dataclasses.field(default=None, metadata={_KEY: Switch(help, off_help)})


def flags_of(options: type) -> dict[str, tuple[Flag | Switch, Any]]:
    """Return the flag and the default of each field of the dataclass `options`, by name. MISSING: it has no default."""
    return {field.name: (field.metadata[_KEY], field.default) for field in dataclasses.fields(options)}


def add_flags(parser: CommandParser, options: type, groups: Mapping[str, str]) -> None:
    """Add a flag to `parser` for each field of the dataclass `options`.

    groups: for each title in the help, the names of its flags with spaces between. Every field must be in one.
    """
    group_of: dict[str, Flags] = {}
    for title, names in groups.items():
        group_of |= dict.fromkeys(names.split(), parser.group(title))
    if differing := group_of.keys() ^ flags_of(options).keys():
        raise ValueError(f"pipeline/help.py and the options of {parser.prog} differ in {sorted(differing)}")
    for name in flags_of(options):
        add_flag(group_of[name], options, name)


def add_flag(group: Flags, options: type, name: str) -> None:
    """Add the flag of one field of the dataclass `options` to a group of a parser."""
    flag, default = flags_of(options)[name]
    if isinstance(flag, Switch):
        _add_switch(group, name, flag)
    else:
        _add_option(group, name, flag, default)


def _add_option(parser: Flags, name: str, flag: Flag, default: Any) -> None:
    if isinstance(flag.check, tuple):
        settings: dict[str, Any] = {"choices": flag.check}
    else:
        settings = {"type": flag.check, "metavar": flag.metavar or METAVARS.get(flag.check)}
    if flag.many:
        settings |= {"nargs": "+", "action": "extend"}

    action = parser.add_argument(
        f"--{name}", required=default is MISSING, default=argparse.SUPPRESS, help=flag.help, **settings
    )
    action.shown_default = None if default is MISSING else default  # type: ignore[attr-defined]


def _add_switch(parser: Flags, name: str, flag: Switch) -> None:
    if not flag.off_help:
        parser.add_argument(f"--{name}", action="store_true", default=argparse.SUPPRESS, help=flag.help)
        return

    pair = parser.add_mutually_exclusive_group()
    pair.add_argument(f"--{name}", action="store_true", default=argparse.SUPPRESS, help=flag.help)
    pair.add_argument(f"--no_{name}", dest=name, action="store_false", default=argparse.SUPPRESS, help=flag.off_help)


def given_flags(options: type, parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the flags of `options` that the user gave, by field name."""
    names = [field.name for field in dataclasses.fields(options)]
    return {name: getattr(parsed, name) for name in names if hasattr(parsed, name)}


def recorded_options(job: Any) -> dict[str, Any]:
    """Return what the manifest records as `options`, in the order of the job's fields.

    Paths, the seed and --overwrite are left out: the manifest records paths and the seed elsewhere, and --overwrite
    does not change the result.
    """
    return {
        field.name: getattr(job, field.name) for field in dataclasses.fields(job) if field.metadata[_KEY].is_recorded
    }


def yes_or_no(text: str) -> bool:
    """Check an argument that turns something on or off."""
    if text.lower() not in ("true", "false", "yes", "no"):
        raise ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() in ("true", "yes")


def share(text: str) -> float:
    """Check an argument that must be between 0 and 1, inclusive."""
    value = _number(text)

    # NaN makes every comparison false, so this form rejects it too; `value < 0.0 or value > 1.0` would not.
    if not 0.0 <= value <= 1.0:
        raise ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def fraction(text: str) -> float:
    """Check an argument that must be strictly between 0 and 1."""
    value = _number(text)
    if not 0.0 < value < 1.0:
        raise ArgumentTypeError(f"{text!r} is not a number above 0 and below 1, such as 0.05")
    return value


def _number(text: str) -> float:
    """Return the number that a text states; NaN if it states none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


METAVARS: dict[Callable[[str], Any], str] = {
    str: "TEXT",
    int: "N",
    positive: "N",
    share: "SHARE",
    fraction: "SHARE",
    folder_path: "DIR",
}
"""What the help calls a flag's value, by its check."""
