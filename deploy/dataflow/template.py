"""Prints the metadata of the Flex Template for one command, in which every flag of the command is a parameter.

    python deploy/dataflow/template.py shard > shard.json

The service refuses a number or a choice that does not fit its parameter's pattern before it starts a machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import MISSING
from typing import Any

from pipeline.flags import Flag, Switch, flags_of, fraction, share
from pipeline.options import PairsJob, ShardJob, VocabJob, megabytes_of_shard
from schemas.command_line import help_with_default, positive

OPTIONS = {"shard": ShardJob, "vocab": VocabJob, "pairs": PairsJob}

_SHARE = r"0(\.[0-9]+)?"

REGEX_OF_CHECK: dict[Callable[[str], Any], str] = {
    fraction: _SHARE,
    int: "-?[0-9]{1,18}",
    megabytes_of_shard: "([1-9][0-9]{0,2}|1[0-9]{3}|2000)",
    positive: "[1-9][0-9]{0,18}",
    share: rf"({_SHARE}|1(\.0+)?)",
}
"""Patterns of numbers. Names and paths have none: the command itself says what is wrong with them."""

TEMP_LOCATION = "A folder in Cloud Storage for temporary files."
IMAGE = "The workers' image, with Clozeline and Beam of the launcher's versions. Name it with a tag or a digest."


def template(command: str) -> dict[str, Any]:
    """Return the metadata of the template that runs a command."""
    flags = {name: flag for name, flag in flags_of(OPTIONS[command]).items() if name != "sample"}  # runs nowhere else
    parameters = [_parameter(name, flag, default) for name, (flag, default) in flags.items()]
    parameters += [_described("temp_location", TEMP_LOCATION), _described("sdk_container_image", IMAGE)]
    return {
        "name": f"Clozeline: {command}",
        "description": f"Runs `clozeline {command}` on Dataflow.",
        "parameters": parameters,
    }


def _parameter(name: str, flag: Flag | Switch, default: Any) -> dict[str, Any]:
    if isinstance(flag, Switch):
        help_text = f"true: {flag.help}" + (f"; false: {flag.off_help}" if flag.off_help else "")
        regex = "(true|false)"
    else:
        help_text = help_with_default(flag.help, default)
        if isinstance(flag.check, tuple):
            regex = f"({'|'.join(flag.check)})"
        else:
            regex = REGEX_OF_CHECK.get(flag.check, "")

    described = _described(name, help_text, regex)
    return described if default is MISSING else described | {"isOptional": True}


def _described(name: str, help_text: str, regex: str = "") -> dict[str, Any]:
    label = name.replace("_", " ").capitalize()
    described = {"name": name, "label": label, "helpText": help_text, "paramType": "TEXT"}
    return described | {"regexes": [f"^{regex}$"]} if regex else described


def main(arguments: list[str]) -> int:
    """Print a template's metadata and return the process's exit code."""
    if len(arguments) != 1 or arguments[0] not in OPTIONS:
        print(f"usage: template.py COMMAND, one of {', '.join(OPTIONS)}", file=sys.stderr)
        return 2
    print(json.dumps(template(arguments[0]), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
