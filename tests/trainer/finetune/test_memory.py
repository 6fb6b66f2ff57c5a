"""Features stay small in memory, data is hashed without a copy of it, and long encodings show signs of life."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.trainer.finetune.test_kinds import SENTENCES, kind_for
from trainer.finetune.examples import (
    Answer,
    ChoiceExample,
    Example,
    SpanExample,
    TagExample,
    TextExample,
)
from trainer.finetune.kinds import kind as kind_module
from trainer.finetune.kinds.kind import Feature
from trainer.finetune.run import hash_of

TEXT = " ".join(SENTENCES * 12)
WORDS = tuple(TEXT.split())

EXAMPLES: dict[str, Example] = {
    "sentence": TextExample("0", TEXT, None, 0),
    "pair": TextExample("0", TEXT, TEXT, 0),
    "choice": ChoiceExample("0", TEXT, (TEXT, TEXT), 0),
    "tags": TagExample("0", WORDS, (0,) * len(WORDS)),
    "span": SpanExample("0", "What does the baker find?", TEXT, (Answer("cat", TEXT.index("cat")),), False),
}


def rows_of(feature: Feature) -> list[list[int]]:
    ids = feature["input_ids"]
    return [list(row) for row in ids] if isinstance(ids, list) else [list(ids)]


@pytest.mark.parametrize("kind_name", EXAMPLES)
def test_a_token_of_a_feature_takes_a_few_bytes(encoder, kind_name: str) -> None:
    labels = () if kind_name in ("choice", "span") else ("O", "B-X")
    kind = kind_for(encoder("bert"), kind_name, labels, max_length=384)
    examples = [EXAMPLES[kind_name]] * 60

    tracemalloc.start()
    features = kind.features(examples)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert held / sum(len(row) for feature in features for row in rows_of(feature)) < 30


@pytest.mark.parametrize("kind_name", EXAMPLES)
def test_examples_are_encoded_in_blocks(encoder, kind_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is that of one block, and every block is a sign of life."""
    labels = () if kind_name in ("choice", "span") else ("O", "B-X")
    kind = kind_for(encoder("bert"), kind_name, labels, max_length=64)
    examples = [EXAMPLES[kind_name]] * 7
    whole = kind.features(examples)

    signs: list[None] = []
    monkeypatch.setattr(kind_module, "EXAMPLES_AT_ONCE", 3)
    monkeypatch.setattr(kind_module, "progress", lambda: signs.append(None))
    parts = kind.features(examples)

    assert [feature["example"] for feature in parts] == [feature["example"] for feature in whole]
    for one, other in zip(parts, whole, strict=True):
        assert rows_of(one) == rows_of(other) and one.keys() == other.keys()
    assert len(signs) >= 3


def test_data_is_hashed_example_by_example() -> None:
    examples: list[Example] = [TextExample(str(number), TEXT, None, 0) for number in range(2000)]

    tracemalloc.start()
    hash_of(examples)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100 * len(TEXT)
