"""The commands of `python -m pipeline`.

Beam is imported only once a job starts, so `--help` answers at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pipeline.beam import display, stop_signals
from pipeline.flags import add_flag, add_flags, given_flags, yes_or_no
from pipeline.help import ABOUT, LAUNCH, About
from pipeline.options import PairsJob, ShardJob, StatisticsJob, VocabJob
from schemas import progress, storage
from schemas.command_line import CommandParser, file_path, flag_hint, folder_path, positive, unknown_flags
from schemas.errors import INTERRUPTED, ClozelineError, UsageError
from schemas.terminal import counted, one_line, print_lines, print_note, tell_error, tell_warning

if TYPE_CHECKING:
    from schemas.manifest import Manifest

INSPECTED = "a folder, a shard or a file, of ours or yours; two vocabularies are compared"
NOT_FOR_SAMPLES = (
    "dedup",
    "drop_repeats",
    "holdout",
    "num_shards",
    "shard_megabytes",
    "shuffle",
    "max_bad_ratio",
    "seed",
    "corpus_name",
    "corpus_license",
    "corpus_url",
)
"""Flags of `shard` about what comes after the documents' steps, which --sample leaves out."""
STOPPED = "stopped. Run the same command again to continue; finished pieces are reused."


@dataclass(frozen=True)
class Invocation:
    """One parsed command line.

    parsed: also has `known_flags`, the command's own, to suggest one for a misspelled flag.
    other_arguments: what these do not cover.
    """

    parsed: argparse.Namespace
    other_arguments: list[str]

    def beam_arguments(self) -> list[str]:
        """Return what a job passes on to Beam: the other arguments, and how it is launched, as one of Beam's flags."""
        flags = ["--dry_run=True"] if self.parsed.dry_run else []
        if self.parsed.no_wait:
            flags.append("--no_wait")
        return [*self.other_arguments, *flags]

    def refuse_other_arguments(self) -> None:
        """Raise UsageError if arguments are left over. For commands that accept none of Beam's flags."""
        if self.other_arguments:
            raise unknown_flags(self.other_arguments, self.parsed.known_flags)

    def refuse_misspelled(self, missing: list[str]) -> None:
        """Raise UsageError if an unknown flag resembles one of the `missing` flags."""
        for argument in self.other_arguments:
            name = argument.partition("=")[0]
            if argument.startswith("--") and flag_hint(name, missing):
                raise unknown_flags([name], missing)


@dataclass(frozen=True)
class Command:
    """One command of the program. `add_arguments` declares its flags in groups, `run` does its work."""

    name: str
    add_arguments: Callable[[CommandParser, dict[str, str]], None]
    run: Callable[[Invocation], None]

    @property
    def about(self) -> About:
        return ABOUT[self.name]


def main(arguments: list[str] | None = None, prog: str = "python -m pipeline") -> int:
    """Run one command and return the exit code of the process. `prog` is the program's name in help and errors."""
    try:
        parsed, other_arguments = parser(prog).parse_known_args(arguments)
        invocation = Invocation(parsed, other_arguments)
        # Around the whole command, because Beam logs warnings while it is imported.
        with stop_signals.as_interrupts(), display.job_logs(other_arguments, parsed.verbose):
            if hasattr(parsed, "dry_run"):  # a job, which may list many files before its bar begins
                progress.doing(f"{parsed.command.name}, looking at the input")
            parsed.command.run(invocation)
        return 0
    except ClozelineError as error:
        tell_error(one_line(str(error)))
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        tell_error(str(interrupt) or _stopped(arguments))
        return INTERRUPTED
    finally:
        progress.end()


def _stopped(arguments: list[str] | None) -> str:
    words = sys.argv[1:] if arguments is None else arguments
    only_reads = words[:1] in (["inspect"], ["verify"])
    return "interrupted." if only_reads else STOPPED


def parser(prog: str = "python -m pipeline") -> CommandParser:
    """Return the parser of all commands. Its result also has the chosen `command` and its `known_flags`."""
    examples = [f"{prog} {command.about.examples[0]}" for command in COMMANDS[:2]]
    top = CommandParser(prog, "Raw text to sentence pairs, as Apache Beam jobs.", examples)
    subparsers = top.add_subparsers(required=True, metavar="COMMAND", title="commands", parser_class=CommandParser)

    for command in COMMANDS:
        about = command.about
        sub = subparsers.add_parser(
            command.name,
            prog=f"{prog} {command.name}",
            help=about.sentence,
            description=about.sentence,
            examples=[f"{prog} {example}" for example in about.examples],
            notes=about.notes,
        )
        command.add_arguments(sub, about.groups)
        sub.set_defaults(command=command, known_flags=sub.known_flags, verbose=False)
    top.commands = subparsers.choices
    return top


def _add_beam_job_flags(options: type) -> Callable[[CommandParser, dict[str, str]], None]:
    def add_arguments(sub: CommandParser, groups: dict[str, str]) -> None:
        add_flags(sub, options, groups)
        _add_dry_run(sub)
        group = sub.group(LAUNCH)
        group.add_argument(
            "--no_wait",
            action="store_true",
            help="submit the job to its engine, print its id and exit; it publishes on its own",
        )
        group.add_argument("--verbose", action="store_true", help="show Beam's log, which local jobs otherwise hide")

    return add_arguments


def _add_statistics_flags(sub: CommandParser, groups: dict[str, str]) -> None:
    add_flags(sub, StatisticsJob, groups)
    _add_dry_run(sub)


def _add_dry_run(sub: CommandParser) -> None:
    sub.group(LAUNCH).add_argument(
        "--dry_run",
        nargs="?",
        type=yes_or_no,
        const=True,
        default=False,
        metavar="True",
        help="check the job, print its size and an estimate of its work, and write nothing",
    )


def _add_inspect_arguments(sub: CommandParser, groups: dict[str, str]) -> None:
    sub.add_argument("paths", type=file_path, nargs="+", metavar="PATH", help=INSPECTED)
    (shown,) = groups
    sub.group(shown).add_argument("--rows", type=positive, default=5, metavar="N", help="number of rows to show")
    add_flag(sub.group(shown), ShardJob, "exclude")


def _add_verify_arguments(sub: CommandParser, groups: dict[str, str]) -> None:
    sub.add_argument("folders", type=folder_path, nargs="+", metavar="DIR", help="a finished folder of the pipeline")


def _run_shard(invocation: Invocation) -> None:
    from pipeline.jobs.shard import run
    from pipeline.shard.holdout import held_out_folder
    from pipeline.summary import summary_lines, warning_lines
    from schemas.manifest import read_manifest

    given = given_flags(ShardJob, invocation.parsed)
    if "input" not in given and "inputs" not in given:
        invocation.refuse_misspelled(["--input", "--inputs"])
    job = ShardJob(**given)
    if job.sample is not None:
        _try_filters(job, invocation)
        return
    manifest = run(job, invocation.beam_arguments(), invocation.parsed.known_flags)
    if manifest is None:
        return

    with stop_signals.reported_as_finished(storage.printable(job.output)):
        print_lines([_result_line(manifest, job.output), *summary_lines(manifest), *_where_listed(job.output)])
        if job.holdout is not None:
            held_out = held_out_folder(job.output)
            print_lines([_result_line(read_manifest(held_out, "text"), held_out)])
        for line in warning_lines(manifest):
            _warn(line)


def _where_listed(output: str) -> list[str]:
    folder = storage.join(output, "rejected")
    return [f"  listed one by one in {one_line(storage.printable(folder))}"] if storage.exists(folder) else []


def _try_filters(job: ShardJob, invocation: Invocation) -> None:
    from pipeline.jobs.filter_trial import run

    if invocation.beam_arguments():
        unknown = " ".join(word.partition("=")[0] for word in invocation.beam_arguments() if word.startswith("--"))
        raise UsageError(
            f"--sample makes no text shards: it runs on this machine, without Beam. Leave out {unknown}, or --sample."
        )
    unused = [f"--{name}" for name in NOT_FOR_SAMPLES if name in given_flags(ShardJob, invocation.parsed)]
    if unused:
        print_note(f"Note: --sample makes no text shards, so {', '.join(unused)} changes nothing.")

    lines = run(job)
    with stop_signals.reported_as_finished(storage.printable(job.output)):
        print_lines(lines)


def _run_vocab(invocation: Invocation) -> None:
    from pipeline.jobs.vocab import run
    from pipeline.summary import coverage_lines, vocabulary_warning

    given = given_flags(VocabJob, invocation.parsed)
    if "text" not in given and "counts" not in given:
        invocation.refuse_misspelled(["--text", "--counts"])
    if not {"extend", "add"} & given.keys():
        invocation.refuse_misspelled([flag for flag in ("--model", "--size") if flag[2:] not in given])
    job = VocabJob.from_flags(given)
    manifest = run(job, invocation.beam_arguments(), invocation.parsed.known_flags)
    if manifest is None:
        return

    with stop_signals.reported_as_finished(storage.printable(job.output)):
        print_lines([*_result_lines(manifest, job.output), *coverage_lines(manifest)])
    _warn(vocabulary_warning(manifest))
    tokens = manifest.totals["tokens"]
    size = manifest.options["size"]
    if tokens < size:
        print(f"Note: the text filled {tokens:,} of the {size:,} tokens requested; the vocabulary has that size.")


def _run_pairs(invocation: Invocation) -> None:
    from pipeline.jobs.pairs import run
    from pipeline.summary import coverage_lines, pairs_warning

    job = PairsJob.from_flags(given_flags(PairsJob, invocation.parsed))
    manifest = run(job, invocation.beam_arguments(), invocation.parsed.known_flags)
    if manifest is None:
        return

    with stop_signals.reported_as_finished(storage.printable(job.output)):
        print_lines([*_result_lines(manifest, job.output), *coverage_lines(manifest)])
    _warn(pairs_warning(manifest, job.vocab))
    if "removed_dropout" in manifest.options:
        print(
            f"Note: the tokenizer's BPE dropout of {manifest.options['removed_dropout']} is turned off, here and in "
            "the copy of its folder that is stored with the pairs. With it the same text would give different tokens "
            "in every run."
        )


def _run_statistics(invocation: Invocation) -> None:
    from pipeline.statistics import run

    if invocation.other_arguments:
        refusal = unknown_flags(invocation.other_arguments, invocation.parsed.known_flags)
        raise UsageError(f"{refusal} statistics runs on this machine, without Beam, and takes none of Beam's flags.")

    job = StatisticsJob(**given_flags(StatisticsJob, invocation.parsed))
    manifest = run(job, invocation.parsed.dry_run)
    if manifest is None:
        return

    with stop_signals.reported_as_finished(storage.printable(job.output)):
        print_lines(_result_lines(manifest, job.output))


def _run_inspect(invocation: Invocation) -> None:
    from pipeline.inspection import inspect_all

    invocation.refuse_other_arguments()
    paths, rows = invocation.parsed.paths, invocation.parsed.rows
    if excluded := getattr(invocation.parsed, "exclude", None):  # only of a corpus
        from pipeline.look import corpus_lines

        print_lines(chain.from_iterable(corpus_lines(path, rows, excluded) for path in paths))
    else:
        print_lines(inspect_all(paths, rows))


def _run_verify(invocation: Invocation) -> None:
    from pipeline.verification import verify_all

    invocation.refuse_other_arguments()
    print_lines(verify_all(invocation.parsed.folders))


def _warn(warning: str) -> None:
    """Print a warning on stderr; an empty one is none."""
    if warning:
        tell_warning(warning)


def _result_line(manifest: Manifest, output: str) -> str:
    totals = ", ".join(
        counted(count, name.replace("_", " ").removesuffix("s")) for name, count in manifest.totals.items()
    )
    place = one_line(storage.printable(output))
    return f"{place}: {totals}, {counted(len(manifest.shards), 'file')}, fingerprint {manifest.fingerprint}"


def _result_lines(manifest: Manifest, output: str) -> list[str]:
    from pipeline.summary import ledger_lines

    left_out = [f"  left out or cut: {line}" for line in ledger_lines(manifest)]
    return [_result_line(manifest, output), *left_out]


COMMANDS = (
    Command("shard", _add_beam_job_flags(ShardJob), _run_shard),
    Command("vocab", _add_beam_job_flags(VocabJob), _run_vocab),
    Command("pairs", _add_beam_job_flags(PairsJob), _run_pairs),
    Command("statistics", _add_statistics_flags, _run_statistics),
    Command("inspect", _add_inspect_arguments, _run_inspect),
    Command("verify", _add_verify_arguments, _run_verify),
)
