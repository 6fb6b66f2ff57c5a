"""Facts about the data of a fine-tuning, for the log, results.json and the report.

They let a reader judge a score: how many examples and labels there are, whether texts are truncated, and what a
constant prediction scores.
"""

from __future__ import annotations

import os
from typing import Any

from schemas.errors import UsageError
from trainer.finetune.baseline import label_counts, label_name, most_frequent_label, scores_of_label
from trainer.finetune.files.sets import example_sets
from trainer.finetune.job import DEV, Job
from trainer.finetune.kinds.kind import Kind
from trainer.finetune.results import SeedResult
from trainer.finetune.scores import all_labeled
from trainer.finetune.task import Task
from trainer.logs import logger

TRAIN = "train"

MAX_SHOWN_LABELS = 10
"""The maximum number of labels whose counts are logged."""

KINDS_OF_ONE_TEXT = {"sentence", "tags"}
"""All other kinds put two texts into a row."""

TRUNCATED_KINDS = {"sentence", "pair", "choice"}
"""The kinds span and tags divide long texts into several rows instead."""


def check_room(kind: Kind[Any, Any]) -> None:
    """Raise UsageError if a row has no room for at least one token of each of its texts."""
    texts = 1 if kind.task.kind in KINDS_OF_ONE_TEXT else 2
    special = kind.tokenizer.num_special_tokens_to_add(pair=texts == 2)
    if kind.max_length < special + texts:
        raise UsageError(
            f"training.max_length is {kind.task.training.max_length}, so a row has {kind.max_length} tokens, of which "
            f"{special} are special. Set it to at least {special + texts} for a task of kind {kind.task.kind}; most "
            "texts need 128 or more."
        )


def files_of(task: Task, folder: str) -> dict[str, list[str]]:
    """Return the paths of each set's files, absolute or URLs. folder: the folder that relative paths start from."""
    return {
        found.name: [path if "://" in path else os.path.abspath(path) for path in found.paths]
        for found in example_sets(task, folder)
    }


def data_facts(job: Job) -> dict[str, Any]:
    """Return the files and the number of examples of each set, and the count of each label in the training set."""
    examples = {TRAIN: len(job.train.examples)}
    examples |= {name: len(others.examples) for name, others in job.others.items()}
    counts = label_counts(job.kind, job.train.examples)
    labels = {label_name(job.kind, label): count for label, count in sorted(counts.items())}
    return {"files": job.files, "examples": examples, "labels": labels}


def baseline_scores(job: Job) -> dict[str, dict[str, float]]:
    """Return what always predicting the most frequent label of the training set scores, by set and then by metric.

    Empty for regressions and spans. Sets without labels are left out.
    """
    label = most_frequent_label(job.kind, job.train.examples)
    if label is None:
        return {}

    labeled = {name: others.examples for name, others in job.others.items() if all_labeled(others.examples)}
    return {name: scores_of_label(job.kind, examples, label) for name, examples in labeled.items()}


def log_data(job: Job) -> None:
    """Log the sizes of all sets, the labels, and how many training texts reach the maximum length."""
    facts = data_facts(job)
    sizes = [f"{size:,} {name}" for name, size in facts["examples"].items()]
    batch = job.task.training.batch
    steps = -(-len(job.train.features) // batch)
    logger.info("examples: %s%s; %d steps of %d per epoch", ", ".join(sizes), _labels(facts["labels"]), steps, batch)

    if job.kind.max_length < job.task.training.max_length:
        logger.info(
            "training.max_length is %d, but the encoder takes rows of at most %d tokens.",
            job.task.training.max_length,
            job.kind.max_length,
        )
    full = sum(feature.length >= job.kind.max_length for feature in job.train.features)
    if job.task.kind in TRUNCATED_KINDS and full > 0:
        logger.info(
            "%d of %d training examples fill a row of %d tokens. What is longer is truncated.",
            full,
            len(job.train.features),
            job.kind.max_length,
        )


def _labels(counts: dict[str, int]) -> str:
    """Return the counts of labels as part of a log line: " (neg 498, pos 502)"."""
    if not counts:
        return ""
    if len(counts) > MAX_SHOWN_LABELS:
        return f" ({len(counts)} labels)"
    return f" ({', '.join(f'{label} {count:,}' for label, count in counts.items())})"


def warn_of_guessing(job: Job, best: SeedResult, baseline: dict[str, dict[str, float]]) -> None:
    """Log a warning if even the best seed is no better on the dev set than always predicting the same label."""
    metric = job.task.metrics[0]
    if DEV not in baseline or best.scores[DEV][metric] > baseline[DEV][metric]:
        return
    label = most_frequent_label(job.kind, job.train.examples)
    assert label is not None
    logger.warning(
        'the dev %s, %.4f, is not above %.4f, which always predicting "%s" scores. Lower training.lr, which is %g, '
        "or give more epochs or examples.",
        metric,
        best.scores[DEV][metric],
        baseline[DEV][metric],
        label_name(job.kind, label),
        job.task.training.lr,
    )
