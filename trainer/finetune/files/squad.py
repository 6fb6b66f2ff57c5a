"""Reads SQuAD 1.1 and 2.0 files, and CMRC 2018 and DRCD, which have the same format: questions about paragraphs.

    {"data": [{"paragraphs": [{"context": ..., "qas": [{"id", "question", "answers": [{"text", "answer_start"}]}]}]}]}

SQuAD 2.0 adds "is_impossible" to questions. Positions count Unicode characters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.errors import DataError
from trainer.finetune.examples import Answer, SpanExample
from trainer.finetune.files.jsonl import parse_json
from trainer.finetune.files.records import BadRowError, counted
from trainer.finetune.files.text import read_text
from trainer.finetune.files.values import check_unicode


@dataclass(frozen=True)
class Question:
    """One question as it is in its file. place: the path and the question's id, for messages."""

    place: str
    context: Any
    content: dict[str, Any]


@dataclass(frozen=True)
class AnswerRules:
    """How to check answers.

    find: move misplaced answers to the nearest occurrence of their text. is_train: answers that are not in the context
    are left out. is_test: answers may be absent or placeholders. empty_allowed: keep empty questions and contexts.
    """

    find: bool
    is_train: bool
    is_test: bool
    empty_allowed: bool


def read_questions(path: str) -> list[Question]:
    """Return the questions of a file, unchecked. Raises DataError if the file does not have SQuAD's structure."""
    content = parse_json(read_text(path), path)
    questions = []
    for article in _list(content, "data", path):
        for paragraph in _list(article, "paragraphs", path):
            for question in _list(paragraph, "qas", path):
                if not isinstance(question, dict):
                    raise DataError(f"{path}: expected a question as an object, found {question!r:.60}.")
                place = f"{path} question {question.get('id', len(questions))}"
                questions.append(Question(place, paragraph.get("context"), question))
    return questions


def _list(container: Any, key: str, path: str) -> list[Any]:
    if not isinstance(container, dict):
        raise DataError(f"{path}: expected an object with {key!r} as in SQuAD's files, found {container!r:.60}.")

    found = container.get(key)
    if not isinstance(found, list):
        keys = ", ".join(container)
        raise DataError(f"{path}: expected a list {key!r} as in SQuAD's files, found only the keys {keys}.")
    return found


def span_example(question: Question, id_: str, rules: AnswerRules) -> SpanExample:
    """Return a question as an example. Raises DataError, or BadRowError if `bad_rows` may drop the question."""
    context = _text(question.context, "the context", question.place, rules)
    text = _text(question.content.get("question"), "the question", question.place, rules)

    is_impossible = question.content.get("is_impossible", False)
    if not isinstance(is_impossible, bool):
        raise DataError(f"{question.place}: is_impossible is {is_impossible!r}, expected true or false.")

    found = question.content.get("answers") or []
    if not isinstance(found, list):
        raise DataError(f"{question.place}: answers is {found!r:.60}, expected a list.")
    if is_impossible and found:
        raise DataError(f"{question.place}: the question is_impossible, but it has {counted(len(found), 'answer')}.")

    answers = () if rules.is_test and _are_placeholders(found) else _answers(found, context, question.place, rules)
    if not answers and not is_impossible and not rules.is_test:
        raise DataError(f"{question.place}: the answers are missing. Expected one, or is_impossible = true.")
    return SpanExample(id_, text, context, answers, is_impossible)


def _text(found: Any, what: str, place: str, rules: AnswerRules) -> str:
    if not isinstance(found, str):
        raise DataError(f"{place}: {what} is {found!r:.60}, expected text.")
    if not found.strip() and not rules.empty_allowed:
        raise BadRowError(f"{place}: {what} is empty.")
    check_unicode(found, place)
    return found


def _are_placeholders(found: list[Any]) -> bool:
    """Return whether no answer has a start in the context, as in CMRC 2018's public test file."""
    starts = [answer.get("answer_start") if isinstance(answer, dict) else None for answer in found]
    return all(start is None or (isinstance(start, int) and start < 0) for start in starts)


def _answers(found: list[Any], context: str, place: str, rules: AnswerRules) -> tuple[Answer, ...]:
    answers = [_answer(answer, context, place, rules) for answer in found]
    if not rules.is_train:
        # The metrics compare texts, so an answer counts even if it does not occur in the context.
        return tuple(answers)

    placed = [answer for answer in answers if answer.start >= 0]
    if answers and not placed:
        raise BadRowError(f'{place}: the answer "{answers[0].text:.60}" is nowhere in the context.')
    return tuple(placed)


def _answer(found: Any, context: str, place: str, rules: AnswerRules) -> Answer:
    text = found.get("text") if isinstance(found, dict) else None
    start = found.get("answer_start") if isinstance(found, dict) else None
    if not isinstance(text, str) or not isinstance(start, int) or isinstance(start, bool):
        raise DataError(
            f"{place}: expected an answer as an object with text (a string) and answer_start (a whole number), found "
            f"{found!r:.60}."
        )
    if not text.strip():
        raise BadRowError(f"{place}: the answer's text is empty. Questions without answers have is_impossible = true.")

    if start >= 0 and context.startswith(text, start):
        return Answer(text, start)
    if not rules.find:
        raise BadRowError(_misplaced(text, start, context, place))

    places = _occurrences(text, context)
    if places:
        return Answer(text, min(places, key=lambda position: abs(position - start)))
    return Answer(text, -1)


def _occurrences(text: str, context: str) -> list[int]:
    places = []
    position = context.find(text)
    while position >= 0:
        places.append(position)
        position = context.find(text, position + 1)
    return places


def _misplaced(text: str, start: int, context: str, place: str) -> str:
    """Return the message for an answer that is not at the position that the file gives."""
    if text not in context:
        return f'{place}: the answer "{text:.60}" is nowhere in the context.'

    advice = "data.find_answers = true moves such answers to their text."
    end = start + len(text)
    if start < 0 or end > len(context):
        return (
            f'{place}: the answer "{text:.60}" from {start} to {end} is outside of the context, which has '
            f"{len(context)} characters. {advice}"
        )
    return f'{place}: the answer is "{text:.60}", but the context has "{context[start:end]:.60}" at {start}. {advice}'
