"""Exact match and F1 of Chinese answers, as CMRC 2018 scores them: F1 counts the longest common run of characters.

SQuAD's script splits text at spaces, which Chinese does not use. CMRC's script treats each Chinese character and each
run of other characters as a word, removes its own list of punctuation, and counts the longest run of words that an
answer and a prediction have in common. If there are several correct answers, the best match counts.

Source: cmrc2018_evaluate.py (Cui et al., 2019, arXiv:1810.07366; github.com/ymcui/cmrc2018). This module splits runs
of other characters at spaces, and the script splits them with nltk's tokenizer. Results differ only if such a run
contains ASCII punctuation that is not in the list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from trainer.finetune.metrics.squad import Answers, Texts, mean

PUNCTUATION = "-:_*^/\\~`+=" + "，。：？！“”；’《》……·、" + "「」（）－～『』"
"""The characters that the script removes. Other punctuation stays, such as a left single quote."""

WITHOUT_PUNCTUATION = str.maketrans("", "", PUNCTUATION)

WORD = re.compile(r"[\u4e00-\u9fa5]|[^\s\u4e00-\u9fa5]+")
"""A Chinese character, or a run of other characters without white space."""


def cmrc_exact_match(predictions: Texts, references: Answers) -> float:
    """Return the fraction of questions whose prediction equals a correct answer, ignoring case and punctuation."""
    return mean_of_best(predictions, references, exact_score)


def cmrc_f1(predictions: Texts, references: Answers) -> float:
    """Return the mean F1 over the questions, each for the correct answer that its prediction matches best."""
    return mean_of_best(predictions, references, f1_score)


def mean_of_best(predictions: Texts, references: Answers, score_of: Callable[[str, str], float]) -> float:
    """Return the mean over the questions of a prediction's score with the correct answer that it matches best.

    score_of: returns the score of (correct answer, prediction).
    Raises ValueError if there are no questions, or if predictions and references differ in length.
    """
    if len(predictions) != len(references) or len(references) == 0:
        raise ValueError(f"{len(predictions)} predictions and {len(references)} references cannot be compared")

    scores = []
    for prediction, answers in zip(predictions, references, strict=True):
        # For a question without an answer, the empty text is correct.
        right_answers = answers or [""]
        scores.append(max(score_of(answer, prediction) for answer in right_answers))
    return mean(scores)


def exact_score(answer: str, prediction: str) -> float:
    return float(stripped(answer) == stripped(prediction))


def f1_score(answer: str, prediction: str) -> float:
    """Return the F1 of the longest common run of words, from 0.0 to 1.0. Two texts without words score 1.0."""
    answer_words = WORD.findall(stripped(answer))
    predicted_words = WORD.findall(stripped(prediction))
    if not answer_words or not predicted_words:
        return float(answer_words == predicted_words)

    shared = longest_common_run(answer_words, predicted_words)
    return 2 * shared / (len(answer_words) + len(predicted_words))


def stripped(text: str) -> str:
    """Return a text in lower case without the script's punctuation."""
    return text.lower().strip().translate(WITHOUT_PUNCTUATION)


def longest_common_run(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest run of words that is in both, in O(len(first) * len(second)) time."""
    longest = 0

    # runs[j + 1] is the length of the common run that ends at the current word of `first` and at word j of `second`:
    # one more than the run that ends one word earlier in both.
    runs = [0] * (len(second) + 1)
    for word in first:
        runs_before = runs
        runs = [0] * (len(second) + 1)
        for position, other in enumerate(second):
            if word == other:
                runs[position + 1] = runs_before[position] + 1
        longest = max(longest, *runs)
    return longest
