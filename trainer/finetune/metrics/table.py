"""The metrics, by the names that task files use.

Every metric is a function of (predictions, references, labels). Their types depend on the task's kind:

    kind              predictions and references, one per example                 labels
    sentence, pair    class ids; floats for a regression                          class names; () for a regression
    choice            position of the choice, from 0                              ()
    tags              a list of tag ids per sentence, one id per word             tag names
    span              prediction: a text; reference: the texts of all correct answers, empty if there are none    ()

Values are fractions from -1 or 0 to 1. The modules that compute them name their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from trainer.finetune.metrics import classification, cmrc, conll, correlation, squad

MetricFunction = Callable[[Sequence[Any], Sequence[Any], Sequence[str]], float]

TEXT_KINDS = frozenset({"sentence", "pair"})
"""The kinds of tasks with one label per example, a class or a number."""


@dataclass(frozen=True)
class Metric:
    """A metric, and the tasks that it applies to.

    function: takes predictions, references and labels.
    kinds: the kinds of tasks that can use the metric.
    of_numbers: whether labels must be numbers (regression); otherwise they must be classes.
    two_classes: whether there must be exactly two classes, of which the second is the positive one.
    The largest value of each metric is the best one.
    """

    function: MetricFunction
    kinds: frozenset[str]
    of_numbers: bool = False
    two_classes: bool = False


def unlabeled(metric: Callable[[Any, Any], float]) -> MetricFunction:
    """Wrap a metric of (predictions, references) as a function that also takes labels, and ignores them."""

    def function(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[str]) -> float:
        return metric(predictions, references)

    return function


def accuracy(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[str]) -> float:
    """Return the fraction of correct classes; for tags, the fraction of words with the correct tag."""
    if is_nested(references):
        predictions = list(chain.from_iterable(predictions))
        references = list(chain.from_iterable(references))
    return classification.accuracy(predictions, references)


def chunk_f1(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[str]) -> float:
    """Return the F1 of chunks, given tags as ids."""
    return conll.chunk_f1(named(predictions, labels), named(references, labels))


def is_nested(values: Sequence[Any]) -> bool:
    return len(values) > 0 and np.ndim(values[0]) > 0


def named(sentences: Sequence[Sequence[int]], labels: Sequence[str]) -> list[list[str]]:
    """Return the names of tags. Raises IndexError for an id that is not in `labels`."""
    return [[labels[tag] for tag in sentence] for sentence in sentences]


def of_classes(metric: Callable[[Any, Any], float], two_classes: bool = False) -> Metric:
    """Return a metric of the kinds sentence and pair with classes as labels."""
    return Metric(unlabeled(metric), TEXT_KINDS, two_classes=two_classes)


def of_numbers(metric: Callable[[Any, Any], float]) -> Metric:
    """Return a metric of the kinds sentence and pair with numbers as labels."""
    return Metric(unlabeled(metric), TEXT_KINDS, of_numbers=True)


def of_answers(metric: Callable[[Any, Any], float]) -> Metric:
    """Return a metric of the kind span."""
    return Metric(unlabeled(metric), frozenset({"span"}))


METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy, TEXT_KINDS | {"choice", "tags"}),
    # Classes
    "f1": of_classes(classification.f1, two_classes=True),
    "micro_f1": of_classes(classification.micro_f1),
    "macro_f1": of_classes(classification.macro_f1),
    "matthews": of_classes(classification.matthews),
    "accuracy_and_f1": of_classes(classification.accuracy_and_f1, two_classes=True),
    "accuracy_and_macro_f1": of_classes(classification.accuracy_and_macro_f1),
    # Numbers
    "pearson": of_numbers(correlation.pearson),
    "spearman": of_numbers(correlation.spearman),
    "pearson_and_spearman": of_numbers(correlation.pearson_and_spearman),
    # Tags
    "chunk_f1": Metric(chunk_f1, frozenset({"tags"})),
    # Answers
    "exact_match": of_answers(squad.exact_match),
    "answer_f1": of_answers(squad.answer_f1),
    "cmrc_exact_match": of_answers(cmrc.cmrc_exact_match),
    "cmrc_f1": of_answers(cmrc.cmrc_f1),
}
"""The metrics by name. A task may use several; the first one that it names decides which epoch is the best."""


def metrics_for(kind: str, has_numbers: bool = False) -> list[str]:
    """Return the names of the metrics that apply to a kind of task, in the order of METRICS.

    has_numbers: whether the task is a regression, which the kinds sentence and pair allow.
    """
    return [name for name in METRICS if serves(name, kind, has_numbers)]


def serves(name: str, kind: str, has_numbers: bool) -> bool:
    """Return whether a metric applies to a kind of task. has_numbers: whether the task is a regression."""
    metric = METRICS[name]
    return kind in metric.kinds and metric.of_numbers == has_numbers


def default_metrics(kind: str, has_numbers: bool = False) -> list[str]:
    """Return the metrics of a task whose file names none. has_numbers: whether the task is a regression."""
    if has_numbers:
        return ["pearson_and_spearman", "pearson", "spearman"]

    defaults = {"tags": ["chunk_f1"], "span": ["answer_f1", "exact_match"]}
    return defaults.get(kind, ["accuracy"])


def unsuitable(name: str, kind: str, has_numbers: bool, number_of_labels: int | None) -> str | None:
    """Return why a metric does not apply to a task and which ones do, or None if it applies.

    number_of_labels: None if it is not known yet.
    """
    possible = ", ".join(metrics_for(kind, has_numbers))
    task = f'a task of kind "{kind}"'
    if has_numbers:
        task += " whose labels are numbers"

    if name not in METRICS:
        return f"is not a metric; {task} can have: {possible}"

    if not serves(name, kind, has_numbers):
        return f"does not serve {task}, which can have: {possible}"

    if METRICS[name].two_classes and number_of_labels not in (None, 2):
        return (
            f"needs two labels, of which the second is the positive one, but there are {number_of_labels}; "
            '"macro_f1" serves any number'
        )

    return None
