"""Scores files of minimal pairs, as a job of a suite: FOLDER --data DIR --files "blimp/*.jsonl" --output DIR.

    OUTPUT/files/NAME.json   the scores of one file, written when all its pairs are scored
    OUTPUT/results.json      the mean accuracy over paradigms, and the accuracy of each phenomenon and paradigm

Scores of finished files are kept, so the same command continues after a stop.
"""

from __future__ import annotations

import argparse
import json
import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import transformers
from transformers import AutoModelForMaskedLM

from schemas import storage
from schemas.errors import DataError, UsageError
from trainer.command_line import exit_code_of
from trainer.finetune.files.json_files import parse_json
from trainer.finetune.files.records import read_text, split_lines
from trainer.finetune.files.sets import path_in
from trainer.finetune.inputs import fingerprint_of, read_json, write_json
from trainer.finetune.opening import any_tokenizer, read_config
from trainer.finetune.results import RESULTS_FILE
from trainer.logs import logger
from trainer.suite.frozen_encoder import job_parser, open_model
from trainer.suite.likelihood import log_likelihoods
from trainer.suite.needed_files import matching

SENTENCES_AT_ONCE = 512
"""Sentences whose masked rows are in memory at the same time."""

GOOD = "sentence_good"
BAD = "sentence_bad"

NO_HEAD = (
    "cannot judge minimal pairs: it has no head that predicts masked tokens. XLNet, replaced-token detectors, bare "
    "encoders and fine-tuned folders have none."
)


def main(arguments: list[str], prog: str) -> int:
    flags = job_parser(prog, required=("--data", "--files", "--output"))
    flags.add_argument("--variant", choices=("word_l2r", "token"), default="word_l2r")
    return exit_code_of(lambda: score_files(flags.parse_args(arguments)))


def score_files(options: argparse.Namespace) -> None:
    """Score all files that are not scored yet, and write results.json. Raises DataError and UsageError."""
    paths = [path_in(options.data, name) for name in matching(options.data, options.files)]
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
        scores = read_json(file) or {}
        if any(scores.get(key) != value for key, value in identity_of_file.items()):
            # The model is opened at the first file that needs it. If all files are scored, it is never loaded.
            model, tokenizer = opened()
            try:
                scores = identity_of_file | scores_of(model, tokenizer, pairs_of[path], options.variant)
            except DataError as error:
                raise DataError(f"{path}: {error}") from error
            storage.publish(str(file), (json.dumps(scores) + "\n").encode())
            logger.info("%s: accuracy %.4f", name, scores["accuracy"])
        files.append(scores)

    content = results(identity, files)
    write_json(output / RESULTS_FILE, content)


# ---- The pairs ----


@dataclass(frozen=True)
class Pair:
    """An acceptable and an unacceptable sentence, their paradigm, and the phenomenon that the paradigm belongs to."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str


def read_pairs(path: str) -> list[Pair]:
    """Return the pairs of a file in BLiMP's format (arXiv:1912.00582). path: may be a URL.

    Each line is an object with sentence_good and sentence_bad. The keys UID and linguistics_term name its paradigm, by
    default the file's name, and its phenomenon, by default the paradigm.
    Raises DataError that names the line and what is wrong with it.
    """
    pairs = []
    for number, line in enumerate(split_lines(read_text(path)), start=1):
        if line.strip():
            place = f"{path} line {number}"
            pairs.append(_pair(parse_json(line, place), posixpath.splitext(posixpath.basename(path))[0], place))
    if not pairs:
        raise DataError(f"{path} has no pairs. Expected lines with {GOOD} and {BAD}.")
    return pairs


def _pair(content: Any, file_name: str, place: str) -> Pair:
    if not isinstance(content, dict):
        raise DataError(f"{place}: {content!r:.60} is not an object. Expected one with {GOOD} and {BAD}.")
    for key in (GOOD, BAD):
        if not isinstance(content.get(key), str) or not content[key].strip():
            raise DataError(f"{place}: {key} is {content.get(key)!r:.60}. Expected a sentence.")

    paradigm = str(content.get("UID") or file_name)
    return Pair(content[GOOD], content[BAD], paradigm, str(content.get("linguistics_term") or paradigm))


# ---- The model ----


def open_masked_lm(folder: str, random_weights: bool) -> tuple[Any, Any]:
    """Return the model, in evaluation mode on the job's device, and its tokenizer.

    Raises UsageError with the reason if the folder holds no masked language model, and DataError for damaged weights.
    """
    config = read_config(folder)
    if type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        raise UsageError(f"{folder} {NO_HEAD}")

    tokenizer = any_tokenizer(folder)
    if not tokenizer.is_fast or tokenizer.mask_token_id is None:
        raise UsageError(f"{folder} has no mask token, or no tokenizer.json. Minimal pairs need both.")

    model, missing = open_model(AutoModelForMaskedLM, folder, random_weights)
    # A head that is missing from the folder would have random weights, so every score would be random.
    if missing:
        raise UsageError(f"{folder} {NO_HEAD}")
    return model, tokenizer


# ---- The scores ----


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
    return sum(row["right"] for row in rows) / sum(row["pairs"] for row in rows)
