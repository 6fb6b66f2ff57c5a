"""The kinds of tasks: each turns examples into rows of tokens, and the model's outputs into predictions."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from trainer.finetune.kinds.kind import Kind
from trainer.finetune.kinds.span import Spans
from trainer.finetune.kinds.tags import Tags
from trainer.finetune.kinds.text import Choice, Classification, Regression
from trainer.finetune.task import Task

KINDS: dict[str, type[Kind]] = {
    "sentence": Classification,
    "pair": Classification,
    "choice": Choice,
    "tags": Tags,
    "span": Spans,
}


def kind_of(task: Task, labels: Sequence[str], tokenizer: PreTrainedTokenizerBase, longest: int | None = None) -> Kind:
    """Return the kind object of a task, for its labels and the encoder's tokenizer.

    longest: the maximum number of tokens in a row of the encoder, None without a limit.
    """
    kind = Regression if task.is_regression else KINDS[task.kind]
    return kind(task, labels, tokenizer, longest)
