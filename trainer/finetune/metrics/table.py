"""The metrics by the names that task files use.

Every metric is a function of (predictions, references, labels), and which types these have depends on the task's kind:

    kind              predictions and references, one for each example            labels
    sentence, pair    class ids; floats if the task's labels are numbers          names of the classes; () for numbers
    choice            the choice's number, from 0                                 ()
    tags              for each sentence a list of tag ids, one for each word      names of the tags
    span              predicted: a text; reference: all right answers' texts, () if the question has none    ()

Values are fractions from -1 or 0 to 1. Their sources are in the modules that compute them.
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
"""The kinds whose labels are classes or numbers."""


@dataclass(frozen=True)
class Metric:
    """A metric, and the tasks that it serves.

    function: of predictions, references and labels.
    kinds: of tasks.
    of_numbers: whether labels must be numbers (regression); otherwise they must be classes.
    two_classes: whether there must be exactly two, of which the second is the positive one.
    larger_is_better: whether the best epoch is the one with the largest value.
    """

    function: MetricFunction
    kinds: frozenset[str]
    of_numbers: bool = False
    two_classes: bool = False
    larger_is_better: bool = True


def unlabeled(metric: Callable[[Any, Any], float]) -> MetricFunction:
    """Return a metric that needs no labels as one that is given them."""

    def function(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[str]) -> float:
        return metric(predictions, references)

    return function


def accuracy(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[str]) -> float:
    """Return the fraction of right classes; of tags, the fraction of words with the right tag."""
    if is_nested(references):
        predictions = list(chain.from_iterable(predictions))
        references = list(chain.from_iterable(references))
    return classification.accuracy(predictions, references)


def chunk_f1(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[str]) -> float:
    """Return the F1 of chunks, after naming the tags."""
    return conll.chunk_f1(named(predictions, labels), named(references, labels))


def is_nested(values: Sequence[Any]) -> bool:
    return len(values) > 0 and np.ndim(values[0]) > 0


def named(sentences: Sequence[Sequence[int]], labels: Sequence[str]) -> list[list[str]]:
    """Return the tags' names. An id that is no label raises IndexError."""
    return [[labels[tag] for tag in sentence] for sentence in sentences]


def of_classes(metric: Callable[[Any, Any], float], two_classes: bool = False) -> Metric:
    """Return a metric of the class of a sentence or a pair."""
    return Metric(unlabeled(metric), TEXT_KINDS, two_classes=two_classes)


def of_numbers(metric: Callable[[Any, Any], float]) -> Metric:
    """Return a metric of the number of a sentence or a pair."""
    return Metric(unlabeled(metric), TEXT_KINDS, of_numbers=True)


def of_answers(metric: Callable[[Any, Any], float]) -> Metric:
    """Return a metric of the answers to questions."""
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
"""The first metric of a task decides which epoch is the best."""


def metrics_for(kind: str, has_numbers: bool = False) -> list[str]:
    """Return the names of the metrics that serve a kind of task, in the order of METRICS.

    has_numbers: whether the task's labels are numbers, which they can be in sentences and pairs.
    """
    return [name for name in METRICS if serves(name, kind, has_numbers)]


def serves(name: str, kind: str, has_numbers: bool) -> bool:
    """Return whether a metric serves a kind of task, with labels that are numbers or not."""
    metric = METRICS[name]
    return kind in metric.kinds and metric.of_numbers == has_numbers


def default_metrics(kind: str, has_numbers: bool = False) -> list[str]:
    """Return the metrics of a task that names none."""
    if has_numbers:
        return ["pearson_and_spearman", "pearson", "spearman"]

    defaults = {"tags": ["chunk_f1"], "span": ["answer_f1", "exact_match"]}
    return defaults.get(kind, ["accuracy"])


def unsuitable(name: str, kind: str, has_numbers: bool, number_of_labels: int | None) -> str | None:
    """Return why a metric does not serve a task and what would, or None if it does.

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
