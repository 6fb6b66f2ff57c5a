"""Scores files of minimal pairs: `python -m trainer.suite.child minimal_pairs FOLDER --files "blimp/*.jsonl"`.

    OUTPUT/files/NAME.json   the scores of one file, written when all its pairs are judged
    OUTPUT/results.json      the mean accuracy over paradigms, and the accuracy of each phenomenon and paradigm

A file that is finished is kept, so the same command continues what was stopped.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from schemas import storage
from schemas.errors import DataError, UsageError
from trainer.command_line import CommandParser, exit_code_of
from trainer.finetune.fingerprint import fingerprint_of
from trainer.finetune.results import RESULTS_FILE
from trainer.logs import logger
from trainer.suite.minimal_pairs.pairs_file import Pair, read_pairs
from trainer.suite.needed_files import joined, matching
from trainer.suite.plan import read_json

SENTENCES_AT_ONCE = 512
"""Sentences whose masked rows are in memory together."""


def main(arguments: list[str], prog: str) -> int:
    """Run the command line and return the exit code."""
    flags = CommandParser(prog=prog)
    flags.add_argument("folder")
    for name in ("--data", "--files", "--output"):
        flags.add_argument(name, required=True)
    flags.add_argument("--variant", choices=("word_l2r", "token"), default="word_l2r")
    flags.add_argument("--random_weights", action="store_true")
    return exit_code_of(lambda: score_files(flags.parse_args(arguments)))


def score_files(options: Any) -> None:
    """Score all files that are not scored yet, and write results.json. Raises DataError and UsageError."""
    paths = [joined(options.data, name) for name in matching(options.data, options.files)]
    if not paths:
        raise DataError(f"{options.data} has no files {options.files}.")
    pairs_of = {path: read_pairs(path) for path in paths}

    output = Path(options.output)
    encoder = fingerprint_of(options.folder)
    identity = {"encoder": encoder, "variant": options.variant, "random_weights": options.random_weights}
    open_model = _once(options)

    counted = []
    for path in paths:
        name = posixpath.basename(path)
        file = output / "files" / f"{name}.json"
        own = identity | {"file": storage.sha256(storage.read(path))}
        found = read_json(file)
        if found and any(found.get(key) != value for key, value in own.items()):
            raise UsageError(
                f"--output {output} holds scores of another encoder or of other pairs. Choose another one."
            )
        if not found:
            opened = open_model()
            with naming(path):
                found = own | judged(opened, pairs_of[path], options.variant)
            storage.publish(str(file), (json.dumps(found) + "\n").encode())
            logger.info("%s: accuracy %.4f", name, found["accuracy"])
        counted.append(found)

    storage.publish(str(output / RESULTS_FILE), (json.dumps(results(identity, counted), indent=1) + "\n").encode())


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Put the name of a file before errors about its sentences."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _once(options: Any) -> Any:
    """Return a function that opens the model at its first call: a finished folder needs none."""
    opened: list[tuple[Any, Any]] = []

    def open_model() -> tuple[Any, Any]:
        from trainer.suite.minimal_pairs.model import open_masked_lm

        if not opened:
            opened.append(open_masked_lm(options.folder, options.random_weights))
        return opened[0]

    return open_model


def judged(opened: tuple[Any, Any], pairs: Sequence[Pair], variant: str) -> dict[str, Any]:
    """Return how many pairs of each paradigm a model judges rightly, and the seconds that took.

    A pair counts if the acceptable sentence is the more likely one; two equal sentences count as wrong.
    """
    from trainer.suite.minimal_pairs.likelihood import log_likelihoods

    started = perf_counter()
    model, tokenizer = opened
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    scores: list[float] = []
    for start in range(0, len(sentences), SENTENCES_AT_ONCE):
        part = sentences[start : start + SENTENCES_AT_ONCE]
        scores += log_likelihoods(model, tokenizer, part, within_words=variant == "word_l2r")

    right: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for pair, good, bad in zip(pairs, scores[::2], scores[1::2], strict=True):
        right[pair.phenomenon, pair.paradigm].append(good > bad)

    paradigms = [
        {"phenomenon": phenomenon, "paradigm": paradigm, "pairs": len(found), "right": sum(found)}
        for (phenomenon, paradigm), found in sorted(right.items())
    ]
    accuracy = sum(row["right"] for row in paradigms) / len(pairs)
    return {"accuracy": accuracy, "paradigms": paradigms, "seconds": perf_counter() - started}


def results(identity: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of results.json: the scores of all files together.

    The accuracy is the mean over paradigms, each of which counts the same. That is what BLiMP reports (all of its
    paradigms have 1,000 pairs) and what BabyLM computes, whose paradigms differ in size (`process_results` in
    sentence_zero_shot/run.py of https://github.com/babylm/evaluation-pipeline-2025). A phenomenon's accuracy is over
    its pairs, as there.
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
    return sum(row["right"] for row in rows) / sum(row["pairs"] for row in rows)
