"""Answers by the published rules of SQuAD's and CMRC's scripts, and the threshold for "no answer"."""

from __future__ import annotations

import pytest

from trainer.finetune.metrics.answers import best_threshold, cmrc_exact, cmrc_f1, mean_score, squad_exact, squad_f1


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("The Cat.", ["a cat"], 1.0, 1.0),
        ("black cat", ["the cat", "dog"], 0.0, 2 / 3),
        ("cat cat", ["cat"], 0.0, 2 / 3),
        ("", [], 1.0, 1.0),
        ("cat", [], 0.0, 0.0),
        ("the", [], 1.0, 1.0),
        ("", ["cat"], 0.0, 0.0),
        ("“cat”", ["cat"], 0.0, 0.0),
        ("the-end", ["theend", "end"], 1.0, 1.0),
        ("theatre a’b", ["theatre ’b"], 1.0, 1.0),
        ("U.S.\u3000AN\n42%", ["us 42"], 1.0, 1.0),
        # "the" alone is no correct answer, so that only "cat" counts, or the empty text.
        ("cat", ["the", "cat"], 1.0, 1.0),
        ("", ["the"], 1.0, 1.0),
    ],
)
def test_squad(prediction: str, answers: list[str], exact: float, f1: float) -> None:
    assert squad_exact(prediction, answers) == exact
    assert squad_f1(prediction, answers) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("北京大学", ["北京大学"], 1.0, 1.0),
        ("“北京大学”。", ["北京大学"], 1.0, 1.0),
        ("在北京大学", ["北京大学", "清华"], 0.0, 8 / 9),
        ("京北", ["北京"], 0.0, 2 * 1 / 4),
        ("GPU 有 80 GB", ["gpu有80 gb"], 0.0, 1.0),
        ("上海", ["北京"], 0.0, 0.0),
        ("", ["北京"], 0.0, 0.0),
        ("", [], 1.0, 1.0),
        # Unlike SQuAD's script, this one keeps answers of which only punctuation is removed.
        ("。", ["，", "北京"], 1.0, 1.0),
        ("北京", ["，"], 0.0, 0.0),
    ],
)
def test_cmrc(prediction: str, answers: list[str], exact: float, f1: float) -> None:
    assert cmrc_exact(prediction, answers) == exact
    assert cmrc_f1(prediction, answers) == pytest.approx(f1)


def test_scores_are_means_over_questions() -> None:
    assert mean_score(cmrc_f1, ["北京", "上海"], [["北京"], ["北京"]]) == 0.5
    assert mean_score(squad_f1, ["cat", "the"], [["cat dog"], ["cat"]]) == pytest.approx(1 / 3)


def thresholded(predictions: list[str], null_scores: list[float], threshold: float) -> list[str]:
    pairs = zip(predictions, null_scores, strict=True)
    return [prediction if null_score <= threshold else "" for prediction, null_score in pairs]


@pytest.mark.parametrize(
    ("predictions", "references", "null_scores"),
    [
        (["Paris", "Rome", "Bonn", "cat"], [["Paris"], [], ["Bonn on the Rhine"], []], [-2.0, 1.0, 0.5, -1.0]),
        (["Paris", "Rome", "", "cat"], [["Rome"], ["Rome"], [], ["a cat"]], [3.0, 1.0, 1.0, 3.0]),
        # Equal null scores: SQuAD's script would answer the first alone.
        (["Paris", "Rome"], [["Paris"], []], [0.3, 0.3]),
        # Nothing should be answered. A threshold of 0.0, as the script returns, would answer the first.
        (["Paris", "Rome"], [[], []], [-3.0, 2.0]),
        # Everything should be answered.
        (["Paris", "Rome"], [["Paris"], ["Rome"]], [-3.0, 2.0]),
    ],
)
def test_no_threshold_is_better_and_no_lower_one_as_good(
    predictions: list[str], references: list[list[str]], null_scores: list[float]
) -> None:
    def score_with(threshold: float) -> float:
        return mean_score(squad_f1, thresholded(predictions, null_scores, threshold), references)

    found = best_threshold(predictions, references, null_scores)
    others = [*null_scores, -1000.0]
    assert score_with(found) == pytest.approx(max(score_with(value) for value in others))
    assert all(score_with(value) < score_with(found) for value in others[:-1] if value < found)
