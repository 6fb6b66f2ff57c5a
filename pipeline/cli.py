"""The flags of `python -m pipeline`. Beam is imported only once a job starts, so that --help answers at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable

from pipeline.arguments import HelpFormatter, Parser, one_line, terminal_safe
from pipeline.runtime import stop_signals, terminal_logs
from pipeline.shard.limits import MAX_RATIO, MAX_RECORD, MAX_UNDECODABLE_RATIO
from schemas import storage
from schemas.errors import ClozelineError, UsageError, nearest_name
from schemas.manifest import Manifest
from schemas.masking import KINDS


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the process's exit code."""
    try:
        options, rest = parser().parse_known_args(arguments)
        with stop_signals.as_interrupts(), terminal_logs.shown(rest):
            options.command(options, rest, options.known_flags)
        return 0
    except ClozelineError as error:
        print(f"clozeline: {one_line(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        stopped = "stopped. Run the same command again to continue; finished pieces are reused."
        print(f"clozeline: {str(interrupt) or stopped}", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """All commands. Each leaves in the options its function and the flags it knows."""
    top = Parser(prog="python -m pipeline", description=__import__("pipeline").__doc__, allow_abbrev=False,
                 formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    commands = top.add_subparsers(dest="name", required=True, metavar="shard|vocab|pairs|inspect|verify",
                                  parser_class=Parser)  # fmt: skip
    for name, help_text, fill, command in (
        ("shard", "corpora -> text shards", _shard_flags, _run_shard),
        ("vocab", "text shards -> vocabulary", _vocab_flags, _run_vocab),
        ("pairs", "text shards -> pair shards", _pairs_flags, _run_pairs),
        ("inspect", "what is in a shard or a folder, decoded and readable", _inspect_flags, _run_inspect),
        ("verify", "every shard against its manifest; exit 3 when one is wrong", _verify_flags, _run_verify),
    ):
        sub = commands.add_parser(name, help=help_text, description=help_text, allow_abbrev=False,
                                  formatter_class=HelpFormatter)  # fmt: skip
        fill(sub)
        known = [flag for action in sub._actions for flag in action.option_strings]
        sub.set_defaults(command=command, known_flags=known)
    return top


def _output_flags(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--output", type=folder, required=True, help="folder to write, local or a URL (s3://, gs://)")
    sub.add_argument(
        "--overwrite", action="store_true", help="replace a finished result, which is kept until the new one is ready"
    )
    sub.epilog = "Any other flag goes to Beam: --direct_num_workers (worker processes on this machine), --runner ..."


def _shard_flags(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--input", required=True, help="files, patterns or a comma list of them; .gz .bz2 .xz .zst are read"
    )
    sub.add_argument(
        "--format",
        choices=("auto", "text", "jsonl", "parquet", "wikiextractor"),
        default="auto",
        help="format of the input; auto tells it by name and content",
    )
    sub.add_argument("--text_layout", choices=("blank_line", "line", "file"), default="blank_line",
                     help="what makes a document in plain text")  # fmt: skip
    sub.add_argument("--text_key", default="text", help="the JSON key or the Parquet column that holds the text")
    sub.add_argument(
        "--encoding",
        default="utf-8",
        help="character encoding of text and JSON files, such as cp1252, gb18030 or utf-16",
    )
    sub.add_argument("--language", default="en", help="ISO 639 code or English name, for the sentence splitter")
    sub.add_argument("--sentence_splitter", choices=("sentencex", "newline"), default="sentencex",
                     help="newline: the input has one sentence a line")  # fmt: skip
    sub.add_argument(
        "--dedup",
        choices=("none", "exact", "minhash"),
        default="none",
        help="drop documents with equal text, or nearly equal text too",
    )
    sub.add_argument(
        "--num_shards", type=positive, help="number of text shards (default: one per 8 million characters or so)"
    )
    sub.add_argument("--max_bad_ratio", type=share, default=0.01, help="share of bad records above which the job fails")
    sub.add_argument(
        "--max_undecodable_ratio",
        type=share,
        default=MAX_UNDECODABLE_RATIO,
        help="share of a file's bytes that are not in its encoding above which the job fails; below, they are removed",
    )
    sub.add_argument(
        "--max_document_bytes", type=positive, default=MAX_RECORD, help="larger documents are rejected as bad records"
    )
    sub.add_argument(
        "--max_decompression_ratio",
        type=positive,
        default=MAX_RATIO,
        help="how many times its compressed size a file may grow to; below 256 MB any growth is allowed",
    )
    sub.add_argument("--seed", type=int, default=0, help="seed for shuffling")
    _output_flags(sub)


def _vocab_flags(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--text", type=folder, required=True, help="folder written by shard")
    sub.add_argument("--model", choices=("wordpiece", "bytebpe"), required=True, help="BERT's kind or RoBERTa's")
    sub.add_argument("--size", type=positive, required=True, help="number of tokens, special tokens included")
    case = sub.add_mutually_exclusive_group()
    case.add_argument(
        "--lowercase",
        action="store_true",
        default=None,
        help="ignore case and accents: wordpiece only, and its default",
    )
    case.add_argument(
        "--no_lowercase", dest="lowercase", action="store_false", help="keep case and accents: the default of bytebpe"
    )
    sub.add_argument("--min_frequency", type=positive, default=2, help="pairs that occur less often are not merged")
    sub.add_argument(
        "--max_alphabet",
        type=positive,
        help="maximum characters in a wordpiece alphabet; rarer ones become [UNK] (default: no maximum)",
    )
    sub.add_argument(
        "--pad_to_multiple", type=positive, default=1, help="round the size up to a multiple with [unusedN] tokens"
    )
    _output_flags(sub)


def _pairs_flags(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--text", type=folder, required=True, help="folder written by shard")
    sub.add_argument(
        "--vocab", type=folder, required=True, help="folder written by vocab, or a published tokenizer's folder"
    )
    objectives = ("nsp", "sop", "full_sentences", "doc_sentences")
    sub.add_argument(
        "--objective", choices=objectives, required=True, help="BERT's or ALBERT's pairs, or RoBERTa's rows"
    )
    sub.add_argument("--max_length", type=positive, default=128, help="maximum tokens per row, special tokens included")
    sub.add_argument(
        "--short_seq_prob", type=share, help="pairs: share of documents cut to shorter rows (default: 0.1)"
    )
    sub.add_argument(
        "--dupe_factor", type=positive, default=1, help="passes over the text, each with its own random draws"
    )
    sub.add_argument(
        "--word_segmenter", choices=("none", "jieba"), default="none", help="how Chinese text is divided into words"
    )
    sub.add_argument(
        "--static_masks",
        type=positive,
        metavar="K",
        help="store K masks with each row (default: none; the trainer masks)",
    )
    sub.add_argument("--masking", choices=KINDS, help="kind of the static masks (default: token)")
    sub.add_argument("--mask_prob", type=share, help="share of a row's tokens in a static mask (default: 0.15)")
    sub.add_argument(
        "--max_predictions", type=positive, help="maximum masked tokens per row in a static mask (default: no maximum)"
    )
    sub.add_argument("--seed", type=int, default=0, help="seed for the pairs, the order of rows and the static masks")
    _output_flags(sub)


def _inspect_flags(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("path", type=folder, help="a shard or a finished folder")
    sub.add_argument("other", type=folder, nargs="?", help="a second vocabulary, to compare with the first")
    sub.add_argument("--rows", type=positive, default=5, help="number of rows to show")


def _verify_flags(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("folder", type=folder, help="a finished folder")


def folder(text: str) -> str:
    """An argument that names a place. An empty one, from an unset variable perhaps, would mean the root folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; give a path or a URL")
    return text


def positive(text: str) -> int:
    """An argument that must be a whole number above zero."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def share(text: str) -> float:
    """An argument that must lie between 0 and 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def _fields(options: argparse.Namespace) -> dict:
    return {name: v for name, v in vars(options).items() if name not in ("command", "known_flags", "name")}


def _run_shard(options: argparse.Namespace, beam_arguments: list[str], known_flags: list[str]) -> None:
    from pipeline.jobs.shard import ShardJob, run
    from pipeline.shard.languages import fallback_note, find_language
    from pipeline.shard.summary import summary_lines, warning_lines

    note = fallback_note(find_language(options.language))
    if note and options.sentence_splitter != "newline":
        print(note, file=sys.stderr)

    manifest = run(ShardJob(**_fields(options)), beam_arguments, known_flags)
    if manifest is None:
        return

    print_lines([_result_line(manifest, options.output), *summary_lines(manifest)])
    for line in warning_lines(manifest):
        print(f"clozeline: warning: {line}", file=sys.stderr)


def _run_vocab(options: argparse.Namespace, beam_arguments: list[str], known_flags: list[str]) -> None:
    from pipeline.jobs.vocab import VocabJob, run

    if options.model == "bytebpe" and options.lowercase:
        raise UsageError("--lowercase changes nothing in --model bytebpe, which keeps every byte. Leave it out.")
    options.lowercase = options.model == "wordpiece" if options.lowercase is None else options.lowercase
    manifest = run(VocabJob(**_fields(options)), beam_arguments, known_flags)
    _report(manifest, options.output)
    reached = options.size if manifest is None else manifest.totals["tokens"]
    if reached < options.size:
        print(
            f"Note: the text filled {reached:,} of the {options.size:,} tokens asked for; the vocabulary is that small."
        )


def _run_pairs(options: argparse.Namespace, beam_arguments: list[str], known_flags: list[str]) -> None:
    from pipeline.jobs.pairs import PairsJob, run

    if options.short_seq_prob is not None and options.objective.endswith("sentences"):
        raise UsageError(f"--short_seq_prob changes nothing in --objective {options.objective}. Leave it out.")
    for name in ("masking", "mask_prob", "max_predictions"):
        if getattr(options, name) is not None and options.static_masks is None:
            raise UsageError(f"--{name} is of the masks that --static_masks K stores; the trainer's are in its recipe.")
    defaults = {"short_seq_prob": 0.1, "static_masks": 0, "masking": "token", "mask_prob": 0.15}
    for name, value in defaults.items():
        setattr(options, name, value if getattr(options, name) is None else getattr(options, name))
    manifest = run(PairsJob(**_fields(options)), beam_arguments, known_flags)
    _report(manifest, options.output)
    if manifest is not None and "removed_dropout" in manifest.options:
        dropout = manifest.options["removed_dropout"]
        print(
            f"Note: the tokenizer's BPE dropout of {dropout} is turned off, here and in the copy of its folder "
            "that lies with the pairs. With it the same text would give other tokens in every run."
        )


def _run_inspect(options: argparse.Namespace, rest: list[str], known_flags: list[str]) -> None:
    from pipeline.inspection import compare, inspect

    _refuse(rest, known_flags)
    lines = compare(options.path, options.other) if options.other else inspect(options.path, options.rows)
    print_lines(lines)


def _run_verify(options: argparse.Namespace, rest: list[str], known_flags: list[str]) -> None:
    from pipeline.inspection import verify

    _refuse(rest, known_flags)
    print_lines(verify(options.folder))


def print_lines(lines: Iterable[str]) -> None:
    """Print to the end, or until the reader, `head` for one, has seen enough."""
    try:
        for line in lines:
            print(terminal_safe(line))
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered has no reader; the interpreter would try to write it when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(rest: list[str], known_flags: list[str]) -> None:
    if rest:
        raise UsageError(
            "; ".join(f"Unknown argument {flag}.{nearest_name(flag.split('=')[0], known_flags)}" for flag in rest)
        )


def _result_line(manifest: Manifest, output: str) -> str:
    totals = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in manifest.totals.items())
    place = one_line(storage.shown(output))
    return f"{place}: {totals}, {len(manifest.shards)} files, fingerprint {manifest.fingerprint}"


def _report(manifest: Manifest | None, output: str) -> None:
    """Print what a job published; nothing after a dry run."""
    if manifest is None:
        return

    left_out = [f"  left out: {entry.count:,} x {entry.reason} ({entry.source})" for entry in manifest.ledger]
    print_lines([_result_line(manifest, output), *left_out])
