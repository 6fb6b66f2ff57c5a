"""Exact match and F1 of answers to questions, by the rules of SQuAD's and of CMRC 2018's evaluation scripts.

References are the texts of each question's correct answers, empty if it cannot be answered; then the empty text is
correct. If a question has several correct answers, the one that the prediction matches best counts.

SQuAD: texts are compared as lowercase words without ASCII punctuation and articles, and F1 counts the words that two
texts share. Source: evaluate-v2.0.py (Rajpurkar, Jia and Liang, 2018, arXiv:1806.03822;
rajpurkar.github.io/SQuAD-explorer). The scores of SQuAD 1.1 equal those of evaluate-v1.1.py, except for an answer of
only articles and punctuation, which version 2.0 does not count among the correct ones.

CMRC 2018: each Chinese character and each run of other characters is a word, the script's list of punctuation is
removed, and F1 counts the longest run of words that two texts share. Source: cmrc2018_evaluate.py (Cui et al., 2019,
arXiv:1810.07366; github.com/ymcui/cmrc2018). Runs of other characters are split at spaces here, and by nltk's tokenizer
there; results differ only if such a run contains ASCII punctuation that is not in the list.

Shape suffixes: N questions.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

import numpy as np

Texts = Sequence[str]
Answers = Sequence[Sequence[str]]

ARTICLES = re.compile(r"\b(a|an|the)\b")

WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
"""Deletes ASCII punctuation. Other punctuation stays: SQuAD's script leaves “quotes” and dashes where they are."""

WITHOUT_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=" + "，。：？！“”；’《》……·、" + "「」（）－～『』")
"""Deletes the characters that CMRC's script removes. Other punctuation stays, such as a left single quote."""

CMRC_WORD = re.compile(r"[\u4e00-\u9fa5]|[^\s\u4e00-\u9fa5]+")
"""A Chinese character, or a run of other characters without white space."""


def mean_score(score: Callable[[str, Sequence[str]], float], predictions: Texts, references: Answers) -> float:
    """Return the mean over all questions of one of the scores below."""
    scores = [score(prediction, answers) for prediction, answers in zip(predictions, references, strict=True)]
    return sum(scores) / len(scores)


def scores_of_parts(predictions: Texts, references: Answers) -> dict[str, float]:
    """Return HasAns_exact, HasAns_f1, NoAns_exact and NoAns_f1, SQuAD's names for scores of parts of the questions.

    HasAns are the questions with answers, NoAns those without. A part without questions is absent. Returns an empty
    dict if all questions have answers, as in SQuAD 1.1, since HasAns would repeat the total scores.
    """
    if all(references):
        return {}

    scores = {}
    for name, has_answers in (("HasAns", True), ("NoAns", False)):
        part = [number for number, answers in enumerate(references) if bool(answers) == has_answers]
        if part:
            of_part = [predictions[number] for number in part], [references[number] for number in part]
            scores[f"{name}_exact"] = mean_score(squad_exact, *of_part)
            scores[f"{name}_f1"] = mean_score(squad_f1, *of_part)
    return scores


def best_threshold(predictions: Texts, references: Answers, null_scores: Sequence[float]) -> float:
    """Return the threshold with the best F1 on these questions, the lowest of several.

    predictions: the best answer to each question, whether or not the question can be answered.
    null_scores: how likely each question has no answer; those above the threshold get none.
    If it is best to answer nothing, the threshold is the largest float below all null scores.

    The search is that of SQuAD's script (find_best_thresh) without two flaws: the script may separate questions with
    equal null scores, which no threshold can do, and it returns 0.0 if it is best to answer nothing, which is right for
    probabilities but not for differences of logits.
    """
    # If nothing is answered, exactly the unanswerable questions are correct. Answering one of those loses its point,
    # unless the prediction is empty anyway.
    gains = [
        squad_f1(prediction, answers) if answers else -float(bool(prediction))
        for prediction, answers in zip(predictions, references, strict=True)
    ]

    order_N = np.argsort(np.asarray(null_scores, dtype=np.float64), kind="stable")
    sorted_N = np.asarray(null_scores, dtype=np.float64)[order_N]

    # Entry n is the total score if the first n questions in that order are answered and the others are not. cumsum adds
    # one by one, as the script does, so that rounding is the same.
    unanswerable = sum(1.0 for answers in references if not answers)
    total_N1 = np.cumsum([unanswerable, *np.asarray(gains)[order_N]])

    # A threshold can lie before the first question, after the last one, or between two with different null scores.
    is_possible_N1 = np.concatenate([[True], sorted_N[1:] > sorted_N[:-1], [True]])
    answered = int(np.argmax(np.where(is_possible_N1, total_N1, -np.inf)))
    return float(sorted_N[answered - 1] if answered > 0 else np.nextafter(sorted_N[0], -np.inf))


# Scores of one prediction with the correct answer that it matches best, by each script


def squad_exact(prediction: str, answers: Sequence[str]) -> float:
    return float(squad_words(prediction) in map(squad_words, counted_by_squad(answers)))


def squad_f1(prediction: str, answers: Sequence[str]) -> float:
    predicted, scores = squad_words(prediction), []
    for correct in map(squad_words, counted_by_squad(answers)):
        scores.append(_f1_of_words(predicted, correct, shared=(Counter(predicted) & Counter(correct)).total()))
    return max(scores)


def cmrc_exact(prediction: str, answers: Sequence[str]) -> float:
    return float(cmrc_text(prediction) in map(cmrc_text, answers or [""]))


def cmrc_f1(prediction: str, answers: Sequence[str]) -> float:
    predicted, scores = CMRC_WORD.findall(cmrc_text(prediction)), []
    for correct in (CMRC_WORD.findall(cmrc_text(answer)) for answer in answers or [""]):
        longest_run = SequenceMatcher(None, predicted, correct, autojunk=False).find_longest_match()
        scores.append(_f1_of_words(predicted, correct, shared=longest_run.size))
    return max(scores)


def counted_by_squad(answers: Sequence[str]) -> Sequence[str]:
    """Return the correct answers: not those without words after normalization ("The"), and "" if there are none."""
    return [answer for answer in answers if squad_words(answer)] or [""]


def _f1_of_words(predicted: list[str], correct: list[str], shared: int) -> float:
    """Return the F1 of two texts that share some words: 1.0 if neither has a word, 0.0 if only one has."""
    if not predicted or not correct:
        return float(predicted == correct)
    if shared == 0:
        return 0.0

    # This formula rounds as SQuAD's script does. The choice of the best threshold can depend on the last bit.
    precision = shared / len(predicted)
    recall = shared / len(correct)
    return 2 * precision * recall / (precision + recall)


def squad_words(text: str) -> list[str]:
    """Return the words that SQuAD's script compares. Removed punctuation leaves no space: "the-end" -> "theend"."""
    return ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split()


def cmrc_text(text: str) -> str:
    """Return a text in lower case without the punctuation that CMRC's script removes."""
    return text.lower().strip().translate(WITHOUT_CMRC_PUNCTUATION)
