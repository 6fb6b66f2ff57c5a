"""The command line of `clozeline export` and `python -m trainer.export`."""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import suppress
from importlib.util import find_spec

from schemas.command_line import CommandParser, Flags, positive
from schemas.errors import INTERRUPTED, UsageError
from trainer.command_line import exit_code_of, path_to_name, raise_at_ctrl_c
from trainer.export.request import Writing, check_request
from trainer.logs import logger, show_place


def main(arguments: list[str] | None = None, prog: str = "python -m trainer.export") -> int:
    """Export and return the process's exit code. prog: the command's name in help and in errors."""
    try:
        return exit_code_of(lambda: _export(parser(prog).parse_args(arguments)))
    except KeyboardInterrupt:
        print(
            "clozeline: interrupted. The run was not changed; run the same command again, with --overwrite if "
            "the export is there.",
            file=sys.stderr,
        )
        return INTERRUPTED


def _export(options: argparse.Namespace) -> None:
    if options.best and options.average > 1:
        raise UsageError("--average takes the last checkpoints, not the best one. Leave --best out.")

    if options.private and not options.push_to_hub:
        raise UsageError("--private is for --push_to_hub OWNER/NAME. Add that, or leave --private out.")

    writing = writing_of(options)
    if find_spec("safetensors") is not None:  # otherwise that is said first
        check_request(options.run, options.output, options.step, options.best, writing)

    # This import loads torch, which takes seconds, so it waits until the request is known to be valid.
    show_place(f"exporting {options.run}")
    from trainer.export.convert import export

    raise_at_ctrl_c()
    logger.info("%s", export(options.run, options.output, options.step, options.best, writing))


def writing_of(options: argparse.Namespace) -> Writing:
    """Return how the export is written that a command line asks for."""
    return Writing(
        overwrite=options.overwrite,
        max_shard_bytes=int(options.max_shard_gigabytes * 10**9),
        average=options.average,
        pooling=options.sentence_transformers,
        onnx=options.onnx,
        license=options.license or "",
        repository=options.push_to_hub or "",
        private=options.private,
    )


def parser(prog: str = "python -m trainer.export") -> CommandParser:
    top = CommandParser(
        prog,
        "Write a checkpoint as a Hugging Face folder.",
        [f"{prog} out/run --output out/hf", f"{prog} out/run --output out/best --best --overwrite"],
        "0 done, 2 usage or configuration, 3 bad data, 4 bad checkpoint, 5 storage, 130 interrupted",
    )
    what = "run.output of the recipe: a folder or a URL"
    top.add_argument("run", type=path_to_name, metavar="RUN_DIR", help=what)

    group = top.add_argument_group("which checkpoint")
    which = group.add_mutually_exclusive_group()
    what = "export the checkpoint of this step; the newest by default"
    which.add_argument("--step", type=int, metavar="N", help=what)
    which.add_argument("--best", action="store_true", help="export the checkpoint with the lowest held-out loss")
    what = "export the mean weights of the last K checkpoints, with --step of the last K up to that one"
    group.add_argument("--average", type=positive, default=1, metavar="K", help=what)

    group = top.add_argument_group("what is written")
    group.add_argument("--output", type=path_to_name, required=True, metavar="HF_DIR", help="folder or URL to write")
    what = "replace the files of an earlier export in HF_DIR; other files are kept"
    group.add_argument("--overwrite", action="store_true", help=what)
    what = "cut larger weights into several files of at most this size"
    group.add_argument("--max_shard_gigabytes", type=_gigabytes, default=5.0, metavar="GB", help=what)

    group = top.add_argument_group("for other tools")
    what = "add the files with which SentenceTransformer(HF_DIR) returns the mean of a text's tokens"
    group.add_argument("--sentence_transformers", action="store_true", help=what)
    what = 'add onnx/model.onnx, checked with ONNX Runtime; needs the extra "onnx", and is not for XLNet'
    group.add_argument("--onnx", action="store_true", help=what)
    _add_hub_flags(top.add_argument_group("the Hugging Face Hub"))
    return top


def _add_hub_flags(group: Flags) -> None:
    what = "upload the export to this repository too, with the token in HF_TOKEN or of `hf auth login`"
    group.add_argument("--push_to_hub", metavar="OWNER/NAME", help=what)
    group.add_argument("--private", action="store_true", help="create that repository as a private one")
    what = "the model's license for its card, as the Hub spells it, such as apache-2.0"
    group.add_argument("--license", type=_license, metavar="ID", help=what)


def _license(text: str) -> str:
    if not re.fullmatch("[a-z0-9][a-z0-9.-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an identifier of a license, such as apache-2.0 or cc-by-4.0")
    return text


def _gigabytes(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < 1e9:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of gigabytes, such as 2.5")
