"""Answers and thresholds against a plain implementation of SQuAD's published rules, on 1,000 random cases each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.finetune.metrics import plain_squad
from tests.trainer.finetune.metrics.cases import CASES
from trainer.finetune.metrics.null_threshold import apply_threshold, choose_threshold
from trainer.finetune.metrics.squad import (
    answer_f1,
    exact_match,
    exact_scores,
    f1_scores,
    normalized_words,
    squad_scores,
)

# Articles in all cases and inside of words, beside every sort of punctuation, with letters that grow in lower case.
WORDS = [
    "the",
    "The",
    "a",
    "AN",
    "theatre",
    "cat",
    "Cats",
    "the-end",
    "a.",
    "“the”",
    "a’b",
    "x_the_y",
    "U.S.",
    "42%",
    "İthe",
]
SPACES = [" ", "  ", "\t", "\n", "\u3000", "\u00a0", "-", "—", ""]

texts = st.one_of(
    st.just(""),
    st.text(max_size=12),
    st.lists(st.sampled_from(WORDS + SPACES), max_size=6).map(" ".join),
    st.lists(st.sampled_from(WORDS + SPACES), max_size=6).map("".join),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], list[tuple[str, ...]]]:
    """Predictions and right answers, of which there may be several or none; some predictions are right."""
    references = draw(st.lists(st.lists(texts, max_size=3).map(tuple), min_size=1, max_size=6))
    predictions = []
    for answers in references:
        choices = st.sampled_from(answers) if answers else st.just("")
        predictions.append(draw(st.one_of(texts, choices)))
    return predictions, references


@settings(max_examples=CASES, deadline=None)
@given(texts)
def test_normalized_texts_are_the_plain_ones(text: str) -> None:
    assert " ".join(normalized_words(text)) == plain_squad.normalized(text)


@settings(max_examples=CASES, deadline=None)
@given(cases())
def test_scores_are_the_plain_ones(case: tuple[list[str], list[tuple[str, ...]]]) -> None:
    predictions, references = case
    exact, f1 = plain_squad.scores(predictions, references)
    assert exact_scores(predictions, references) == exact
    assert f1_scores(predictions, references) == f1

    assert exact_match(predictions, references) == pytest.approx(sum(exact) / len(exact))
    assert answer_f1(predictions, references) == pytest.approx(sum(f1) / len(f1))


@settings(max_examples=CASES, deadline=None)
@given(cases())
def test_the_report_has_both_parts(case: tuple[list[str], list[tuple[str, ...]]]) -> None:
    predictions, references = case
    exact, f1 = plain_squad.scores(predictions, references)

    expected = {"exact": sum(exact) / len(exact), "f1": sum(f1) / len(f1), "total": len(references)}
    for name, part in (
        ("HasAns", [i for i, answers in enumerate(references) if answers]),
        ("NoAns", [i for i, answers in enumerate(references) if not answers]),
    ):
        if part:
            expected[f"{name}_exact"] = sum(exact[i] for i in part) / len(part)
            expected[f"{name}_f1"] = sum(f1[i] for i in part) / len(part)
            expected[f"{name}_total"] = len(part)
    assert squad_scores(predictions, references) == pytest.approx(expected)


@settings(max_examples=CASES, deadline=None)
@given(cases(), st.data())
def test_the_chosen_threshold_is_the_best_of_all(
    case: tuple[list[str], list[tuple[str, ...]]], data: st.DataObject
) -> None:
    predictions, references = case
    # Answers of which normalization leaves nothing are the one case in which silence is scored in two ways.
    references = [tuple(answer for answer in answers if normalized_words(answer)) for answers in references]
    number = st.one_of(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-100, 100))
    null_scores = data.draw(st.lists(number, min_size=len(references), max_size=len(references)))

    def score_with(threshold: float) -> float:
        return answer_f1(apply_threshold(predictions, null_scores, threshold), references)

    def loses_nothing(prediction: str, answers: tuple[str, ...]) -> bool:
        return bool(answers) or not prediction or bool(normalized_words(prediction))

    # A prediction such as "The" for an unanswerable question is right by its words, and the script's search takes it
    # for wrong.
    if not all(map(loses_nothing, predictions, references)):
        return

    scores = f1_scores(predictions, references)
    found = choose_threshold(predictions, references, null_scores, scores)
    assert found.score == pytest.approx(score_with(found.value))
    assert found.score == pytest.approx(max(score_with(value) for value in [*null_scores, -1000.0]))


def test_where_the_script_s_threshold_cannot_be_had() -> None:
    """Two questions of the same null score: the script would answer the first alone."""
    predictions, references, null_scores = ["Paris", "Rome"], [("Paris",), ()], [0.3, 0.3]
    scores = exact_scores(predictions, references)
    chosen = choose_threshold(predictions, references, null_scores, scores)
    assert chosen.score == 0.5
    assert exact_match(apply_threshold(predictions, null_scores, chosen.value), references) == 0.5


def test_where_it_is_best_to_answer_nothing() -> None:
    """Differences of logits are negative where an answer is likelier, so that a threshold of 0 would answer."""
    predictions, references, null_scores = ["Paris", "Rome"], [(), ()], [-3.0, 2.0]
    scores = exact_scores(predictions, references)
    chosen = choose_threshold(predictions, references, null_scores, scores)
    assert chosen.value < -3.0
    assert apply_threshold(predictions, null_scores, chosen.value) == ["", ""]
    assert chosen.score == 1.0


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("The Cat.", ("a cat",), 1.0, 1.0),
        ("black cat", ("the cat", "dog"), 0.0, 2 / 3),
        ("cat cat", ("cat",), 0.0, 2 / 3),
        ("", (), 1.0, 1.0),
        ("cat", (), 0.0, 0.0),
        ("the", (), 1.0, 1.0),
        ("", ("cat",), 0.0, 0.0),
        ("“cat”", ("cat",), 0.0, 0.0),
        ("cat", ("the", "cat"), 1.0, 1.0),
    ],
)
def test_one_answer(prediction: str, answers: tuple[str, ...], exact: float, f1: float) -> None:
    assert exact_match([prediction], [answers]) == exact
    assert answer_f1([prediction], [answers]) == pytest.approx(f1)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="1 predictions and 2 references"):
        exact_match(["a"], [("a",), ()])
    with pytest.raises(ValueError, match="at least one question"):
        answer_f1([], [])
    with pytest.raises(ValueError, match="as many predictions, references and scores"):
        choose_threshold(["a"], [()], [0.0, 1.0], [1.0])
    with pytest.raises(ValueError, match="a null score is not finite"):
        choose_threshold(["a"], [()], [float("nan")], [1.0])
