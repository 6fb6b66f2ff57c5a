"""Exact match and F1 of answers to questions, as SQuAD's script scores them.

Answers are compared after normalization, which leaves lowercase words without punctuation and articles. If a question
has several correct answers, the best match counts. For a question without an answer, an empty prediction is correct.

Source: evaluate-v2.0.py of SQuAD 2.0 (Rajpurkar, Jia and Liang, 2018, arXiv:1806.03822;
rajpurkar.github.io/SQuAD-explorer). The script prints percentages; these functions return fractions. On SQuAD 1.1 the
scores also equal those of evaluate-v1.1.py, except if an answer consists only of articles and punctuation: version 1.1
compares it as an empty text, and version 2.0 does not count it among the correct answers.

References are the texts of each question's correct answers, empty if the question cannot be answered.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

Texts = Sequence[str]
Answers = Sequence[Sequence[str]]

SCORES_OF_PARTS = ("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")
"""The script's names for the scores of the questions with answers and of those without."""

ARTICLES = re.compile(r"\b(a|an|the)\b")

WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
"""Deletes ASCII punctuation. Other punctuation stays: the script leaves “quotes” and dashes where they are."""


def exact_match(predictions: Texts, references: Answers) -> float:
    """Return the fraction of questions whose prediction equals a correct answer after normalization."""
    return mean(exact_scores(predictions, references))


def answer_f1(predictions: Texts, references: Answers) -> float:
    """Return the mean word F1 over the questions, each for the correct answer that its prediction matches best."""
    return mean(f1_scores(predictions, references))


def squad_scores(predictions: Texts, references: Answers) -> dict[str, float]:
    """Return all scores that the script reports, by its names: exact, f1 and total, for all questions and for parts.

    HasAns_exact, HasAns_f1 and HasAns_total are for the questions with answers, and NoAns_exact, NoAns_f1 and
    NoAns_total for those without. A part without questions is absent. The totals are numbers of questions.
    """
    exact = exact_scores(predictions, references)
    f1 = f1_scores(predictions, references)
    scores = {"exact": mean(exact), "f1": mean(f1), "total": float(len(references))}

    for name, has_answers in (("HasAns", True), ("NoAns", False)):
        chosen = [number for number, answers in enumerate(references) if bool(answers) == has_answers]
        if chosen:
            scores[f"{name}_exact"] = mean([exact[number] for number in chosen])
            scores[f"{name}_f1"] = mean([f1[number] for number in chosen])
            scores[f"{name}_total"] = float(len(chosen))
    return scores


def scores_of_parts(predictions: Texts, references: Answers) -> dict[str, float]:
    """Return HasAns_exact, HasAns_f1, NoAns_exact and NoAns_f1 of `squad_scores`.

    Returns an empty dict if all questions have answers, as in SQuAD 1.1, since HasAns would repeat the total scores.
    """
    if all(references):
        return {}
    scores = squad_scores(predictions, references)
    return {name: scores[name] for name in SCORES_OF_PARTS if name in scores}


def exact_scores(predictions: Texts, references: Answers) -> list[float]:
    """Return for each question 1.0 if the prediction equals a correct answer after normalization, else 0.0."""
    return best_matches(predictions, references, exact_score)


def f1_scores(predictions: Texts, references: Answers) -> list[float]:
    """Return for each question the word F1 with the best-matching correct answer, from 0.0 to 1.0."""
    return best_matches(predictions, references, f1_score)


def best_matches(
    predictions: Texts, references: Answers, score_of: Callable[[list[str], list[str]], float]
) -> list[float]:
    """Return for each question the prediction's score with the correct answer that it matches best.

    score_of: returns the score of (correct answer, prediction), both as normalized words.
    Raises ValueError if there are no questions, or if predictions and references differ in length.
    """
    if len(predictions) != len(references) or len(references) == 0:
        raise ValueError(
            f"{len(predictions)} predictions and {len(references)} references cannot be compared: expected one text "
            "and one list of answers for each question, of at least one question"
        )

    scores = []
    for prediction, answers in zip(predictions, references, strict=True):
        predicted = normalized_words(prediction)
        scores.append(max(score_of(words, predicted) for words in answers_to_compare(answers)))
    return scores


def answers_to_compare(answers: Sequence[str]) -> list[list[str]]:
    """Return the normalized words of each correct answer.

    Answers without words after normalization ("The") do not count. If no answer remains, returns one without words.
    """
    normalized = [normalized_words(answer) for answer in answers]
    return [words for words in normalized if words] or [[]]


def exact_score(answer: list[str], prediction: list[str]) -> float:
    return float(answer == prediction)


def f1_score(answer: list[str], prediction: list[str]) -> float:
    """Return the F1 of two bags of words: 1.0 if both are empty, 0.0 if only one is."""
    if not answer or not prediction:
        return float(answer == prediction)

    shared = (Counter(answer) & Counter(prediction)).total()
    if shared == 0:
        return 0.0

    # This formula rounds as the script does. The choice of the best threshold can depend on the last bit.
    precision = shared / len(prediction)
    recall = shared / len(answer)
    return 2 * precision * recall / (precision + recall)


def normalized_words(text: str) -> list[str]:
    """Return the lowercase words of a text, without ASCII punctuation and without the articles a, an and the.

    Punctuation is removed first and leaves no space: "the-end" becomes the word "theend".
    """
    plain = text.lower().translate(WITHOUT_PUNCTUATION)
    return ARTICLES.sub(" ", plain).split()


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
