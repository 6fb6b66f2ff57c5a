"""Features stay small in memory, data is hashed without a copy of it, and long encodings show signs of life."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from tests.trainer.finetune.test_kinds import SENTENCES, kind_for
from trainer.finetune.examples import (
    Answer,
    ChoiceExample,
    Example,
    SpanExample,
    TagExample,
    TaskData,
    TextExample,
)
from trainer.finetune.identity import hashes_of_data
from trainer.finetune.kinds import kind as kind_module
from trainer.finetune.kinds.kind import Feature

TEXT = " ".join(SENTENCES * 12)
WORDS = tuple(TEXT.split())

EXAMPLES: dict[str, Example] = {
    "sentence": TextExample("0", TEXT, None, 0),
    "pair": TextExample("0", TEXT, TEXT, 0),
    "choice": ChoiceExample("0", TEXT, (TEXT, TEXT), 0),
    "tags": TagExample("0", WORDS, (0,) * len(WORDS)),
    "span": SpanExample("0", "What does the baker find?", TEXT, (Answer("cat", TEXT.index("cat")),), False),
}


def tokens_of(features: list[Feature]) -> int:
    return sum(len(row.ids) for feature in features for row in feature.rows)


@pytest.mark.parametrize("kind_name", EXAMPLES)
def test_a_token_of_a_feature_takes_a_few_bytes(encoder, kind_name: str) -> None:
    labels = () if kind_name in ("choice", "span") else ("O", "B-X")
    kind = kind_for(encoder("bert"), kind_name, labels, max_length=384)
    examples = [EXAMPLES[kind_name]] * 200

    tracemalloc.start()
    features = kind.features(examples)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert held / tokens_of(features) < 30


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

    assert [feature.example for feature in parts] == [feature.example for feature in whole]
    assert [shown(feature) for feature in parts] == [shown(feature) for feature in whole]
    assert len(signs) >= 3


def shown(feature: Feature) -> tuple[list[list[int]], object]:
    return [list(row.ids) for row in feature.rows], feature.target


def test_data_is_hashed_example_by_example() -> None:
    examples: list[Example] = [TextExample(str(number), TEXT, None, 0) for number in range(2000)]
    data = TaskData(examples, examples, None, ("a", "b"))

    tracemalloc.start()
    hashes_of_data(data)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100 * len(TEXT)


def test_the_hash_of_data_sees_every_change() -> None:
    first, second = (TextExample(str(number), "A text.", None, number) for number in range(2))
    data = TaskData([first, second], [first], [second], ("a", "b"), {"more": [first]})
    others = [
        replace(data, labels=("b", "a")),
        replace(data, train=[second, first]),
        replace(data, train=[first], dev=[second, first]),
        replace(data, test=None),
        replace(data, extra={"other": [first]}),
        replace(data, dev=[replace(first, text="A text")]),
    ]
    assert hashes_of_data(data) == hashes_of_data(replace(data))
    assert len({hashes_of_data(one)["data"] for one in (data, *others)}) == 1 + len(others)


def test_each_set_has_its_own_hash() -> None:
    first, second = (TextExample(str(number), "A text.", None, number) for number in range(2))
    data = TaskData([first, second], [first], [second], ("a", "b"), {"more": [first]})
    hashes = hashes_of_data(data)
    assert hashes["labels"] == '["a", "b"]'
    assert list(hashes) == ["data", "labels", "data.train", "data.dev", "data.test", "data.more"]
    # Output folders of earlier versions hold this value, and continue only with the same one.
    assert hashes["data"] == "b2373e4e68fdd7be"

    changed = hashes_of_data(replace(data, test=[first]))
    assert {name for name in hashes if hashes[name] != changed[name]} == {"data", "data.test"}
