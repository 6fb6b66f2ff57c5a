"""The text of a task's training examples, without their labels: what the task's step learns from.

Each example is a document. A text that several examples share, such as the context of questions, is one document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from schemas.errors import DataError
from trainer.finetune.examples import ChoiceExample, Example, SpanExample, TagExample


def task_texts(examples: Sequence[Example], task: str) -> list[str]:
    """Return the distinct texts of training examples, in their order. Raises DataError if there is none.

    task: the name of the task, for the message.
    """
    # The keys of a dict keep their order.
    texts = {text: None for example in examples for text in _texts_of(example) if text.strip()}
    if not texts:
        raise DataError(
            f"The {len(examples):,} training examples of the task {task} hold no text, so there is nothing to continue "
            "pretraining on. Leave the step out, or check data.columns of the task file."
        )
    return list(texts)


def _texts_of(example: Example) -> Iterator[str]:
    """Yield the documents of an example."""
    if isinstance(example, TagExample):
        yield " ".join(example.words)
    elif isinstance(example, SpanExample):
        yield example.context
        yield example.question
    elif isinstance(example, ChoiceExample):
        # All choices: which one is right is the label.
        yield example.context
        yield from example.choices
    else:
        yield "\n".join([example.text, example.text_pair or ""]).strip()


def json_lines(texts: Sequence[str]) -> bytes:
    """Return texts as JSON lines, which `shard` reads."""
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()
