"""Chooses the threshold above which a question counts as unanswerable.

For each question a model gives its best answer and a null score, which says how likely it is that there is no answer (a
probability, or a difference of logits). A question is answered unless its null score is above the threshold.

The search is that of SQuAD's script (find_best_thresh of evaluate-v2.0.py; trainer/finetune/metrics/squad.py has the
references) without two flaws: the script may separate questions with equal null scores, which no threshold can do, and
it returns 0.0 if it is best to answer nothing, which is right for probabilities but not for differences of logits.

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
    """A threshold on null scores, and the mean score of the questions with it.

    value: a question whose null score is above it gets no answer. score: from 0.0 to 1.0.
    """

    value: float
    score: float


def apply_threshold(predictions: Texts, null_scores: Sequence[float], threshold: float) -> list[str]:
    """Return the predictions, with "" for questions whose null score is above the threshold."""
    final = []
    for prediction, null_score in zip(predictions, null_scores, strict=True):
        is_answered = null_score <= threshold
        final.append(prediction if is_answered else "")
    return final


def choose_threshold(
    predictions: Texts, references: Answers, null_scores: Sequence[float], scores: Sequence[float]
) -> Threshold:
    """Return the threshold with the best score on these questions; of equally good ones, the lowest.

    predictions: the best answer to each question, whether or not the question can be answered.
    null_scores: one for each question. scores: the exact_scores or f1_scores of these predictions.
    The score is that of apply_threshold's predictions, with one exception: if the only correct answer is empty after
    normalization ("The"), an empty prediction counts as wrong, as in the script. If it is best to answer nothing, the
    threshold is the largest float below all null scores.
    Raises ValueError if the arguments differ in length or are empty, or if a null score is not finite.
    """
    order_N, total_N1 = totals_by_answered(predictions, references, null_scores, scores)
    sorted_N = np.asarray(null_scores, dtype=np.float64)[order_N]

    # A threshold can lie before the first question, after the last one, or between two with different null scores.
    rises_between = sorted_N[1:] > sorted_N[:-1]
    is_possible_N1 = np.concatenate([[True], rises_between, [True]])
    possible_total_N1 = np.where(is_possible_N1, total_N1, -np.inf)
    answered = int(np.argmax(possible_total_N1))

    if answered > 0:
        value = sorted_N[answered - 1]
    else:
        value = np.nextafter(sorted_N[0], -np.inf)
    return Threshold(float(value), float(total_N1[answered]) / len(scores))


def totals_by_answered(
    predictions: Texts, references: Answers, null_scores: Sequence[float], scores: Sequence[float]
) -> tuple[NDArray[np.int64], Floats]:
    """Return the order of the questions by null score, and the total score for each number of answered questions.

    Order: int64 (N,), indices of questions by ascending null score. Totals: float64 (N + 1,); entry n is the total if
    the first n questions in that order are answered and the others are not.
    Raises ValueError if the arguments differ in length or are empty, or if a null score is not finite.
    """
    lengths = {len(predictions), len(references), len(null_scores), len(scores)}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(f"expected as many predictions, references and scores, at least one; their numbers: {lengths}")
    if not np.isfinite(np.asarray(null_scores)).all():
        raise ValueError("a null score is not finite; expected numbers that a threshold can be compared with")

    # If nothing is answered, exactly the unanswerable questions are correct. Answering one of those loses its point,
    # unless the prediction is empty anyway.
    unanswerable = sum(1 for answers in references if not answers)
    gains = []
    for prediction, answers, score in zip(predictions, references, scores, strict=True):
        if answers:
            gains.append(score)
        else:
            gains.append(-1.0 if prediction else 0.0)

    order_N = np.argsort(np.asarray(null_scores, dtype=np.float64), kind="stable")
    gains_N = np.asarray(gains, dtype=np.float64)[order_N]

    # cumsum adds the gains one by one to that number, as the script does, so that rounding is the same.
    total_N1 = np.cumsum(np.concatenate([[float(unanswerable)], gains_N]))
    return order_N, total_N1
