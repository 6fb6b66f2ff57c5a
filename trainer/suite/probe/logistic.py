"""Logistic regression by L-BFGS, with scikit-learn's default penalty (C = 1) and therefore the same optimum.

Shape suffixes: N examples, H features, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PENALTY = 1.0
"""The factor of half the sum of squared weights, which is added to the loss summed over examples."""

MAX_ITERATIONS = 1000
"""Maximum iterations of L-BFGS. On standardized features it converges in far fewer."""


@dataclass(frozen=True)
class Classifier:
    """A linear classifier of vectors. Each feature is first standardized to mean 0 and variance 1."""

    means_H: Floats
    deviations_H: Floats
    weights_CH: Floats
    biases_C: Floats

    def predict(self, vectors_NH: NDArray[np.float32]) -> Ints:
        """Return the most likely class of each vector, int64 (N,); of equally likely classes, the first."""
        scaled_NH = (vectors_NH - self.means_H) / self.deviations_H
        logits_NC = scaled_NH @ self.weights_CH.T + self.biases_C
        return np.argmax(logits_NC, axis=1)


def fit(vectors_NH: NDArray[np.float32], classes_N: Ints, count: int) -> Classifier:
    """Return the classifier with the least loss. count: the number of classes, some of which may have no examples."""
    means_H = vectors_NH.mean(axis=0, dtype=np.float64)
    deviations_H = vectors_NH.std(axis=0, dtype=np.float64)
    # A constant feature has no scale. It becomes 0.
    deviations_H[deviations_H == 0] = 1.0
    scaled_NH = (vectors_NH - means_H) / deviations_H

    weights_CH, biases_C = minimize(scaled_NH, classes_N, count)
    return Classifier(means_H, deviations_H, weights_CH, biases_C)


def minimize(scaled_NH: Floats, classes_N: Ints, count: int) -> tuple[Floats, Floats]:
    """Return the weights (C, H) and biases (C,) that minimize cross-entropy plus penalty."""
    from scipy.optimize import minimize as scipy_minimize

    width = scaled_NH.shape[1]
    labels_NC = np.eye(count)[classes_N]

    def loss_and_gradient(flat: Floats) -> tuple[float, Floats]:
        weights_CH, biases_C = unflattened(flat, count, width)

        # Log softmax. Subtracting the largest logit of each example leaves it unchanged and keeps exp from overflowing.
        logits_NC = scaled_NH @ weights_CH.T + biases_C
        logits_NC -= logits_NC.max(axis=1, keepdims=True)
        log_probabilities_NC = logits_NC - np.log(np.exp(logits_NC).sum(axis=1, keepdims=True))

        cross_entropy = -float((labels_NC * log_probabilities_NC).sum())
        penalty = PENALTY / 2 * float((weights_CH**2).sum())

        # The gradient of the cross-entropy with respect to the logits. Biases have no penalty.
        errors_NC = np.exp(log_probabilities_NC) - labels_NC
        weights_gradient_CH = errors_NC.T @ scaled_NH + PENALTY * weights_CH
        biases_gradient_C = errors_NC.sum(axis=0)

        gradient = np.concatenate([weights_gradient_CH.ravel(), biases_gradient_C])
        return cross_entropy + penalty, gradient

    start = np.zeros(count * width + count)
    optimum = scipy_minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options={"maxiter": MAX_ITERATIONS})
    return unflattened(optimum.x, count, width)


def unflattened(flat: Floats, count: int, width: int) -> tuple[Floats, Floats]:
    """Split a flat array into the weights (C, H) and the biases (C,) that follow them."""
    return flat[: count * width].reshape(count, width), flat[count * width :]
