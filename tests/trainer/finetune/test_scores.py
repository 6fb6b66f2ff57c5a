"""The scores of a set: the task's metrics, and of SQuAD 2.0 those of answerable and unanswerable questions apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import UsageError
from tests.trainer.finetune.test_kinds import kind_for
from trainer.finetune.examples import Answer, SpanExample
from trainer.finetune.kinds.kind import Kind
from trainer.finetune.scores import check_metrics_of_labels, score
from trainer.finetune.task import Task

CONTEXT = "The baker finds the letter in the morning."


def questions(*answers: str) -> list[SpanExample]:
    """A question for each answer; "" cannot be answered."""
    examples = []
    for number, text in enumerate(answers):
        found = (Answer(text, CONTEXT.index(text)),) if text else ()
        examples.append(SpanExample(str(number), "What?", CONTEXT, found, not text))
    return examples


@pytest.fixture
def spans(encoder) -> Kind:
    folder: Path = encoder("bert")
    return kind_for(folder, "span")


def test_questions_with_and_without_an_answer_are_scored_apart_too(spans: Kind) -> None:
    scores = score(spans, questions("baker", "the letter", "", ""), ["baker", "letter in", "", "cat"])
    assert scores == pytest.approx(
        {
            "answer_f1": (1 + 2 / 3 + 1 + 0) / 4,
            "exact_match": 2 / 4,
            "HasAns_exact": 1 / 2,
            "HasAns_f1": (1 + 2 / 3) / 2,
            "NoAns_exact": 1 / 2,
            "NoAns_f1": 1 / 2,
        }
    )


def test_only_parts_of_questions_that_are_there_are_scored(spans: Kind) -> None:
    assert set(score(spans, questions("baker", "letter"), ["baker", ""])) == {"answer_f1", "exact_match"}
    names = set(score(spans, questions("", ""), ["", "cat"]))
    assert names == {"answer_f1", "exact_match", "NoAns_exact", "NoAns_f1"}


def test_parts_of_speech_are_not_scored_as_chunks() -> None:
    files = {"train": "a.conll", "dev": "a.conll"}
    task = Task.model_validate({"name": "pos", "kind": "tags", "data": files})
    check_metrics_of_labels(task, ("B-PER", "I-PER", "O"))
    with pytest.raises(UsageError, match=r'"chunk_f1", .* ADJ, NOUN, VERB.* Set metrics = \["accuracy"\]'):
        check_metrics_of_labels(task, ("ADJ", "NOUN", "VERB"))
    by_word = Task.model_validate({"name": "pos", "kind": "tags", "data": files, "metrics": ["accuracy"]})
    check_metrics_of_labels(by_word, ("ADJ", "NOUN", "VERB"))
