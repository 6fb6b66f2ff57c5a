"""SQuAD 2.0's published rules, step by step and without regular expressions."""

from __future__ import annotations

PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


def is_word_character(character: str) -> bool:
    return character.isalnum() or character == "_"


def normalized(text: str) -> str:
    """Lower the text, delete ASCII punctuation, replace whole words a, an, the by a space, leave single spaces."""
    kept = [character for character in text.lower() if character not in PUNCTUATION]

    # Runs of word characters, and what lies between them.
    runs: list[str] = []
    for character in kept:
        if runs and is_word_character(runs[-1][-1]) == is_word_character(character):
            runs[-1] += character
        else:
            runs.append(character)

    without_articles = "".join(" " if run in ("a", "an", "the") else run for run in runs)
    return " ".join(without_articles.split())


def exact(prediction: str, answer: str) -> float:
    return 1.0 if normalized(prediction) == normalized(answer) else 0.0


def f1(prediction: str, answer: str) -> float:
    predicted, expected = normalized(prediction).split(), normalized(answer).split()
    if not predicted or not expected:
        return 1.0 if predicted == expected else 0.0

    shared = 0
    left = list(expected)
    for word in predicted:
        if word in left:
            left.remove(word)
            shared += 1
    if shared == 0:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(expected)
    return 2 * precision * recall / (precision + recall)


def right_answers(answers: tuple[str, ...]) -> list[str]:
    """Return the answers to compare with: one empty text if there are none, or none that normalization leaves."""
    return [answer for answer in answers if normalized(answer)] or [""]


def scores(predictions: list[str], references: list[tuple[str, ...]]) -> tuple[list[float], list[float]]:
    """Return each question's exact match and F1."""
    pairs = list(zip(predictions, references, strict=True))
    return (
        [max(exact(prediction, answer) for answer in right_answers(answers)) for prediction, answers in pairs],
        [max(f1(prediction, answer) for answer in right_answers(answers)) for prediction, answers in pairs],
    )
