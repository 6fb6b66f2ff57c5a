"""The command line of `clozeline doctor`: runs all checks, and prints them as a table or as JSON.

Exit codes: 0 if training can start, 2 for a wrong flag or recipe; otherwise the code that training itself would end
with, most often 2 (a package or a compiler is missing) or 5 (the folder or the URL cannot be written).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

from schemas.errors import ClozelineError
from schemas.one_line_parser import OneLineParser
from schemas.terminal_output import print_lines
from schemas.terminal_text import terminal_safe
from schemas.urls import normal
from trainer.command_line import add_set_flag
from trainer.config.load import load_recipe
from trainer.doctor.device import check_device
from trainer.doctor.finding import Finding, failed, failed_with, not_checked
from trainer.doctor.memory import check_memory
from trainer.doctor.network import check_network
from trainer.doctor.packages import check_packages
from trainer.doctor.plan import Plan
from trainer.doctor.speed import check_speed
from trainer.doctor.storage import check_storage

CHECKS: dict[str, Callable[[Plan], list[Finding]]] = {
    "packages": check_packages,
    "device": check_device,
    "memory": check_memory,
    "network": check_network,
    "storage": check_storage,
    "speed": check_speed,
}
"""All checks by name, in the order of printing."""

WIDTH = 120


def main(arguments: list[str] | None = None, prog: str = "python -m trainer.doctor") -> int:
    """Run the command line and return the process's exit code."""
    try:
        options = parser(prog).parse_args(arguments)
        recipe = load_recipe(options.config, options.set) if options.config else None
    except ClozelineError as error:
        print(f"clozeline: {terminal_safe(str(error))}", file=sys.stderr)
        return error.exit_code

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        findings = examine(Plan(recipe, options.folder, tuple(options.url)))
    except KeyboardInterrupt:
        print("clozeline: interrupted", file=sys.stderr)
        return 130

    exit_code = next((finding.exit_code for finding in findings if finding.state == "failed"), 0)
    text = as_json(findings, exit_code) if options.json else as_table(findings)

    print_lines(text.splitlines())
    return exit_code


def parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command's flags."""
    flags = OneLineParser(
        prog=prog,
        description="Check whether training can start on this machine, and say what to change. Needs no data, trains "
        "nothing and leaves nothing behind.",
        epilog="exit codes: 0 training can start, 2 usage, configuration or a missing package, 5 storage",
        allow_abbrev=False,
    )
    flags.add_argument(
        "--config", type=normal, metavar="RECIPE", help="also check the recipe: memory, kernels, tokens per second"
    )
    add_set_flag(flags, metavar="section.key=value", help="override one value of the recipe")
    flags.add_argument(
        "--folder", type=normal, default="", help="check the disk of this folder; otherwise that of run.output"
    )
    flags.add_argument("--url", action="append", default=[], help="check that this URL can be written; may be repeated")
    flags.add_argument("--json", action="store_true", help="print one JSON object")
    return flags


def examine(plan: Plan) -> list[Finding]:
    """Run all checks. A check that raises an error becomes a finding, too."""
    findings: list[Finding] = []
    with quiet():
        for name, check in CHECKS.items():
            try:
                findings += check(plan)
            except ModuleNotFoundError as error:
                module = (error.name or "").partition(".")[0]
                advice = 'Install it: pip install "clozeline[trainer]"'
                findings.append(failed(name, f"not checked, because {module} is not installed", advice))
            except ClozelineError as error:
                findings.append(failed_with(name, error))
            except Exception as error:
                findings.append(not_checked(name, error))
    return findings


@contextlib.contextmanager
def quiet():
    """Keep the prints, logs and warnings of libraries out of the answer."""
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def as_json(findings: list[Finding], exit_code: int) -> str:
    """Return a JSON object with "ready", "exit_code" and "findings"; each finding has the fields of Finding."""
    answer: dict[str, Any] = {
        "ready": exit_code == 0,
        "exit_code": exit_code,
        "findings": [finding.as_json() for finding in findings],
    }
    return json.dumps(answer, indent=2)


def as_table(findings: list[Finding]) -> str:
    """Return the findings as lines of text: state, name, what was found, and below it what to do."""
    name_width = max(len(finding.name) for finding in findings if not finding.name.startswith("url "))
    indent = " " * (9 + name_width + 2)

    lines = []
    for finding in findings:
        start = f"{finding.state:<9}{finding.name:<{name_width}}  "
        lines += wrapped(finding.value, start, indent)
        if finding.advice:
            lines += wrapped(finding.advice, f"{indent}-> ", f"{indent}   ")
    return "\n".join([*lines, "", summary(findings)])


def summary(findings: list[Finding]) -> str:
    """Return the last line of the table."""
    failures = sum(finding.state == "failed" for finding in findings)
    warned = sum(finding.state == "warning" for finding in findings)
    if failures:
        return f"Training cannot start here: {counted(failures, 'check')} failed, {counted(warned, 'warning')}."
    if warned:
        return f"Training can start, with {counted(warned, 'warning')}."
    return "Training can start."


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as in "2 checks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def wrapped(text: str, first: str, later: str) -> list[str]:
    """Wrap text into lines of at most WIDTH characters without breaking words. first, later: what lines begin with."""
    width = max(WIDTH, len(later) + 40)
    return textwrap.wrap(
        text or "-",
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
