"""What `clozeline start` does: look at the files, make or change the plan, ask, run its steps, say what came out."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import isfinite
from pathlib import Path

from clozeline.start import DEFAULT_HOURS, plan_file
from clozeline.start.closing import closing_lines
from clozeline.start.decide import (
    Sections,
    changes,
    check_hours,
    decide,
    expected,
    few_hours,
    too_few_gpus,
    warnings,
)
from clozeline.start.plan_file import Values
from clozeline.start.steps import NAME as STEPS_NAME
from clozeline.start.steps import Facts, changed_lines, check_steps, is_trained, listed, pairs_warning, run_steps
from pipeline.look import look_at, look_lines
from schemas import progress, storage
from schemas.command_line import filled
from schemas.errors import DataError, UsageError
from schemas.folder_kinds import CHECKPOINT, MODEL, RUN, SUITE, TUNED, is_pipeline_folder, what_is
from schemas.host_limits import usable_gpus
from schemas.terminal import counted, one_line, print_lines
from schemas.urls import normal, utf8_path
from trainer.checkpoint.run_lock import held


def start(options: argparse.Namespace, prog: str) -> int:
    """Look, plan, ask and do it, and return the process's exit code. options: of the command line."""
    output = options.output
    _refuse_output(options.input, output)
    storage.check_writable_folder(output)

    path = os.path.join(output, plan_file.NAME)
    before = plan_file.read_text(path) if os.path.exists(path) else ""
    _refuse_results_of_others(output)
    text = _with_flags(before, options, path) if before else _new_plan(options, path, prog)
    plan = plan_file.parse(text, path)
    steps = plan_file.steps_of(plan, output)
    facts = _check(plan, steps, options, path)

    changed = list(changed_lines(steps, plan, facts, output))
    print_lines(["", f"{one_line(path)}: {counted(len(steps), 'step')}"])
    print_lines(f"  $ {shlex.join(step.words)}" for step in steps)
    _print_wrapped([*changed, *pairs_warning(steps, plan), *_other_folder(plan)])
    if not is_trained(plan, output):
        _print_wrapped(too_few_gpus(plan["train"], len(usable_gpus())))
    is_asked = text != before or changed or not os.path.exists(os.path.join(output, STEPS_NAME))
    if is_asked and not (options.yes or options.plan_only or _is_agreed()):
        print("Nothing was done. To change the plan first, repeat the command with --plan_only.")
        return 0

    if options.plan_only:
        _publish(path, text, before)
        return 0
    with held(Path(output)):
        _publish(path, text, before)
        done_before = _steps_done(output)
        code = run_steps(steps, plan, facts, output)
        if code == 0:
            is_new = _steps_done(output) != done_before
            print_lines(closing_lines(output, plan, steps[-1].words[2:], is_new))
    return code


def _steps_done(output: str) -> bytes:
    path = Path(output, STEPS_NAME)
    return path.read_bytes() if path.exists() else b""


def _publish(path: str, text: str, before: str) -> None:
    if text != before:
        storage.publish(path, text.encode())
        print(f"{one_line(path)} is written.")


def _new_plan(options: argparse.Namespace, path: str, prog: str) -> str:
    progress.doing(f"looking at {storage.printable(options.input)}")
    look = look_at(options.input)
    ends = look.faults[len(look.unreadable) :]  # what ends the first step, even without the files that cannot be read
    fault = next(iter(ends), "")
    print_lines(look_lines(options.input, replace(look, faults=look.faults[: len(look.unreadable)] + ends[1:])))
    if fault and not look.unreadable and " --" not in fault:
        raise DataError(fault)

    try:
        sections = decide(options.input, look, len(usable_gpus()), options.hours or DEFAULT_HOURS, options.language)
    except UsageError as error:
        if fault or look.unreadable:
            raise DataError(fault or f"{error} The files that cannot be read are named above.") from None
        raise
    command = shlex.join([*prog.split(), options.input, "--output", options.output])
    text = plan_file.to_text(sections, options.input, command)
    if fault:
        storage.publish(path, text.encode())
        raise DataError(
            f"{fault} {storage.printable(path)} is written; write such flags of `shard` under its [shard], then repeat "
            "the command."
        )

    _print_wrapped(["", *_setting_lines(sections), *expected(look, sections), *warnings(look, sections)])
    return text


def _with_flags(text: str, options: argparse.Namespace, path: str) -> str:
    """Return the text of an earlier plan with what flags change. Raises UsageError if it is about another FOLDER."""
    plan = plan_file.parse(text, path)
    folder = normal(str(plan["start"].get("folder", options.input)))
    if os.path.abspath(folder) != os.path.abspath(options.input):
        raise UsageError(
            f"FOLDER {options.input} is not what {storage.printable(path)} has, {folder}. Change it there, in [start] "
            "and [shard], start where the plan was made if it is the same folder, or give another --output for another "
            "model."
        )
    changed = changes(plan, options.hours, options.language, lambda: look_at(options.input))
    hours = plan["train"].get("run.max_hours")
    if options.hours is not None and not (isinstance(hours, int | float) and isfinite(hours)):
        print(
            f"--hours {options.hours:g} changes nothing: {one_line(path)} has no number as run.max_hours under [train]."
        )
    if changed.get("train"):
        print(
            f"--hours {options.hours:g} replaces run.max_hours = {hours:g} of {one_line(path)}. Leave the flag out to "
            "keep what is there."
        )
    lines = list(_setting_lines(changed))
    if "config" in changed.get("train", {}):
        lines += few_hours(changed["train"]["config"].value, options.hours)
    _print_wrapped(lines)
    return plan_file.with_settings(text, changed, path)


def _other_folder(plan: Values) -> Iterator[str]:
    """Yield a warning if nothing of [start] folder is read."""
    folders, read = listed(plan["start"].get("folder")), listed(plan["shard"].get("input"))
    if folders and read and not any(_is_one_in_the_other(folders[0], one) for one in read):
        yield f"Warning: folder is {folders[0]} under [start], but what is read is input = {read} under [shard]."


def _is_one_in_the_other(first: str, second: str) -> bool:
    paths = [os.path.realpath(normal(path)) for path in (first, second)]
    return os.path.commonpath(paths) in paths


def _check(plan: Values, steps: list[plan_file.Step], options: argparse.Namespace, path: str) -> Facts:
    """Return the plan's facts. Raise UsageError if a step would refuse it, or its training end before it begins."""
    shown = storage.printable(path)
    hours = plan["train"].get("run.max_hours")
    if isinstance(hours, int | float) and not is_trained(plan, options.output):
        check_hours(hours, f'{shown}, [train]: "run.max_hours"' if options.hours is None else "--hours")
    return check_steps(steps, plan, shown)


def _refuse_results_of_others(output: str) -> None:
    """Raise UsageError if there are results and no steps.json, which names those that `start` made."""
    names = ("text", "text_heldout", "vocab", "pairs", "held_out", "run", "hf")
    there = [name for name in names if storage.names(os.path.join(output, name))]
    record = os.path.join(output, STEPS_NAME)
    if there and not os.path.exists(record):
        raise UsageError(
            f"--output {storage.printable(output)} holds {', '.join(there)}, and no {STEPS_NAME} says that `start` "
            f"made them. Give another --output, or write {{}} into {storage.printable(record)} to replace them."
        )


def _refuse_output(given: str, output: str) -> None:
    """Raise UsageError if FOLDER, which is `given`, cannot be read, or the output cannot be a folder of ours."""
    for path in (given, output):
        utf8_path(path)
    if not storage.is_local(output):
        raise UsageError(f"--output {output} is a URL. `clozeline start` works in a folder of this machine.")
    folder, written = os.path.realpath(given), os.path.realpath(output)
    for flag, path in (("FOLDER", given), ("--output", output)):
        if os.path.isdir(path) and is_pipeline_folder(path):
            raise UsageError(f"{flag} {storage.printable(path)} is a result of `clozeline`. Give another folder.")
    what = what_is(given) if os.path.isdir(given) else ""
    has_weights = what == MODEL and any(name.endswith((".safetensors", ".bin")) for name in os.listdir(given))
    if has_weights or what in (RUN, CHECKPOINT, SUITE, TUNED):
        raise UsageError(f"FOLDER {storage.printable(given)} is {what}, not text. Give the folder with your texts.")
    if os.path.exists(os.path.join(given, STEPS_NAME)):
        raise UsageError(
            f"FOLDER {storage.printable(given)} is the output of `clozeline start`. Give the folder with your texts; "
            f"--output {storage.printable(given)} continues."
        )
    if os.path.isdir(folder) and os.path.join(written, "").startswith(os.path.join(folder, "")):
        raise UsageError(
            f"--output {storage.printable(output)} is in the folder {storage.printable(given)}, whose files are all "
            "read. Give an --output outside of it."
        )


def _is_agreed() -> bool:
    """Ask on a terminal whether to begin. Without one the answer is yes."""
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    print("Begin? [Y/n] ", end="", flush=True)
    return sys.stdin.readline().strip(" \r").lower() in ("\n", "y\n", "yes\n")


# ---- Lines for the terminal ----


def _print_wrapped(lines: Iterable[str]) -> None:
    """Print lines, on a terminal wrapped at its width, but not within code, which people copy."""
    is_seen = sys.stdout is not None and sys.stdout.isatty()
    print_lines(map(_wrapped, lines) if is_seen else lines)


def _wrapped(line: str) -> str:
    whole = re.sub(r"`.*?`|\S+ = \S+|--\w+ [\d.]+", lambda code: code[0].replace(" ", "\0"), line)
    return filled(whole).removesuffix("\n").replace("\0", " ")


def _setting_lines(sections: Sections) -> Iterator[str]:
    for name, settings in sections.items():
        for number, (key, setting) in enumerate(settings.items()):
            shown = " ".join(setting.value) if isinstance(setting.value, list) else str(setting.value)
            shown = "the recipe's" if setting.value is None else shown
            yield f"{'' if number else name:<6} {key} = {shown}" + (f"   ({setting.why})" if setting.why else "")
