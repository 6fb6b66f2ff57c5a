"""CMRC's scores against a plain search for the longest common run, and cases whose scores are known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.finetune.metrics.cases import CASES
from trainer.finetune.metrics.cmrc import cmrc_exact_match, cmrc_f1, longest_common_run

WORDS = st.lists(st.sampled_from("北京大学a1"), max_size=9)


@settings(max_examples=CASES, deadline=None)
@given(WORDS, WORDS)
def test_the_longest_common_run_is_that_of_a_plain_search(first: list[str], second: list[str]) -> None:
    runs = [first[i:j] for i in range(len(first)) for j in range(i + 1, len(first) + 1)]
    shared = [run for run in runs if any(second[k : k + len(run)] == run for k in range(len(second)))]
    assert longest_common_run(first, second) == max(map(len, shared), default=0)


@pytest.mark.parametrize(
    ("prediction", "answers", "f1", "exact"),
    [
        ("北京大学", ["北京大学"], 1.0, 1.0),
        ("“北京大学”。", ["北京大学"], 1.0, 1.0),
        ("在北京大学", ["北京大学", "清华"], 8 / 9, 0.0),
        ("京北", ["北京"], 2 * 1 / 4, 0.0),
        ("GPU 有 80 GB", ["gpu有80 gb"], 1.0, 0.0),
        ("上海", ["北京"], 0.0, 0.0),
        ("", ["北京"], 0.0, 0.0),
        ("", [], 1.0, 1.0),
    ],
)
def test_known_scores(prediction: str, answers: list[str], f1: float, exact: float) -> None:
    assert cmrc_f1([prediction], [answers]) == pytest.approx(f1)
    assert cmrc_exact_match([prediction], [answers]) == exact


def test_means_are_over_questions() -> None:
    assert cmrc_f1(["北京", "上海"], [["北京"], ["北京"]]) == 0.5
    with pytest.raises(ValueError, match="cannot be compared"):
        cmrc_f1([], [])
