"""Exact match and F1 of answers, and thresholds for unanswerable questions, as SQuAD's script scores them.

An answer is compared after normalization, which leaves lower-case words without punctuation and articles. Of several
right answers the best match counts. A question without any answer is right if the prediction is empty.

Source: evaluate-v2.0.py of SQuAD 2.0 (Rajpurkar, Jia and Liang, 2018, arXiv:1806.03822;
rajpurkar.github.io/SQuAD-explorer). The script prints percentages, and here they are fractions. On SQuAD 1.1 the
numbers are those of evaluate-v1.1.py, too, except where an answer consists of articles and punctuation alone: version
1.1 compares it as an empty text, and version 2.0 does not count it among the right answers.

References are the texts of each question's right answers, () if it cannot be answered.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

Texts = Sequence[str]
Answers = Sequence[Sequence[str]]

SCORES_OF_PARTS = ("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")
"""The script's names for the scores of questions that have an answer, and of those that have none."""

ARTICLES = re.compile(r"\b(a|an|the)\b")

WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
"""Deletes ASCII punctuation. Other punctuation stays: the script leaves “quotes” and dashes where they are."""


def exact_match(predictions: Texts, references: Answers) -> float:
    """Return the fraction of questions whose prediction is a right answer, once normalized."""
    return mean(exact_scores(predictions, references))


def answer_f1(predictions: Texts, references: Answers) -> float:
    """Return the mean over the questions of the F1 of words that a prediction shares with the best right answer."""
    return mean(f1_scores(predictions, references))


def squad_scores(predictions: Texts, references: Answers) -> dict[str, float]:
    """Return all that the script reports, by its own names: exact and f1, and both for two parts of the questions.

    HasAns_exact and HasAns_f1 are there if some questions have answers, NoAns_exact and NoAns_f1 if some have none.
    HasAns_total and NoAns_total are how many.
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

    Empty if all questions have answers, as in SQuAD 1.1, where HasAns would repeat the scores of all questions.
    """
    if all(references):
        return {}
    scores = squad_scores(predictions, references)
    return {name: scores[name] for name in SCORES_OF_PARTS if name in scores}


def exact_scores(predictions: Texts, references: Answers) -> list[float]:
    """Return for each question 1.0 if the prediction is a right answer, else 0.0."""
    return best_matches(predictions, references, exact_score)


def f1_scores(predictions: Texts, references: Answers) -> list[float]:
    """Return for each question the F1 of words that the prediction shares with the best right answer, 0.0 to 1.0."""
    return best_matches(predictions, references, f1_score)


def best_matches(
    predictions: Texts, references: Answers, score_of: Callable[[list[str], list[str]], float]
) -> list[float]:
    """Return for each question the prediction's score with the right answer that it matches best.

    score_of: of the normalized words of a right answer and of the prediction.
    Raises ValueError for no questions, or predictions and references of different lengths.
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
    """Return the normalized words of each right answer; of a question that cannot be answered, one without words.

    Answers of which normalization leaves nothing ("The") do not count, unless there are no others.
    """
    normalized = [normalized_words(answer) for answer in answers]
    return [words for words in normalized if words] or [[]]


def exact_score(answer: list[str], prediction: list[str]) -> float:
    return float(answer == prediction)


def f1_score(answer: list[str], prediction: list[str]) -> float:
    """Return the F1 of two bags of words. Two empty ones are the same, and an empty one shares nothing with others."""
    if not answer or not prediction:
        return float(answer == prediction)

    shared = (Counter(answer) & Counter(prediction)).total()
    if shared == 0:
        return 0.0

    # Rounded as in the script, since the best threshold may hang on the last bit.
    precision = shared / len(prediction)
    recall = shared / len(answer)
    return 2 * precision * recall / (precision + recall)


def normalized_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without ASCII punctuation and without the articles a, an and the.

    Punctuation goes first and leaves no space: "the-end" is the word "theend".
    """
    plain = text.lower().translate(WITHOUT_PUNCTUATION)
    return ARTICLES.sub(" ", plain).split()


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
