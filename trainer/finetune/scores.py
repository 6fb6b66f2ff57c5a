"""Scores predictions by the metrics that a task names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.finetune.examples import Example, is_labeled
from trainer.finetune.kinds.kind import Kind
from trainer.finetune.kinds.span import Answer
from trainer.finetune.metrics.squad import best_threshold
from trainer.finetune.metrics.table import METRICS


def score(
    kind: Kind[Any, Any], examples: Sequence[Example], predictions: Sequence[Any], threshold: float | None = None
) -> dict[str, float]:
    """Return the task's metrics, in its order. All examples have labels.

    threshold: the margin above which a question is answered; if None, the task's, or the best for these examples.
    """
    references = kind.references(examples)
    if kind.task.kind == "span":
        if threshold is None:
            threshold = threshold_of(kind, examples, predictions)
        predictions = answered(predictions, threshold)
    return {name: METRICS[name].compute(predictions, references) for name in kind.task.metrics}


def threshold_of(kind: Kind[Any, Any], examples: Sequence[Example], answers: Sequence[Answer]) -> float:
    """Return the margin above which a question is answered: the task's, or the best one for labeled examples."""
    threshold = kind.task.training.null_threshold
    if threshold != "best":
        return threshold
    return best_threshold([answer.text for answer in answers], [answer.margin for answer in answers], kind.references(examples))


def answered(answers: Sequence[Answer], threshold: float) -> list[str]:
    """Return the text of each answer, empty where its margin is not above the threshold."""
    return [answer.text if answer.margin > threshold else "" for answer in answers]


def all_labeled(examples: Sequence[Example]) -> bool:
    """Return whether every example says what is right."""
    return all(is_labeled(example) for example in examples)
