"""The command line of `clozeline export` and `python -m trainer.export`."""

from __future__ import annotations

import argparse
import re
import signal
import sys

from schemas.errors import INTERRUPTED, UsageError
from schemas.urls import normal
from trainer.command_line import command_parser, exit_code_of, whole_number_from
from trainer.logs import logger


def main(arguments: list[str] | None = None, prog: str = "python -m trainer.export") -> int:
    """Export and return the process's exit code. prog: the command's name in help and in errors."""
    try:
        return exit_code_of(lambda: _export(parser(prog).parse_args(arguments)))
    except KeyboardInterrupt:
        print("clozeline: interrupted. The run was not changed; run the same command again.", file=sys.stderr)
        return INTERRUPTED


def _export(options: argparse.Namespace) -> None:
    if options.best and options.average > 1:
        raise UsageError("--average takes the last checkpoints, not the best one. Leave --best out.")

    if options.private and not options.push_to_hub:
        raise UsageError("--private is for --push_to_hub OWNER/NAME. Add that, or leave --private out.")

    # This import loads torch, which takes seconds, so it waits until the flags are known to be valid.
    from trainer.export.convert import export
    from trainer.export.folder import Writing

    signal.signal(signal.SIGINT, signal.default_int_handler)
    writing = Writing(
        overwrite=options.overwrite,
        max_shard_bytes=int(options.max_shard_gigabytes * 10**9),
        average=options.average,
        pooling=options.sentence_transformers,
        onnx=options.onnx,
        license=options.license or "",
        repository=options.push_to_hub,
        private=options.private,
    )
    logger.info("%s", export(options.run, options.output, options.step, options.best, writing))


def parser(prog: str = "python -m trainer.export") -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = command_parser(prog, "Write a checkpoint as a Hugging Face folder.")
    top.add_argument("run", type=normal, metavar="RUN_DIR", help="run.output of the recipe: a folder or a URL")
    top.add_argument("--output", type=normal, required=True, metavar="HF_DIR", help="folder or URL to write")

    which = top.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="export the checkpoint of this step; the newest by default")
    which.add_argument("--best", action="store_true", help="export the checkpoint with the lowest held-out loss")

    top.add_argument(
        "--average",
        type=whole_number_from(1),
        default=1,
        metavar="K",
        help="export the mean weights of the last K checkpoints, with --step of the last K up to that one",
    )
    top.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the files of an earlier export in HF_DIR; other files are kept",
    )
    top.add_argument(
        "--max_shard_gigabytes",
        type=_gigabytes,
        default=5.0,
        metavar="GB",
        help="cut larger weights into several files of at most this size (default: %(default)g)",
    )
    top.add_argument(
        "--sentence_transformers",
        action="store_true",
        help="add the files with which SentenceTransformer(HF_DIR) returns the mean of a text's tokens",
    )
    top.add_argument(
        "--onnx",
        action="store_true",
        help='add onnx/model.onnx, checked with ONNX Runtime; needs the extra "onnx", and is not for XLNet',
    )

    top.add_argument(
        "--license",
        type=_license,
        metavar="ID",
        help="the model's license for its card, as the Hub spells it, such as apache-2.0",
    )
    top.add_argument(
        "--push_to_hub",
        default="",
        metavar="OWNER/NAME",
        help="upload the export to this repository on the Hugging Face Hub too, with the token in HF_TOKEN or of "
        "`hf auth login`",
    )
    top.add_argument("--private", action="store_true", help="create that repository as a private one")
    return top


def _license(text: str) -> str:
    """Return an identifier that can stand in the card's header."""
    if not re.fullmatch("[a-z0-9][a-z0-9.-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an identifier of a license, such as apache-2.0 or cc-by-4.0")
    return text


def _gigabytes(text: str) -> float:
    """Return a positive number of gigabytes. argparse turns the error into its own."""
    gigabytes = float(text)
    if not 0 < gigabytes < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of gigabytes")
    return gigabytes
