"""The metrics, by the names that task files use.

Every metric is a function of (predictions, references, labels). Their types depend on the task's kind:

    kind              predictions and references, one per example                 labels
    sentence, pair    class ids; floats for a regression                          class names; () for a regression
    choice            position of the choice, from 0                              ()
    tags              a list of tag ids per sentence, one id per word             tag names
    span              prediction: a text; reference: the texts of all correct answers, empty if there are none    ()

Values are fractions from -1 or 0 to 1, and 0.0 where a metric is undefined: F1 without a positive example, and a
correlation with a constant, since a model that always predicts the same has found no relation. Then scores can still be
averaged over seeds and compared between epochs.

scikit-learn and scipy compute most of them. Their import takes a second, so it waits until a metric is computed.

Sources: table 1 of GLUE (Wang et al., 2018, arXiv:1804.07461) and of SuperGLUE (Wang et al., 2019, arXiv:1905.00537)
say which task uses which metric. answers.py and chunks.py name theirs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np

from trainer.finetune.metrics import answers
from trainer.finetune.metrics.chunks import chunk_f1, in_iobes

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
    kinds: frozenset[str] = TEXT_KINDS
    of_numbers: bool = False
    two_classes: bool = False


def of_classes(name: str, **options: Any) -> MetricFunction:
    """Return the metric of classes that scikit-learn has under a name. Tags are compared word by word."""

    def metric(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[str]) -> float:
        from sklearn import metrics

        if np.ndim(references[0]) > 0:
            predictions = list(chain.from_iterable(predictions))
            references = list(chain.from_iterable(references))
        with warnings.catch_warnings():
            # It warns if only one class occurs.
            warnings.simplefilter("ignore")
            return float(getattr(metrics, name)(references, predictions, **options))

    return metric


def f1(average: str) -> MetricFunction:
    return of_classes("f1_score", average=average, zero_division=0.0)


def of_numbers(name: str) -> MetricFunction:
    def metric(predictions: Sequence[float], references: Sequence[float], labels: Sequence[str]) -> float:
        from scipy import stats

        if len(set(predictions)) < 2 or len(set(references)) < 2:
            return 0.0
        with warnings.catch_warnings():
            # It warns of predictions that are nearly constant.
            warnings.simplefilter("ignore")
            correlation = float(getattr(stats, name)(predictions, references).statistic)
        return correlation if isfinite(correlation) else 0.0

    return metric


def mean_of(first: MetricFunction, second: MetricFunction) -> MetricFunction:
    return lambda *arguments: (first(*arguments) + second(*arguments)) / 2


def of_tags(metric: Callable[[Any, Any], float]) -> MetricFunction:
    """Return a metric of the names of tags, in IOBES, as one of their ids."""

    def function(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[str]) -> float:
        names = [in_iobes(label) for label in labels]
        named = [[[names[tag] for tag in sentence] for sentence in tags] for tags in (predictions, references)]
        return metric(*named)

    return function


def of_answers(score: Callable[[str, Sequence[str]], float]) -> Metric:
    return Metric(lambda made, given, labels: answers.mean_score(score, made, given), frozenset({"span"}))


ACCURACY = of_classes("accuracy_score")
PEARSON = of_numbers("pearsonr")
SPEARMAN = of_numbers("spearmanr")

METRICS: dict[str, Metric] = {
    "accuracy": Metric(ACCURACY, TEXT_KINDS | {"choice", "tags"}),
    # Classes
    "f1": Metric(f1("binary"), two_classes=True),
    "micro_f1": Metric(f1("micro")),
    "macro_f1": Metric(f1("macro")),
    "matthews": Metric(of_classes("matthews_corrcoef")),
    "accuracy_and_f1": Metric(mean_of(ACCURACY, f1("binary")), two_classes=True),
    "accuracy_and_macro_f1": Metric(mean_of(ACCURACY, f1("macro"))),
    # Numbers
    "pearson": Metric(PEARSON, of_numbers=True),
    "spearman": Metric(SPEARMAN, of_numbers=True),
    "pearson_and_spearman": Metric(mean_of(PEARSON, SPEARMAN), of_numbers=True),
    # Tags
    "chunk_f1": Metric(of_tags(chunk_f1), frozenset({"tags"})),
    # Answers
    "exact_match": of_answers(answers.squad_exact),
    "answer_f1": of_answers(answers.squad_f1),
    "cmrc_exact_match": of_answers(answers.cmrc_exact),
    "cmrc_f1": of_answers(answers.cmrc_f1),
}
"""The metrics by name. A task may use several; the first one that it names decides which epoch is the best."""


def metrics_for(kind: str, has_numbers: bool = False) -> list[str]:
    """Return the names of the metrics that apply to a kind of task. has_numbers: whether the task is a regression."""
    return [name for name, metric in METRICS.items() if kind in metric.kinds and metric.of_numbers == has_numbers]


def unsuitable(name: str, kind: str, has_numbers: bool, number_of_labels: int | None) -> str | None:
    """Return why a metric does not apply to a task and which ones do, or None if it applies.

    number_of_labels: None if it is not known yet.
    """
    possible = metrics_for(kind, has_numbers)
    task = f'a task of kind "{kind}"'
    if has_numbers:
        task += " whose labels are numbers"

    if name not in METRICS:
        return f"is not a metric; {task} can have: {', '.join(possible)}"

    if name not in possible:
        return f"does not serve {task}, which can have: {', '.join(possible)}"

    if METRICS[name].two_classes and number_of_labels not in (None, 2):
        return (
            f"needs two labels, of which the second is the positive one, but there are {number_of_labels}; "
            '"macro_f1" serves any number'
        )

    return None
