from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.shard.near_duplicates import words
from pipeline.shard.near_duplicates.words import IDEOGRAPHS, hash_words

WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\W{IDEOGRAPHS}]+")

texts = st.text(st.one_of(st.sampled_from(list("ab _-.é中文あ\u30fb\ud800𝔸")), st.characters()), max_size=80)


def check(text: str) -> None:
    """The words are those of the regular expression, and words are equal exactly if their hashes are."""
    found = list(WORD.finditer(text))
    hashes, positions = hash_words(text)
    assert positions.tolist() == [word.start() for word in found]
    hash_of_word = {word.group(): value for word, value in zip(found, hashes.tolist(), strict=True)}
    assert [hash_of_word[word.group()] for word in found] == hashes.tolist()
    assert len(set(hash_of_word.values())) == len(hash_of_word)


@given(texts)
def test_words_are_those_of_the_regular_expression(text: str) -> None:
    check(text)


@given(texts, st.integers(1, 5))
def test_where_a_text_is_cut_leaves_no_trace(text: str, size: int) -> None:
    whole = hash_words(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "PIECE", size)
        words._powers.cache_clear()
        cut = hash_words(text)
    words._powers.cache_clear()
    assert whole[0].tolist() == cut[0].tolist()
    assert whole[1].tolist() == cut[1].tolist()


def test_long_texts_and_long_words() -> None:
    check(" ".join(f"word{i}" for i in range(40_000)))
    check("a" * 300_000 + " " + "a" * 299_999 + " a" + "中" * 200_000)
