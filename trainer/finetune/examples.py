"""What the files of a task hold once they are read and checked: one dataclass for each shape of example.

Readers (trainer/finetune/files) make them; nothing after the readers sees a file, a column or a label's name. An `id`
is the value of the file's id column if the task names one, otherwise the example's position in its file, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TextExample:
    """A text or a pair of texts to classify or to score (kinds sentence and pair).

    text_pair: None for the kind sentence. label: the position of the label in TaskData.labels, a finite float for a
    regression, or None in a test file without labels.
    """

    id: str
    text: str
    text_pair: str | None
    label: int | float | None


@dataclass(frozen=True)
class ChoiceExample:
    """A context and the texts that may continue or answer it (kind choice).

    choices: at least two, with the task's prefix in front. label: the position of the right one, None if unknown.
    """

    id: str
    context: str
    choices: tuple[str, ...]
    label: int | None


@dataclass(frozen=True)
class TagExample:
    """A sentence in words and one tag for each (kind tags).

    tags: positions in TaskData.labels, as many as there are words, or None in a test file without tags.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[int, ...] | None


@dataclass(frozen=True)
class Answer:
    """A right answer of a question: `context[start : start + len(text)] == text`, in characters, from 0.

    Only in dev and test sets `start` may be -1: the text is a right answer that the context does not contain.
    """

    text: str
    start: int


@dataclass(frozen=True)
class SpanExample:
    """A question about a context (kind span).

    answers: every answer that annotators gave, none if `is_impossible`. In a test file without answers there are none
    either, and `is_impossible` is False (see `is_labeled`).
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    is_impossible: bool


Example = TextExample | ChoiceExample | TagExample | SpanExample


@dataclass(frozen=True)
class TaskData:
    """The examples of a task.

    labels: names by position; () for a regression, a choice and spans. test: None if the task names no test file.
    extra: further sets by the names that the task's [data.extra] gives them, such as MNLI's mismatched one.
    """

    train: list[Example]
    dev: list[Example]
    test: list[Example] | None
    labels: tuple[str, ...]
    extra: dict[str, list[Example]] = field(default_factory=dict)


def is_labeled(example: Example) -> bool:
    """Return whether an example says what is right, so that a prediction for it can be scored."""
    if isinstance(example, SpanExample):
        return example.is_impossible or bool(example.answers)
    if isinstance(example, TagExample):
        return example.tags is not None
    return example.label is not None
