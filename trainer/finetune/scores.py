"""Scores predictions with the metrics that a task names, and those of always predicting the most frequent label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

# metric_table.py imports it when it computes a metric. If it is not installed, that must be told before training.
import sklearn  # noqa: F401

from schemas.errors import UsageError
from trainer.finetune.examples import Example, classes_of, is_labeled
from trainer.finetune.files.records import listed
from trainer.finetune.kinds.kind import Kind
from trainer.finetune.metrics.answers import scores_of_parts
from trainer.finetune.metrics.chunks import have_prefixes
from trainer.finetune.metrics.metric_table import METRICS, unsuitable
from trainer.finetune.task import Task

SQUAD_METRICS = frozenset({"answer_f1", "exact_match"})


def check_metrics_of_labels(task: Task, labels: Sequence[str]) -> None:
    """Raise UsageError if a metric does not fit the labels, which may be known only from the training set."""
    if "chunk_f1" in task.metrics and not have_prefixes(labels):
        raise UsageError(
            'metrics, unset or set, has "chunk_f1", which counts chunks by prefixes such as B- and I-, but the tags '
            f'are {listed(labels)}. Set metrics = ["accuracy"], or write the tags with prefixes.'
        )
    for metric in task.metrics:
        reason = unsuitable(metric, task.kind, task.is_regression, len(labels) if labels else None)
        if reason is not None:
            raise UsageError(f'metrics has "{metric}", which {reason}. The labels are {", ".join(labels)}.')


def score(kind: Kind, examples: Sequence[Example], final: Sequence[Any]) -> dict[str, float]:
    """Return the task's metrics by name, in the task's order, of the examples with a label; empty if none has one.

    final: predictions as `Kind.final` returns them.
    For tasks with SQuAD's metrics in which some questions have no answer, the scores of answerable and of unanswerable
    questions follow, under the names that SQuAD's evaluation script uses.
    """
    labeled = [(example, made) for example, made in zip(examples, final, strict=True) if is_labeled(example)]
    if not labeled:
        return {}
    final = [made for _, made in labeled]
    references = kind.references([example for example, _ in labeled])
    scores = {name: METRICS[name].function(final, references, kind.labels) for name in kind.task.metrics}

    if not SQUAD_METRICS.isdisjoint(kind.task.metrics):
        scores |= scores_of_parts(final, references)
    return scores


def label_counts(kind: Kind, train: Sequence[Example]) -> Counter[int]:
    """Return how many training examples, or words, have each label id. Empty for regressions and spans."""
    return Counter(label for example in train for label in classes_of(example)) if kind.has_classes else Counter()


def most_frequent_label(kind: Kind, train: Sequence[Example]) -> int | None:
    """Return the most frequent label id of a training set, the lowest of several; None for regressions and spans."""
    counts = label_counts(kind, train)
    return min(counts, key=lambda label: (-counts[label], label), default=None)


def scores_of_label(kind: Kind, examples: Sequence[Example], label: int) -> dict[str, float]:
    """Return the task's metrics of giving all labeled examples, or all their words, the same label."""
    references = kind.references(examples)
    return score(kind, examples, [[label] * len(one) if isinstance(one, list) else label for one in references])
