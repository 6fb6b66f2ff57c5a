"""The text of a task's training examples, without labels, for continued pretraining (docs/adapt.md).

Each text or pair of texts is one document; contexts, questions and choices are separate documents. A text that several
examples share, such as the context of questions, becomes one document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from schemas import storage
from schemas.errors import DataError, UsageError
from trainer.finetune.examples import ChoiceExample, Example, SpanExample, TagExample


def write_texts(examples: Sequence[Example], path: str) -> int:
    """Write the distinct texts of training examples, in their order, as JSON Lines that `shard` reads.

    A file that holds them already is not written again, because `shard` takes one with a newer time for a changed one.
    Returns how many texts there are. Raises DataError if there are none, UsageError if the file holds something else,
    such as the examples themselves, and StorageError.
    """
    # A dict removes duplicates and, unlike a set, keeps the order.
    texts = {text: None for example in examples for text in texts_of(example) if text.strip()}
    if not texts:
        raise DataError(
            f"the {len(examples):,} training examples of the task hold no text, so there is nothing to continue "
            "pretraining on. Check data.columns of the task file."
        )

    content = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()
    if not storage.exists(path):
        storage.publish(path, content)
    elif storage.read(path) != content:
        raise UsageError(f"--write_texts {path} exists and holds something else. Give another file, or remove it.")
    return len(texts)


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
