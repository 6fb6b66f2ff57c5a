"""Logistic regression by L-BFGS, with the penalty of scikit-learn's default (C = 1): the same optimum.

Shape suffixes: N examples, H features, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PENALTY = 1.0
"""The weight of half the sum of squared weights, relative to the summed loss of the examples."""

MAX_ITERATIONS = 1000


@dataclass(frozen=True)
class Classifier:
    """A linear classifier of vectors that are brought to mean 0 and variance 1 in each feature first."""

    means_H: Floats
    deviations_H: Floats
    weights_CH: Floats
    biases_C: Floats

    def predict(self, vectors_NH: NDArray[np.float32]) -> Ints:
        """Return the most likely class of each vector; of equally likely ones the first."""
        scaled_NH = (vectors_NH - self.means_H) / self.deviations_H
        return np.argmax(scaled_NH @ self.weights_CH.T + self.biases_C, axis=1)


def fit(vectors_NH: NDArray[np.float32], classes_N: Ints, count: int) -> Classifier:
    """Return the classifier of `count` classes that fits best. Classes may be missing from the examples."""
    means_H = vectors_NH.mean(axis=0, dtype=np.float64)
    deviations_H = vectors_NH.std(axis=0, dtype=np.float64)
    deviations_H[deviations_H == 0] = 1.0  # a feature that is always the same tells nothing
    scaled_NH = (vectors_NH - means_H) / deviations_H

    weights_CH, biases_C = minimize(scaled_NH, classes_N, count)
    return Classifier(means_H, deviations_H, weights_CH, biases_C)


def minimize(scaled_NH: Floats, classes_N: Ints, count: int) -> tuple[Floats, Floats]:
    """Return the weights (C, H) and biases (C) with the least loss."""
    from scipy.optimize import minimize as scipy_minimize

    width = scaled_NH.shape[1]
    labels_NC = np.eye(count)[classes_N]

    def loss_and_gradient(flat: Floats) -> tuple[float, Floats]:
        weights_CH, biases_C = unflattened(flat, count, width)
        logits_NC = scaled_NH @ weights_CH.T + biases_C
        logits_NC -= logits_NC.max(axis=1, keepdims=True)
        log_probabilities_NC = logits_NC - np.log(np.exp(logits_NC).sum(axis=1, keepdims=True))

        loss = -float((labels_NC * log_probabilities_NC).sum()) + PENALTY / 2 * float((weights_CH**2).sum())
        errors_NC = np.exp(log_probabilities_NC) - labels_NC
        gradient_CH = errors_NC.T @ scaled_NH + PENALTY * weights_CH
        return loss, np.concatenate([gradient_CH.ravel(), errors_NC.sum(axis=0)])

    start = np.zeros(count * width + count)
    found = scipy_minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options={"maxiter": MAX_ITERATIONS})
    return unflattened(found.x, count, width)


def unflattened(flat: Floats, count: int, width: int) -> tuple[Floats, Floats]:
    return flat[: count * width].reshape(count, width), flat[count * width :]
