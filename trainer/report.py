"""The command line of `clozeline report`: a run's page, or one page of several runs, at any time.

The page of one run is that which its training writes, RUN/report.html. With --watch a page is written again as the
metrics grow, and a browser that shows it reads it again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from schemas import progress, storage
from schemas.command_line import CommandParser
from schemas.errors import INTERRUPTED, DataError, StorageError, UsageError
from schemas.folder_kinds import BEFORE_RUNS, CHECKPOINT, LOCK, METRICS, MODEL, RECIPE, RUN, START, what_is
from schemas.terminal import tell, tell_error
from trainer.command_line import exit_code_of, path_to_name

if TYPE_CHECKING:
    from trainer.metrics.run_record import RunRecord

PAGE = "report.html"

REFRESH = 5
"""Seconds between two looks at the metrics, and after which a browser reads the page again."""

BEGINS_WITHIN = 120
"""Seconds that --watch waits for the first step of a run: it has no metrics while torch and the data are loaded."""

OURS = b'<p class="brand">Clozeline run'
"""What every page of this command holds, so that no other file is replaced."""


def main(arguments: list[str] | None = None, prog: str = "python -m trainer.report") -> int:
    """Write the page and return the process's exit code. prog: the command's name in help and in errors."""
    try:
        return exit_code_of(lambda: _report(parser(prog).parse_args(arguments)))
    except KeyboardInterrupt:
        print("clozeline: interrupted", file=sys.stderr)
        return INTERRUPTED


def parser(prog: str) -> CommandParser:
    flags = CommandParser(
        prog,
        "Write a run, or several next to each other, on one HTML page.",
        [f"{prog} out/run", f"{prog} out/run_a out/run_b s3://bucket/run_c --output out/runs.html --watch"],
        "0 done, also after Ctrl-C with --watch, 2 usage or configuration, 3 bad data, 5 storage, 130 interrupted",
    )
    what = "run.output of a training, a folder or a URL, or the folder of a `start`"
    flags.add_argument("runs", nargs="+", type=path_to_name, metavar="RUN", help=what)

    page = flags.add_argument_group("the page")
    what = (
        f"page to write (default: RUN/{PAGE} for one folder; for several, for URLs and with --watch {PAGE} in the "
        "working directory)"
    )
    page.add_argument("--output", type=path_to_name, metavar="FILE", help=what)
    what = "write the page again while the runs train, until they have ended or Ctrl-C; the page refreshes itself"
    page.add_argument("--watch", action="store_true", help=what)
    return flags


def _report(options: argparse.Namespace) -> None:
    runs = [_run_in(run.rstrip("/") or run) for run in options.runs]
    places = [os.path.realpath(run) if storage.is_local(run) else run for run in runs]
    repeated = next((run for run, place in zip(runs, places, strict=True) if places.count(place) > 1), None)
    if repeated is not None:
        raise UsageError(f"{storage.printable(repeated)} is given twice. Give each run once.")
    for run in runs:
        wait_for_run(run) if options.watch else check_run(run)
    # A training writes RUN/report.html itself, without a refresh.
    is_in_run = len(runs) == 1 and storage.is_local(runs[0]) and not options.watch
    output = options.output or (str(Path(runs[0], PAGE)) if is_in_run else PAGE)
    check_output(output)

    with tempfile.TemporaryDirectory(prefix="clozeline-report-") as copies:
        page = Page(runs, output, copies)
        if options.watch:
            page.watch()
        else:
            page.write()
    print(f"{storage.printable(output)}: the report of {_counted(runs)} is written.")


def _run_in(path: str) -> str:
    """Return the run of a folder of `start`, which may not exist yet, and any other path as it is."""
    return storage.join(path, "run") if what_is(path) == START else path


def _counted(runs: Sequence[str]) -> str:
    return storage.printable(runs[0]) if len(runs) == 1 else f"{len(runs)} runs"


class NothingLoggedError(UsageError):
    """A run has not logged a step yet, or a folder may become a run."""


class Page:
    """The page of some runs, which is written once or several times."""

    def __init__(self, runs: Sequence[str], output: str, copies: str):
        """copies: an empty folder for the small files of runs at URLs."""
        self._runs = runs
        self._output = output
        self._copies = copies

        # For each run, when its metrics were written, and what was read then.
        self._records: dict[str, tuple[float | None, RunRecord]] = {}
        self._is_new = False

    def read(self) -> bool:
        """Read the runs whose metrics were written since the last call. Returns whether the page is to be written.

        Raises NothingLoggedError if a run has logged nothing yet, DataError, and StorageError.
        """
        for number, run in enumerate(self._runs):
            written = storage.modified(storage.join(run, METRICS))
            if run not in self._records or self._records[run][0] != written:
                self._records[run] = written, _record(run, Path(self._copies, str(number)))
                self._is_new = True
        return self._is_new

    def write(self, refresh: int | None = None) -> bool:
        """Write the page, and return whether all runs are over. refresh: as for `report`.

        Raises UsageError if there are too many runs, and what `read` raises if one of them was never read.
        """
        # These imports load torch, which takes seconds, so they wait until the arguments are known to be valid.
        from trainer.metrics.comparison import MAX_RUNS, comparison
        from trainer.metrics.log import skipped_note
        from trainer.metrics.run_page import report

        if len(self._runs) > MAX_RUNS:
            raise UsageError(f"{len(self._runs)} runs are too many for one page. Give up to {MAX_RUNS}.")
        if len(self._records) < len(self._runs):
            self.read()
        records = [self._records[run][1] for run in self._runs]
        place = os.path.dirname(os.path.abspath(self._output))
        page = report(records[0], place, refresh) if len(records) == 1 else comparison(records, place, refresh)
        storage.publish(self._output, page.encode(), durable=False)
        self._is_new = False
        for run, (_, record) in self._records.items():
            if record.skipped and refresh is None:
                tell(skipped_note(run, record.skipped))
        return all(record.is_over for record in records)

    def watch(self) -> None:
        """Write the page whenever metrics have grown, until all runs are over or Ctrl-C, and then without a refresh."""
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, signal.default_int_handler) for number in heard}
        try:
            with contextlib.suppress(KeyboardInterrupt):
                self._follow()
            self.write()
        finally:
            progress.end()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _follow(self) -> None:
        """Write the page whenever metrics have grown, until all runs are over. Waits for runs that are about to log."""
        print(f"{storage.printable(self._output)} follows {_counted(self._runs)}. Ctrl-C ends it.", flush=True)
        told = ""
        is_over = False
        while not is_over:
            try:
                is_over = self.read() and self.write(REFRESH)
                progress.doing(", ".join(f"step {record.last_line['step']:,}" for _, record in self._records.values()))
            except NothingLoggedError:
                pass
            except StorageError as error:
                if str(error) != told:
                    told = str(error)
                    tell_error(f"{told} The page follows once the store answers.")
            if not is_over:
                time.sleep(REFRESH)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _record(run: str, copy: Path) -> RunRecord:
    from trainer.metrics.run_record import copy_small_files, read_record

    if not storage.is_local(run):
        copy_small_files(run, str(copy))
    record = read_record(run, None if storage.is_local(run) else str(copy))
    if not record.lines:
        if record.skipped:
            path = storage.printable(storage.join(run, METRICS))
            raise DataError(f"{path} is damaged: no line of it is one of metrics. Restore it from a copy.")
        if storage.names(storage.join(run, "checkpoints")):
            path = storage.printable(storage.join(run, METRICS))
            raise NothingLoggedError(
                f"{storage.printable(run)} has checkpoints, but {path} holds no step. Restore it from a copy, or "
                "repeat the command once the run has logged one."
            )
        raise NothingLoggedError(
            f"{storage.printable(run)} has not logged a step yet. Repeat the command once it has; run.log_every says "
            "after how many."
        )
    return record


# What the arguments may be


def wait_for_run(run: str) -> None:
    """Wait until a run has begun to log, and raise what `check_run` raises if that takes too long."""
    deadline = time.monotonic() + BEGINS_WITHIN
    told = ""
    while True:
        try:
            return check_run(run)
        except NothingLoggedError as error:
            if time.monotonic() > deadline:
                raise
            reason = str(error).partition(". ")[0]
            if reason != told:
                told = reason
                tell(f"waiting up to {BEGINS_WITHIN} s for the first step: {reason}.")
            progress.doing("waiting for the first step")
            time.sleep(min(1, REFRESH))


def check_run(run: str) -> None:
    """Raise UsageError that says what a path is, unless it is the folder or URL of a run that has begun to log."""
    names = set(storage.names(run))
    if {RECIPE, METRICS} <= names:
        return
    path = storage.printable(run)
    if not names:
        if not storage.exists(run):
            raise NothingLoggedError(
                f"{path} does not exist. Check the path, the run.output of a training, or wait until that begins."
            )
        if storage.is_local(run) and not os.path.isdir(run):
            raise UsageError(f"{path} is a file, not a run. Give the folder of a run, which holds {METRICS}.")
        raise NothingLoggedError(f"{path} is empty, not a run. Give the folder of a run, which holds {METRICS}.")
    what = what_is(run)
    if what not in ("", RUN):
        advice = RUNS_OF.get(what, f"`clozeline inspect {path}` says more of it.")
        if PAGE in names:
            advice = f"Its report is {storage.join(path, PAGE)}."
        raise UsageError(f"{path} is {what}, not a run. {advice}")
    if RECIPE in names:
        raise NothingLoggedError(f"{path} has not logged a step yet. Repeat the command once it has.")
    missing = " and no ".join(name for name in (METRICS, RECIPE) if name not in names)
    message = f"{path} is not a run: it holds no {missing}. Give the run.output of a training."
    begins = LOCK in names or all(map(BEFORE_RUNS.fullmatch, names))
    raise NothingLoggedError(message) if begins else UsageError(message)


RUNS_OF = {
    CHECKPOINT: "Give the run's folder.",
    MODEL: "Give the run that it was exported from.",
}
"""Where the run of a folder of another kind is."""


def check_output(output: str) -> None:
    """Raise UsageError if a file that is not a report of this command is in the way."""
    if not storage.is_local(output):
        raise UsageError(f"--output {storage.printable(output)} is a URL. Give a file on this machine.")
    if os.path.isdir(output):
        raise UsageError(f"--output {storage.printable(output)} is a folder. Give the name of a file, as in {PAGE}.")
    try:
        with open(output, "rb") as file:
            is_ours = OURS in file.read(1 << 16)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"{storage.printable(output)} cannot be read: {error.strerror}. Give --output.") from error
    if not is_ours:
        raise UsageError(f"{storage.printable(output)} is not a report of runs, so it is kept. Give another --output.")


if __name__ == "__main__":
    from clozeline.installation import run_explained

    raise SystemExit(run_explained(main, "trainer"))
