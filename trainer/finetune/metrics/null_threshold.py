"""The threshold above which a question counts as unanswerable.

For each question a model gives its best answer, and a null score: how much likelier it finds that there is no answer
(a probability, or a difference of logits). With a threshold, a question is answered unless its null score is above it.

best_threshold is the search of SQuAD's script, for numbers that are compared with published ones. It has two flaws.
It stops in the middle of questions with equal null scores, where no threshold can. And it says 0.0 where it is best to
answer nothing, which is right for a probability of exactly that, but not for a difference of logits.
choose_threshold has neither, and is what to choose a threshold by.

Source: find_best_thresh of evaluate-v2.0.py (trainer/finetune/metrics/squad.py has the references).

Shape suffixes: N questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.finetune.metrics.squad import Answers, Texts

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Threshold:
    """A question whose null score is above `value` gets no answer; the mean score is then `score`, 0.0 to 1.0."""

    value: float
    score: float


def apply_threshold(predictions: Texts, null_scores: Sequence[float], threshold: float) -> list[str]:
    """Return the predictions, the empty text where the null score is above the threshold."""
    pairs = zip(predictions, null_scores, strict=True)
    return ["" if null_score > threshold else prediction for prediction, null_score in pairs]


def best_threshold(
    predictions: Texts, references: Answers, null_scores: Sequence[float], scores: Sequence[float]
) -> Threshold:
    """Return the threshold that SQuAD's script finds best, and the score that it reports as best_exact or best_f1.

    predictions: the best answers, whether or not a question can be answered.
    null_scores: one for each question. Questions with equal ones are taken in their order.
    scores: the questions' exact_scores or f1_scores with these predictions.
    """
    order_N, total_N1 = totals_by_answered(predictions, references, null_scores, scores)

    best = int(np.argmax(total_N1))
    value = null_scores[order_N[best - 1]] if best > 0 else 0.0
    return Threshold(float(value), float(total_N1[best]) / len(scores))


def choose_threshold(
    predictions: Texts, references: Answers, null_scores: Sequence[float], scores: Sequence[float]
) -> Threshold:
    """Return the threshold with the best score on these questions, of several the lowest. Arguments: best_threshold.

    The score is that of the predictions after apply_threshold; but with an answer that normalization leaves nothing of
    ("The"), the script takes silence for wrong, and so does this. If it is best to answer nothing, the threshold is the
    next number below all null scores.
    """
    order_N, total_N1 = totals_by_answered(predictions, references, null_scores, scores)
    sorted_N = np.asarray(null_scores, dtype=np.float64)[order_N]

    # A threshold can be drawn before the first question, and after each whose successor has a higher null score.
    is_possible_N1 = np.concatenate([[True], sorted_N[1:] > sorted_N[:-1], [True]])
    best = int(np.argmax(np.where(is_possible_N1, total_N1, -np.inf)))

    value = sorted_N[best - 1] if best > 0 else np.nextafter(sorted_N[0], -np.inf)
    return Threshold(float(value), float(total_N1[best]) / len(scores))


def totals_by_answered(
    predictions: Texts, references: Answers, null_scores: Sequence[float], scores: Sequence[float]
) -> tuple[NDArray[np.int64], Floats]:
    """Return the questions by rising null score, int64 (N,), and the total score if the first n of them are answered.

    The totals are float64 (N + 1,), n = 0 to N. Raises ValueError if the arguments differ in length or are empty, or
    if a null score is not finite.
    """
    lengths = {len(predictions), len(references), len(null_scores), len(scores)}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(f"expected as many predictions, references and scores, at least one; their numbers: {lengths}")
    if not np.isfinite(np.asarray(null_scores)).all():
        raise ValueError("a null score is not finite; expected numbers that a threshold can be compared with")

    # Without answers, the questions that cannot be answered are right. Answering such a one loses that point, unless
    # the prediction is empty anyway.
    unanswerable = sum(1 for answers in references if not answers)
    gains = []
    for prediction, answers, score in zip(predictions, references, scores, strict=True):
        if answers:
            gains.append(score)
        else:
            gains.append(-1.0 if prediction else 0.0)

    order_N = np.argsort(np.asarray(null_scores, dtype=np.float64), kind="stable")
    gains_N = np.asarray(gains, dtype=np.float64)[order_N]

    # Added up one after the other from that number, as in the script, so that rounding is the same.
    return order_N, np.cumsum(np.concatenate([[float(unanswerable)], gains_N]))
