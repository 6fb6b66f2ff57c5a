"""Scores files of minimal pairs: `python -m trainer.suite.child minimal_pairs FOLDER --files "blimp/*.jsonl"`.

    OUTPUT/files/NAME.json   the scores of one file, written when all its pairs are scored
    OUTPUT/results.json      the mean accuracy over paradigms, and the accuracy of each phenomenon and paradigm

Scores of finished files are kept, so the same command continues after a stop.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from schemas import storage
from schemas.errors import DataError, UsageError
from trainer.command_line import exit_code_of
from trainer.finetune.fingerprint import fingerprint_of
from trainer.logs import logger
from trainer.suite.job_command import job_parser, publish_results
from trainer.suite.minimal_pairs.likelihood import log_likelihoods
from trainer.suite.minimal_pairs.model import open_masked_lm
from trainer.suite.minimal_pairs.pairs_file import Pair, read_pairs
from trainer.suite.needed_files import joined, matching
from trainer.suite.plan import read_json

SENTENCES_AT_ONCE = 512
"""Sentences whose masked rows are in memory at the same time."""


def main(arguments: list[str], prog: str) -> int:
    """Run the command line and return the exit code."""
    flags = job_parser(prog, required=("--data", "--files", "--output"))
    flags.add_argument("--variant", choices=("word_l2r", "token"), default="word_l2r")
    return exit_code_of(lambda: score_files(flags.parse_args(arguments)))


def score_files(options: argparse.Namespace) -> None:
    """Score all files that are not scored yet, and write results.json. Raises DataError and UsageError."""
    paths = [joined(options.data, name) for name in matching(options.data, options.files)]
    if not paths:
        raise DataError(f"{options.data} has no files {options.files}.")
    # Read all files first, so that an error in the last one does not appear after hours of scoring.
    pairs_of = {path: read_pairs(path) for path in paths}

    encoder = fingerprint_of(options.folder)
    identity = {"encoder": encoder, "variant": options.variant, "random_weights": options.random_weights}

    @cache
    def opened() -> tuple[Any, Any]:
        return open_masked_lm(options.folder, options.random_weights)

    output = Path(options.output)
    files = []
    for path in paths:
        name = posixpath.basename(path)
        file = output / "files" / f"{name}.json"
        identity_of_file = identity | {"file": storage.sha256(storage.read(path))}
        scores = _scored_before(file, identity_of_file, output)
        if scores is None:
            # The model is opened at the first file that needs it. If all files are scored, it is never loaded.
            model, tokenizer = opened()
            with naming(path):
                scores = identity_of_file | scores_of(model, tokenizer, pairs_of[path], options.variant)
            storage.publish(str(file), (json.dumps(scores) + "\n").encode())
            logger.info("%s: accuracy %.4f", name, scores["accuracy"])
        files.append(scores)

    publish_results(output, results(identity, files))


def _scored_before(file: Path, identity: Mapping[str, Any], output: Path) -> dict[str, Any] | None:
    """Return the scores that an earlier start wrote, None if there are none.

    Raises UsageError if they are of another encoder, variant or file.
    """
    scores = read_json(file)
    if not scores:
        return None
    if any(scores.get(key) != value for key, value in identity.items()):
        raise UsageError(f"--output {output} holds scores of another encoder or of other pairs. Choose another one.")
    return scores


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Prefix errors about sentences with the path of their file."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def scores_of(model: Any, tokenizer: Any, pairs: Sequence[Pair], variant: str) -> dict[str, Any]:
    """Return how many pairs of each paradigm a model gets right, the accuracy over all pairs, and the seconds it took.

    A pair is right if the acceptable sentence is more likely than the other one. Equal likelihoods count as wrong.
    """
    started = perf_counter()
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    likelihoods: list[float] = []
    for start in range(0, len(sentences), SENTENCES_AT_ONCE):
        part = sentences[start : start + SENTENCES_AT_ONCE]
        likelihoods += log_likelihoods(model, tokenizer, part, within_words=variant == "word_l2r")

    right: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for pair, good, bad in zip(pairs, likelihoods[::2], likelihoods[1::2], strict=True):
        right[pair.phenomenon, pair.paradigm].append(good > bad)

    paradigms = []
    for (phenomenon, paradigm), of_pairs in sorted(right.items()):
        row = {"phenomenon": phenomenon, "paradigm": paradigm, "pairs": len(of_pairs), "right": sum(of_pairs)}
        paradigms.append(row)
    return {"accuracy": share_right(paradigms), "paradigms": paradigms, "seconds": perf_counter() - started}


def results(identity: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of results.json: the scores of all files together.

    The accuracy is the unweighted mean over paradigms, as BLiMP reports it (all of its paradigms have 1,000 pairs) and
    as BabyLM computes it, whose paradigms differ in size (`process_results` in sentence_zero_shot/run.py of
    https://github.com/babylm/evaluation-pipeline-2025). As in BabyLM's code, the accuracy of a phenomenon is over all
    its pairs.
    """
    rows = [row for file in files for row in file["paradigms"]]
    by_phenomenon: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    by_paradigm: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_phenomenon[row["phenomenon"]].append(row)
        by_paradigm[row["paradigm"]].append(row)

    paradigms = {name: share_right(of_paradigm) for name, of_paradigm in by_paradigm.items()}
    return {
        **identity,
        "accuracy": fmean(paradigms.values()),
        "pairs": sum(row["pairs"] for row in rows),
        "phenomena": {name: share_right(of_phenomenon) for name, of_phenomenon in sorted(by_phenomenon.items())},
        "paradigms": paradigms,
        "seconds": sum(file["seconds"] for file in files),
    }


def share_right(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the fraction of right pairs over all pairs of some paradigms."""
    return sum(row["right"] for row in rows) / sum(row["pairs"] for row in rows)
