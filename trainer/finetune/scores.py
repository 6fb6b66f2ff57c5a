"""Scores predictions with the metrics that a task names, and chooses the null threshold of a question task."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from trainer.finetune.examples import Example, SpanExample, is_labeled
from trainer.finetune.kinds.kind import Kind
from trainer.finetune.kinds.span import Prediction
from trainer.finetune.metrics.null_threshold import apply_threshold, choose_threshold
from trainer.finetune.metrics.squad import f1_scores, scores_of_parts
from trainer.finetune.metrics.table import METRICS
from trainer.finetune.task import Task

SQUAD_METRICS = frozenset({"answer_f1", "exact_match"})


def score(kind: Kind[Any, Any], examples: Sequence[Example], final: Sequence[Any]) -> dict[str, float]:
    """Return the task's metrics by name, in the task's order. All examples must have labels.

    final: predictions as `finished` returns them.
    For tasks with SQuAD's metrics in which some questions have no answer, the scores of answerable and of unanswerable
    questions follow, under the names that SQuAD's evaluation script uses.
    """
    references = kind.references(examples)
    scores = {name: METRICS[name].function(final, references, kind.labels) for name in kind.task.metrics}

    if not SQUAD_METRICS.isdisjoint(kind.task.metrics):
        scores |= scores_of_parts(final, references)
    return scores


def finished(predictions: Sequence[Any], threshold: float | None) -> list[Any]:
    """Return predictions in the form that metrics take: for spans, the text, or "" above the threshold.

    threshold: the null score above which a question gets no answer; None for kinds other than span, whose predictions
    are returned unchanged.
    """
    if threshold is None:
        return list(predictions)
    texts = [prediction.text for prediction in predictions]
    return apply_threshold(texts, [prediction.null_score for prediction in predictions], threshold)


def threshold_for(
    task: Task, train: Sequence[Example], kind: Kind[Any, Any], dev: Sequence[Example], predictions: Sequence[Any]
) -> float | None:
    """Return the null score above which a question gets no answer; None if the task's kind is not span.

    It is infinite if all questions of the training set have an answer, as in SQuAD 1.1. Otherwise it is the task's
    training.null_threshold, or, if that is "best", the threshold with the best F1 on these predictions for the dev set.
    """
    if task.kind != "span":
        return None
    if not any(isinstance(example, SpanExample) and example.is_impossible for example in train):
        return inf
    if task.training.null_threshold != "best":
        return task.training.null_threshold
    return best_threshold(kind.references(dev), predictions)


def best_threshold(references: Sequence[Any], predictions: Sequence[Prediction]) -> float:
    """Return the threshold with the best F1 on the given questions; if several are equally good, the lowest."""
    texts = [prediction.text for prediction in predictions]
    null_scores = [prediction.null_score for prediction in predictions]
    return choose_threshold(texts, references, null_scores, f1_scores(texts, references)).value


def all_labeled(examples: Sequence[Example]) -> bool:
    """Return whether every example has a label."""
    return all(is_labeled(example) for example in examples)
