"""The baseline that scores are compared with: always predicting the most frequent label of the training set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from trainer.finetune.examples import Example
from trainer.finetune.kinds.kind import Kind
from trainer.finetune.scores import score


def label_counts(kind: Kind[Any, Any], examples: Sequence[Example]) -> Counter[int]:
    """Return how often each label id occurs in labeled examples. Empty for regressions and spans."""
    return Counter(kind.label_ids(examples))


def name_of_label(kind: Kind[Any, Any], label: int) -> str:
    """Return the name of a label id. The choices of an example have no names, only positions."""
    if not kind.labels:
        return str(label)
    return kind.labels[label]


def most_frequent_label(kind: Kind[Any, Any], train: Sequence[Example]) -> int | None:
    """Return the most frequent label id of a training set, the lowest of several; None for regressions and spans."""
    counts = label_counts(kind, train)
    if not counts:
        return None

    highest = max(counts.values())
    return min(label for label, count in counts.items() if count == highest)


def scores_of_label(kind: Kind[Any, Any], examples: Sequence[Example], label: int) -> dict[str, float]:
    """Return the task's metrics of giving all labeled examples, or all their words, the same label."""
    guesses = []
    for example in examples:
        guesses.append(kind.constant_prediction(example, label))

    return score(kind, examples, guesses)
