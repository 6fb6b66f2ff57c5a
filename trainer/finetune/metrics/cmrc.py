"""Exact match and F1 of Chinese answers, as CMRC 2018 scores them: by characters, and by what lies together.

SQuAD's script splits at spaces, which Chinese does not have. CMRC's takes each Chinese character for a word of its own
and runs of other letters for words, leaves out its list of punctuation, and counts the longest run of words that an
answer and a prediction have in common. Of several right answers the best match counts.

Source: cmrc2018_evaluate.py (Cui et al., 2019, arXiv:1810.07366; github.com/ymcui/cmrc2018). Runs of other letters are
split at spaces here and by nltk's tokenizer there, which differs where other ASCII punctuation stands in them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainer.finetune.metrics.squad import Answers, Texts, mean

PUNCTUATION = "-:_*^/\\~`+=" + "，。：？！“”；’《》……·、" + "「」（）－～『』"
"""What the script leaves out. Other punctuation stays, a left single quote for one."""

WITHOUT_PUNCTUATION = str.maketrans("", "", PUNCTUATION)

WORD = re.compile(r"[\u4e00-\u9fa5]|[^\s\u4e00-\u9fa5]+")
"""A Chinese character, or a run of anything else without spaces."""


def cmrc_exact_match(predictions: Texts, references: Answers) -> float:
    """Return the fraction of questions whose prediction is a right answer, but for case and punctuation."""
    return mean([max(exact_score(a, p) for a in answers) for p, answers in compared(predictions, references)])


def cmrc_f1(predictions: Texts, references: Answers) -> float:
    """Return the mean over the questions of the F1 of the longest run that a prediction shares with a right answer."""
    return mean([max(f1_score(a, p) for a in answers) for p, answers in compared(predictions, references)])


def compared(predictions: Texts, references: Answers) -> list[tuple[str, Sequence[str]]]:
    """Return each prediction with its right answers. A question that has none is right if the prediction is empty.

    Raises ValueError for no questions, or predictions and references of different lengths.
    """
    if len(predictions) != len(references) or len(references) == 0:
        raise ValueError(f"{len(predictions)} predictions and {len(references)} references cannot be compared")
    return [(prediction, answers or [""]) for prediction, answers in zip(predictions, references, strict=True)]


def exact_score(answer: str, prediction: str) -> float:
    return float(stripped(answer) == stripped(prediction))


def f1_score(answer: str, prediction: str) -> float:
    """Return the F1 of the longest common run of words. Two texts without words are the same."""
    answer_words, predicted = WORD.findall(stripped(answer)), WORD.findall(stripped(prediction))
    if not answer_words or not predicted:
        return float(answer_words == predicted)
    return 2 * longest_common_run(answer_words, predicted) / (len(answer_words) + len(predicted))


def stripped(text: str) -> str:
    """Return a text in lower case without the script's punctuation."""
    return text.lower().strip().translate(WITHOUT_PUNCTUATION)


def longest_common_run(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest run of words that both have, in as many comparisons as their product."""
    longest = 0
    runs = [0] * (len(second) + 1)  # of the runs that end at each word of `second`, and at the last word of `first`
    for word in first:
        runs = [0, *(before + 1 if word == other else 0 for before, other in zip(runs, second, strict=False))]
        longest = max(longest, *runs)
    return longest
