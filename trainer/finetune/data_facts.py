"""Facts about the data of a fine-tuning, for the log, results.json and the report.

They let a reader judge a score: how many examples and labels there are, whether texts are truncated, and what a
constant prediction scores.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from schemas.terminal import counted
from trainer.finetune.examples import Example, is_labeled
from trainer.finetune.files.sets import example_sets
from trainer.finetune.job import Job
from trainer.finetune.results import SeedResult
from trainer.finetune.scores import label_counts, most_frequent_label, scores_of_label
from trainer.finetune.task import DEV, TEST, TRAIN
from trainer.finetune.texts import texts_of
from trainer.logs import logger

MANY_SHARED = 0.1
"""The share of a set that may occur in an earlier set without a warning. Published sets share a few short texts."""

MAX_SHOWN_LABELS = 10
"""The maximum number of labels whose counts are logged."""


def data_facts(job: Job) -> dict[str, Any]:
    """Return the files and the number of examples of each set, those that sets share, and the training set's labels."""
    examples = {TRAIN: len(job.train.examples)}
    examples |= {name: len(others.examples) for name, others in job.others.items()}
    counts = label_counts(job.kind, job.train.examples)
    labels = {str(job.kind.written(label)): count for label, count in sorted(counts.items())}
    files = {
        found.name: [path if "://" in path else os.path.abspath(path) for path in found.paths]
        for found in example_sets(job.task, job.data)
    }
    missing = {name: sum(not is_labeled(example) for example in others.examples) for name, others in job.others.items()}
    return {
        "files": files,
        "examples": examples,
        "shared": shared_examples(job),
        "unlabeled": {name: count for name, count in missing.items() if count},
        "labels": labels,
    }


def baseline_scores(job: Job) -> dict[str, dict[str, float]]:
    """Return what always predicting the most frequent label of the training set scores, by set and then by metric.

    Empty for regressions and spans. Sets without labels are left out.
    """
    label = most_frequent_label(job.kind, job.train.examples)
    if label is None:
        return {}

    scores = {name: scores_of_label(job.kind, others.examples, label) for name, others in job.others.items()}
    return {name: of_set for name, of_set in scores.items() if of_set}


def log_data(job: Job) -> None:
    """Log the sizes of all sets, the labels, and how many training texts reach the maximum length."""
    facts = data_facts(job)
    sizes = [f"{size:,} {name}" for name, size in facts["examples"].items()]
    batch = job.task.training.batch
    steps = counted(-(-len(job.train.features) // batch), "step")
    labels = facts["labels"]
    counts = f"{len(labels)} labels" if len(labels) > MAX_SHOWN_LABELS else shown_labels(labels)
    told = f" ({counts})" if labels else ""
    logger.info("examples: %s%s; %s of %d per epoch", ", ".join(sizes), told, steps, batch)

    if job.kind.max_length < job.task.training.max_length:
        logger.info(
            "training.max_length is %d, but the encoder takes rows of at most %d tokens, so rows have at most %d.",
            job.task.training.max_length,
            job.kind.max_length,
            job.kind.max_length,
        )
    for shared, sentence in zip(facts["shared"], shared_sentences(facts), strict=True):
        if _are_many(shared, facts):
            key = shared["set"] if shared["set"] in (DEV, TEST) else f"extra.{shared['set']}"
            logger.warning("%s Check data.%s, or remove them there.", sentence, key)
        else:
            logger.info("%s", sentence)
    for sentence in unlabeled_sentences(facts):
        logger.info("%s", sentence)
    full = sum(length >= job.kind.max_length for length in job.train.lengths)
    if job.kind.truncates and full > 0:
        logger.info(
            "%d of %d training examples fill a row of %d tokens. Longer texts are truncated.",
            full,
            len(job.train.features),
            job.kind.max_length,
        )


def shared_examples(job: Job) -> list[dict[str, Any]]:
    """Return how many examples of a set have the text of a training example or, in other sets than dev, of a dev one.

    One entry for each two sets that share any, with their names as `set` and `other`, and the number as `examples`.
    """
    found = []
    seen = {TRAIN: set(_texts(job.train.examples))}
    for name, others in job.others.items():
        own = _texts(others.examples)
        counts = {other: sum(text in texts for text in own) for other, texts in seen.items()}
        found += [{"set": name, "other": other, "examples": count} for other, count in counts.items() if count]
        if name == DEV:
            seen[DEV] = set(own)
    return found


def shared_sentences(facts: dict[str, Any]) -> list[str]:
    """Return the entries of `shared_examples` in words, with what it means if they are a tenth of the set or more."""
    sentences = []
    for shared in facts["shared"]:
        name, size = shared["set"], facts["examples"][shared["set"]]
        found = f"{shared['examples']:,} of {size:,} {name} examples are also {shared['other']} examples"
        meaning = ", so their scores do not show how well new text is predicted" if _are_many(shared, facts) else ""
        sentences.append(f"{found}{meaning}.")
    return sentences


def unlabeled_sentences(facts: dict[str, Any]) -> list[str]:
    sentences = []
    for name, count in facts["unlabeled"].items():
        verdict = "has no label, so it is" if count == 1 else "have no label, so they are"
        sentences.append(f"{count:,} of {facts['examples'][name]:,} {name} examples {verdict} not scored.")
    return sentences


def _are_many(shared: dict[str, Any], facts: dict[str, Any]) -> bool:
    return bool(shared["examples"] >= facts["examples"][shared["set"]] * MANY_SHARED)


def _texts(examples: Sequence[Example]) -> list[tuple[str, ...]]:
    return [tuple(texts_of(example)) for example in examples]


def shown_labels(counts: dict[str, int]) -> str:
    """Return the counts of labels as text: "neg: 498; pos: 502". Names may be numbers, hence the colons."""
    return "; ".join(f"{label}: {count:,}" for label, count in counts.items())


def warn_of_guessing(job: Job, best: SeedResult, baseline: dict[str, dict[str, float]]) -> None:
    """Log a warning if even the best seed is no better on the dev set than always predicting the same label."""
    metric = job.task.metrics[0]
    if DEV not in baseline or best.scores[DEV][metric] > baseline[DEV][metric]:
        return

    label = most_frequent_label(job.kind, job.train.examples)
    assert label is not None
    logger.warning(
        'The best dev %s, %.4f, is no better than that of always predicting "%s", %.4f. Raise training.epochs, '
        "which is %d, or try another training.lr, which is %g; see docs/troubleshooting.md.",
        metric,
        best.scores[DEV][metric],
        job.kind.written(label),
        baseline[DEV][metric],
        job.task.training.epochs,
        job.task.training.lr,
    )
