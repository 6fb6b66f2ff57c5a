"""Extracts the text of a task's training examples, without labels, for continued pretraining in the step "task".

Each text or pair of texts is one document; contexts, questions and choices are separate documents. A text that several
examples share, such as the context of questions, becomes one document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from schemas.errors import DataError
from trainer.finetune.examples import ChoiceExample, Example, SpanExample, TagExample


def task_texts(examples: Sequence[Example], task: str) -> list[str]:
    """Return the distinct texts of training examples, in their order. Raises DataError if there are none.

    task: the name of the task, for the message.
    """
    # A dict removes duplicates and, unlike a set, keeps the order.
    texts = {text: None for example in examples for text in texts_of(example) if text.strip()}
    if not texts:
        raise DataError(
            f"the {len(examples):,} training examples of the task {task} hold no text, so there is nothing to continue "
            "pretraining on. Leave the step out, or check data.columns of the task file."
        )
    return list(texts)


def texts_of(example: Example) -> Iterator[str]:
    """Yield the documents of an example."""
    if isinstance(example, TagExample):
        yield " ".join(example.words)
    elif isinstance(example, SpanExample):
        yield example.context
        yield example.question
    elif isinstance(example, ChoiceExample):
        # All choices, so that the text does not reveal which one is correct.
        yield example.context
        yield from example.choices
    else:
        yield "\n".join([example.text, example.text_pair or ""]).strip()


def json_lines(texts: Sequence[str]) -> bytes:
    """Return texts as UTF-8 JSON lines, in the format that `shard` reads."""
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()
