"""The command line of `clozeline start`."""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from clozeline.installation import missing_extras
from clozeline.start import plan_file
from clozeline.start.decide import DEFAULT_HOURS, Machine, Sections, changes, check_hours, decide, expected, warnings
from clozeline.start.plan_file import Values, holds_out
from clozeline.start.steps import NAME as STEPS_NAME
from clozeline.start.steps import check_steps, is_trained, run_steps
from pipeline import cli as pipeline_cli
from pipeline.look import Look, look_at, look_lines
from pipeline.shard.detection import AUTO
from pipeline.shard.languages import find_language
from schemas import progress, storage
from schemas.command_line import CommandParser, file_path, filled, flag_hint, folder_path, run
from schemas.errors import DataError, UsageError
from schemas.folder_kinds import CHECKPOINT, MODEL, RUN, SUITE, TUNED, what_is
from schemas.manifest import open_manifest
from schemas.terminal import counted, one_line, padded, print_lines
from schemas.urls import normal
from trainer.checkpoint.run_lock import held
from trainer.command_line import EXIT_CODES
from trainer.config.parse import keys_called
from trainer.export import cli as export_cli


def main(arguments: list[str] | None = None, prog: str = "clozeline start") -> int:
    """Run the command line and return the process's exit code."""
    return run(lambda: _start(parser(prog).parse_args(arguments), prog))


class Parser(CommandParser):
    """The parser of `start`, which has the flags of no step: they are lines of clozeline.toml."""

    def _unexpected(self, others: list[str]) -> UsageError:
        if any(word.startswith("-") for word in others):
            return super()._unexpected(others)
        return UsageError(
            f"start takes one FOLDER, and {1 + len(others):,} were given. Give a folder that holds all, or quote a "
            "pattern, so that the shell does not expand it: 'folder/*.txt'."
        )


def _flag_hint(flag: str, known: Iterable[str]) -> str:
    """Return where a flag of a step, or a key of its recipe, is set."""
    name = flag.removeprefix("--").replace("-", "_")
    if name == "set":
        return " Keys of the recipe stand under [train] in clozeline.toml, which --plan_only writes into DIR."
    flags = {job: pipeline_cli.parser("clozeline").commands[job].known_flags for job in ("shard", "vocab", "pairs")}
    flags["export"] = export_cli.parser("clozeline export").known_flags
    section = next((step for step, names in flags.items() if f"--{name}" in names), "")
    if name in ("config", "recipe"):
        section, name = "train", "config"
    elif not section and keys_called(name):
        section, name = "train", keys_called(name)[0]
    if not section:
        return flag_hint(flag, known)
    return f" Set {name} under [{section}] in clozeline.toml, which --plan_only writes into DIR."


def parser(prog: str) -> CommandParser:
    """Return the parser of the command line."""
    top = Parser(
        prog,
        "From a folder of text to an encoder: look at the files, say what will be done and why, write that to "
        "DIR/clozeline.toml, and do it; the same command continues after any interruption.",
        [f"{prog} my_texts --output out/mine --hours 2", f'{prog} "corpus/*.jsonl.gz" --language de --plan_only'],
        EXIT_CODES,
        "Flags of shard, vocab, pairs and export, and keys of a recipe, are lines of DIR/clozeline.toml.",
    )
    top.hint = _flag_hint
    what = "a folder, a file or a pattern, with text in any format of `shard`"
    top.add_argument("input", type=file_path, metavar="FOLDER", help=what)

    model = top.add_argument_group("the model")
    what = f"how long to train (default: {DEFAULT_HOURS}, ten minutes)"
    model.add_argument("--hours", type=_hours, metavar="H", help=what)
    what = "language of the text (default: detected); auto if there are several"
    model.add_argument("--language", type=_language, metavar="CODE", help=what)

    runs = top.add_argument_group("how it runs")
    runs.add_argument("--output", type=folder_path, default="out", metavar="DIR", help="folder for everything")
    runs.add_argument("--yes", action="store_true", help="do not ask before the first step")
    what = "write clozeline.toml and stop, to change it first"
    runs.add_argument("--plan_only", action="store_true", help=what)
    return top


def _hours(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours above 0, such as 0.5 or 12")


def _language(text: str) -> str:
    return AUTO if text.strip().lower() == AUTO else find_language(text).code


def _start(options: argparse.Namespace, prog: str) -> int:
    missing = missing_extras("pipeline", "trainer", "export")
    if missing is not None:
        raise UsageError(missing)
    output = options.output
    if options.input.startswith(("http://", "https://")):
        raise UsageError(
            f"FOLDER {options.input} is a web address. Download it first (wget, or `hf download` for a data set), and "
            "give the folder or file."
        )
    _refuse_output(options.input, output)
    storage.check_writable_folder(output)

    path = os.path.join(output, plan_file.NAME)
    before = plan_file.read_text(path) if os.path.exists(path) else ""
    text = _with_flags(before, options, path) if before else _new_plan(options, path, prog)
    plan = plan_file.parse(text, path)
    steps = plan_file.steps_of(plan, output)
    _check(plan, steps, options, path)

    print_lines(["", f"{one_line(path)}: {counted(len(steps), 'step')}", *_step_lines(steps)])
    is_asked = text != before or not os.path.exists(os.path.join(output, STEPS_NAME))
    if is_asked and not (options.yes or options.plan_only or _is_agreed()):
        print("Nothing was done. To change the plan first, repeat the command with --plan_only.")
        return 0

    if options.plan_only:
        _publish(path, text, before)
        return 0
    with held(Path(output)):
        _publish(path, text, before)
        done_before = _steps_done(output)
        code = run_steps(steps, plan, output)
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
    """Return the text of a plan for what FOLDER holds."""
    progress.doing(f"looking at {storage.printable(options.input)}")
    look = look_at(options.input)
    fault = next(iter(look.faults), "")
    print_lines(look_lines(options.input, replace(look, faults=look.faults[1:])))
    if fault and not look.unreadable and " --" not in fault:
        raise DataError(fault)

    try:
        sections = decide(options.input, look, Machine.here(), options.hours or DEFAULT_HOURS, options.language)
    except UsageError as error:
        raise DataError(fault) if fault else error from None
    command = shlex.join([*prog.split(), options.input, "--output", options.output])
    text = plan_file.to_text(sections, options.input, command)
    if fault:
        storage.publish(path, text.encode())
        raise DataError(f"{fault} {storage.printable(path)} is written; {_remedy(look)}")

    _print_wrapped(["", *_setting_lines(sections), *expected(look, sections), *warnings(look, sections)])
    return text


def _remedy(look: Look) -> str:
    """Return what to do after a plan was written for files with faults."""
    flags = "write such flags of `shard` under its [shard]"
    if not look.unreadable:
        return f"{flags}."
    files = counted(len(look.unreadable), "such file")
    if len(look.faults) > len(look.unreadable):
        return f"its line `exclude` leaves out {files}; for bad records, {flags}, then repeat the command."
    return f"its line `exclude` leaves out {files}. Repeat the command to go on like that."


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
    changed = changes(plan, options.hours, options.language)
    hours = plan["train"].get("run.max_hours")
    if changed.get("train"):
        print(
            f"--hours {options.hours:g} replaces run.max_hours = {hours:g} of {one_line(path)}. Leave the flag out to "
            "keep what is there."
        )
    _print_wrapped(_setting_lines(changed))
    return plan_file.with_settings(text, changed, path)


def _check(plan: Values, steps: list[plan_file.Step], options: argparse.Namespace, path: str) -> None:
    """Raise UsageError if a step would refuse the plan, or if its training would end before it begins."""
    shown = storage.printable(path)
    hours = plan["train"].get("run.max_hours")
    if isinstance(hours, int | float) and not is_trained(plan, options.output):
        check_hours(hours, f'{shown}, [train]: "run.max_hours"' if options.hours is None else "--hours")
    check_steps(steps, plan, shown)


def _refuse_output(given: str, output: str) -> None:
    """Raise UsageError if the output cannot be a folder of ours. given: the FOLDER."""
    if not storage.is_local(output):
        raise UsageError(f"--output {output} is a URL. `clozeline start` works in a folder of this machine.")
    folder, written = os.path.realpath(given), os.path.realpath(output)
    for flag, path in (("FOLDER", given), ("--output", output)):
        if os.path.exists(os.path.join(path, "manifest.json")):
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
    if not sys.stdin.isatty():
        return True
    print("Begin? [Y/n] ", end="", flush=True)
    _wait_for_input()
    return sys.stdin.readline().strip(" \r").lower() in ("\n", "y\n", "yes\n")


def _wait_for_input() -> None:
    """Wait for a line or a signal. A mere read would miss a Ctrl-C that comes just before it and wait for the next."""
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    before = signal.set_wakeup_fd(waker)
    try:
        select.select([sys.stdin, woken], [], [])
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(waker)


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


def _step_lines(steps: list[plan_file.Step]) -> Iterator[str]:
    for step in steps:
        yield f"  $ {shlex.join(step.words)}"


# ---- What came out ----


FEW_HELD_OUT = 20  # documents

PAGES = (
    ("text/card.html", "what became of the files"),
    ("pairs/card.html", "what the model was trained on"),
    ("run/report.html", "how the training went"),
)


def closing_lines(output: str, plan: Values, exported: Sequence[str], is_new: bool) -> Iterator[str]:
    """Yield what came out: the held-out loss, blanks filled in the user's own text, the pages, and what is next.

    exported: the words of the export's command after its name. is_new: False if all steps were done before.
    """
    yield ""
    found = _last_evaluation(os.path.join(output, "run", "metrics.jsonl"))
    loss = found.get("eval_mlm_loss_masked", found.get("eval_mlm_loss"))
    if loss is not None:
        line = f"Loss on held-out documents: {loss:.2f} nats per blank"
        if "eval_unigram_loss" in found:
            line += f"; word frequencies alone give {found['eval_unigram_loss']:.2f}"
        documents = open_manifest(os.path.join(output, "text_heldout")).totals.get("documents", 0)
        yield f"{line}."
        if documents < FEW_HELD_OUT:
            yield f"That is a rough figure, of only {counted(documents, 'held-out document')}."
    elif not holds_out(plan):
        yield "No documents were held out ([shard] holdout), so nothing shows how the model does on other text."

    hf = os.path.join(output, "hf")
    text = os.path.join(output, "text_heldout" if holds_out(plan) else "text")
    known = [] if is_new else _filled_before(os.path.join(output, "run"))
    yield from filled_lines(known) if known else _fill_in(text, exported)

    yield ""
    for name, what in PAGES:
        if os.path.exists(os.path.join(output, name)):
            yield f"  {padded(os.path.join(output, name), 28)} {what}"
    yield f"  {padded(hf, 28)} the model, for transformers' from_pretrained"
    yield "Next:"
    yield f"  clozeline inspect {os.path.join(output, 'pairs')} --rows 3"
    yield f"  clozeline report {os.path.join(output, 'run')} ANOTHER/run    two runs on one page"
    yield f"  clozeline finetune {hf} --task TASK.toml --output {os.path.join(output, 'task')}"
    again = shlex.join(["clozeline", "start", str(plan["start"].get("folder", "FOLDER")), "--output", output])
    yield f"  change {os.path.join(output, 'clozeline.toml')} (run.max_hours, size, filters), and then:"
    yield f"  {again}"


def _fill_in(text: str, exported: Sequence[str]) -> Iterator[str]:
    blanks = [sys.executable, "-m", "clozeline.start.blanks", text, *exported]
    progress.doing("filling in blanks")
    done = subprocess.run(blanks, capture_output=True, text=True, check=False)
    progress.end()
    yield from done.stdout.splitlines()
    if done.returncode:
        yield f"The blanks could not be filled in: {(done.stderr.strip().splitlines() or ['?'])[-1]}"


def _filled_before(run: str) -> list[list[str]]:
    try:
        return json.loads(Path(run, "blanks.json").read_text(encoding="utf-8"))["filled"]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def filled_lines(filled: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield sentences with filled-in blanks and their words; the first is that of word frequencies alone."""
    for number, (sentence, words) in enumerate(filled):
        if number == 1 and "____ (" in sentence:
            yield "The word in parentheses was hidden from the model:"
        yield from (sentence, f"    {words}")


def _last_evaluation(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
    except (OSError, ValueError):  # a damaged line: the report tells of it
        return {}
    return next((line for line in reversed(lines) if "eval_mlm_loss" in line), {})
