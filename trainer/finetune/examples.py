"""The examples of a task after reading and validation: one dataclass for each type of example.

The readers in trainer/finetune/files create them; no later code sees files, columns or label names. An `id` is the
value of the file's id column if the task names one, otherwise the example's position in its set, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TextExample:
    """A text or a pair of texts to classify or score (kinds sentence and pair).

    text_pair: None for the kind sentence. label: the index of the label in TaskData.labels, a finite float for a
    regression, or None in a test file without labels.
    """

    id: str
    text: str
    text_pair: str | None
    label: int | float | None


@dataclass(frozen=True)
class ChoiceExample:
    """A context and the texts that may continue or answer it (kind choice).

    choices: at least two, each with the task's prefix in front. label: index of the correct choice, None if unknown.
    """

    id: str
    context: str
    choices: tuple[str, ...]
    label: int | None


@dataclass(frozen=True)
class TagExample:
    """A sentence that is split into words, and one tag per word (kind tags).

    tags: indices into TaskData.labels, one per word, or None in a test file without tags.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[int, ...] | None


@dataclass(frozen=True)
class Answer:
    """A correct answer to a question: `context[start : start + len(text)] == text`. `start` counts characters from 0.

    Outside the training set `start` may be -1: the text is a correct answer that the context does not contain.
    """

    text: str
    start: int


@dataclass(frozen=True)
class SpanExample:
    """A question about a context (kind span).

    answers: every answer that annotators gave; empty if `is_impossible`. In a test file without labels it is also
    empty, with `is_impossible` False (see `is_labeled`).
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

    labels: label names in the order of their ids; empty for regressions and for the kinds choice and span.
    test: None if the task names no test file. extra: the sets of the task's [data.extra] by name, such as MNLI's
    mismatched dev set.
    """

    train: list[Example]
    dev: list[Example]
    test: list[Example] | None
    labels: tuple[str, ...]
    extra: dict[str, list[Example]] = field(default_factory=dict)


def is_labeled(example: Example) -> bool:
    """Return whether an example has a label, so that a prediction for it can be scored."""
    if isinstance(example, SpanExample):
        return example.is_impossible or bool(example.answers)
    if isinstance(example, TagExample):
        return example.tags is not None
    return example.label is not None


def classes_of(example: Any) -> list[int]:
    """Return the class of a labeled example, or of each of its words."""
    return list(example.tags or ()) if isinstance(example, TagExample) else [example.label]
