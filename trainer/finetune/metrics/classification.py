"""Accuracy, F1 and Matthews' correlation of predicted classes.

All metrics take class ids as integers, one per example, and return the value of scikit-learn's function of that name,
with 0.0 where the metric is undefined (no positive example predicted or labeled, constant predictions under Matthews).
They raise ValueError if there are no examples, or if predictions and references differ in length.

Sources: table 1 of GLUE (Wang et al., 2018, arXiv:1804.07461) and of SuperGLUE (Wang et al., 2019, arXiv:1905.00537)
say which task uses which metric. Matthews' correlation for more than two classes is R_K of Gorodkin (2004, "Comparing
two K-category assignments by a K-category correlation coefficient").

Shape suffixes: N examples, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
ClassIds = Sequence[int] | Ints

POSITIVE = 1
"""The positive class of binary F1."""


def accuracy(predictions: ClassIds, references: ClassIds) -> float:
    """Return the fraction of examples whose predicted class is correct."""
    predicted_N, labeled_N = checked(predictions, references)
    return float(np.mean(predicted_N == labeled_N))


def f1(predictions: ClassIds, references: ClassIds) -> float:
    """Return the F1 of class 1; every other class counts as negative."""
    predicted_N, labeled_N = checked(predictions, references)
    return f1_of_counts(
        correct=int(np.sum((predicted_N == POSITIVE) & (labeled_N == POSITIVE))),
        predicted=int(np.sum(predicted_N == POSITIVE)),
        labeled=int(np.sum(labeled_N == POSITIVE)),
    )


def micro_f1(predictions: ClassIds, references: ClassIds) -> float:
    """Return the F1 of the counts summed over all classes.

    With one class per example, every wrong prediction is one false positive and one false negative, so this equals
    the accuracy.
    """
    correct_C, predicted_C, labeled_C = counts_by_class(predictions, references)
    return f1_of_counts(int(correct_C.sum()), int(predicted_C.sum()), int(labeled_C.sum()))


def macro_f1(predictions: ClassIds, references: ClassIds) -> float:
    """Return the unweighted mean of the F1 of each class that is predicted or labeled at least once.

    Classes of the task that occur in neither are left out, as in scikit-learn.
    """
    counts = counts_by_class(predictions, references)
    return float(np.mean([f1_of_counts(*map(int, of_class)) for of_class in zip(*counts, strict=True)]))


def matthews(predictions: ClassIds, references: ClassIds) -> float:
    """Return Matthews' correlation, between -1 and 1, for any number of classes (Gorodkin's R_K)."""
    correct_C, predicted_C, labeled_C = counts_by_class(predictions, references)
    examples = int(labeled_C.sum())

    # Covariances of the one-hot matrices of predictions and labels, times the square of the number of examples.
    # With Python's exact integers, constant predictions have a variance of exactly 0 and large products do not
    # overflow.
    covariance = examples * int(correct_C.sum()) - int(predicted_C @ labeled_C)
    predicted_variance = examples**2 - int(predicted_C @ predicted_C)
    labeled_variance = examples**2 - int(labeled_C @ labeled_C)

    if predicted_variance == 0 or labeled_variance == 0:
        return 0.0
    return covariance / sqrt(predicted_variance * labeled_variance)


def accuracy_and_f1(predictions: ClassIds, references: ClassIds) -> float:
    """Return the mean of accuracy and binary F1, GLUE's score for MRPC and QQP."""
    return (accuracy(predictions, references) + f1(predictions, references)) / 2


def accuracy_and_macro_f1(predictions: ClassIds, references: ClassIds) -> float:
    """Return the mean of accuracy and macro F1, SuperGLUE's score for CB."""
    return (accuracy(predictions, references) + macro_f1(predictions, references)) / 2


def f1_of_counts(correct: int, predicted: int, labeled: int) -> float:
    """Return the harmonic mean of correct / predicted and correct / labeled, or 0.0 if it is undefined."""
    if predicted + labeled == 0:
        return 0.0
    return 2 * correct / (predicted + labeled)


def counts_by_class(predictions: ClassIds, references: ClassIds) -> tuple[Ints, Ints, Ints]:
    """Return how often each class is correctly predicted, predicted, and labeled: int64 (C,) each.

    The classes are those that are predicted or labeled at least once, in the order of their ids.
    """
    predicted_N, labeled_N = checked(predictions, references)
    examples = len(labeled_N)

    # Replace ids by positions among the classes that occur, so that ids may be any integers.
    classes_C, positions = np.unique(np.concatenate([predicted_N, labeled_N]), return_inverse=True)
    predicted_N, labeled_N = positions[:examples], positions[examples:]

    correct_C = np.bincount(labeled_N[predicted_N == labeled_N], minlength=len(classes_C))
    predicted_C = np.bincount(predicted_N, minlength=len(classes_C))
    labeled_C = np.bincount(labeled_N, minlength=len(classes_C))
    return correct_C, predicted_C, labeled_C


def checked(predictions: ClassIds, references: ClassIds) -> tuple[Ints, Ints]:
    """Return both as int64 (N,). Raises ValueError if they are not integers, differ in length or are empty."""
    predicted_N = np.asarray(predictions)
    labeled_N = np.asarray(references)

    if predicted_N.shape != labeled_N.shape or labeled_N.ndim != 1 or len(labeled_N) == 0:
        raise ValueError(
            f"predictions of shape {predicted_N.shape} and references of shape {labeled_N.shape} cannot be compared: "
            "both must have one class for each example, of at least one example"
        )
    for values in (predicted_N, labeled_N):
        if not np.issubdtype(values.dtype, np.integer):
            raise ValueError(f"classes must be integers, but their type is {values.dtype}")

    return predicted_N.astype(np.int64), labeled_N.astype(np.int64)
