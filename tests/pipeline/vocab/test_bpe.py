import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.vocab import bpe, symbol_array
from pipeline.vocab.bpe import MAX_PAIRS, BPETrainer, Join, join_bytes, join_wordpieces
from pipeline.vocab.cut_words import library_cutter
from pipeline.vocab.symbol_array import WordSymbols, positions_by_symbol


def replace_pair(word: list[str], pair: tuple[str, str], new: str) -> list[str]:
    replaced = []
    i = 0
    while i < len(word):
        both = tuple(word[i : i + 2]) == pair
        replaced.append(new if both else word[i])
        i += 2 if both else 1
    return replaced


def naive_merges(
    words: dict[tuple[str, ...], int], size: int, join: Join, min_frequency: int
) -> tuple[list[tuple[str, str]], list[str]]:
    """(merges, tokens) as the paper writes it: count all pairs, merge the best, start again."""
    split = {word: list(word) for word in words}
    order = sorted({symbol for word in words for symbol in word})
    merges: list[tuple[str, str]] = []
    while len(order) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in split.items():
            for pair in itertools.pairwise(parts):
                pairs[pair] += words[word]
        if max(pairs.values(), default=0) < min_frequency:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], order.index(pair[0]), order.index(pair[1])))
        assert best not in merges and join(*best) not in order, "a token is spelled by one pair"
        merges.append(best)
        order.append(join(*best))
        split = {word: replace_pair(parts, best, join(*best)) for word, parts in split.items()}
    return merges, order


def trainer_of(words: dict[tuple[str, ...], int], join: Join = join_bytes, max_pairs: int = MAX_PAIRS) -> BPETrainer:
    alphabet = sorted({symbol for word in words for symbol in word})
    symbols = [alphabet.index(symbol) for word in words for symbol in word]
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    counts = np.array(list(words.values()), dtype=np.int64)
    return BPETrainer(WordSymbols(np.array(symbols), lengths, counts), alphabet, join, max_pairs)


WORDS = st.one_of(
    st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 9), min_size=1, max_size=12),
    st.dictionaries(st.text("ab", min_size=1, max_size=20), st.integers(1, 40), min_size=1, max_size=25),
)
"""Two letters in long words: pairs overlap, are merged again, and fall below a frequency and rise over it."""


@pytest.mark.parametrize("join", [join_bytes, join_wordpieces])
@given(
    words=WORDS,
    size=st.integers(2, 60),
    min_frequency=st.one_of(st.just(1), st.integers(1, 60)),
    max_pairs=st.sampled_from([2, 4, 16, MAX_PAIRS]),
    few=st.sampled_from([-1, 0, 2, 48]),
)
@settings(max_examples=400)
def test_equals_the_plain_algorithm(
    join: Join, words: dict[str, int], size: int, min_frequency: int, max_pairs: int, few: int
) -> None:
    """However few pairs are kept, however often they are counted again, and in a loop or by array operations."""
    mark = "##" if join is join_wordpieces else ""
    split: dict[tuple[str, ...], int] = {
        (word[0], *(mark + character for character in word[1:])): count for word, count in words.items()
    }
    trainer = trainer_of(split, join, max_pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symbol_array, "FEW", few)
        patch.setattr(bpe, "FEW", few)
        trainer.train(size, min_frequency)
    assert (trainer.merges, trainer.tokens) == naive_merges(split, size, join, min_frequency)


def test_counts_above_32_bits_decide() -> None:
    """In 32 bits 2**32 + 1 would be 1 and lose to 2; the second merge needs the exact count of what the first left."""
    trainer = trainer_of({("c", "d"): 2, ("a", "b", "c"): 2**32 + 1, ("b", "c"): 2**33})
    trainer.train(6, 1)
    assert trainer.merges == [("b", "c"), ("a", "bc")]


def test_a_number_sign_is_a_word_of_its_own() -> None:
    """In a longer word it would make tokens ambiguous: the word "##a" and the piece "##a" of other words are one."""
    for lowercase in (False, True):
        cut = library_cutter("wordpiece", lowercase)
        for before, after in itertools.product(
            ["", "a", "#", "\u00e9", "\u4e2d", "\u0301", "1", "_", "\u200d"], repeat=2
        ):
            words = cut(f"{before}#{after}")
            assert all(word == "#" for word in words if "#" in word), words
            assert words.count("#") == 1 + (before == "#") + (after == "#")


def test_symbols_with_large_ids_are_merged() -> None:
    """Ids of up to 13 bits decide ties and take their full width in a pair's key."""
    alphabet = [f"<{i}>" for i in range(5_000)]
    symbols = np.array([4_999, 3, 4_096, 4, 3, 4_096])
    words = WordSymbols(symbols, np.array([2, 2, 2]), np.array([5, 5, 1]))
    trainer = BPETrainer(words, alphabet, join_bytes)

    trainer.train(5_003, 1)

    assert trainer.merges == [("<4096>", "<4>"), ("<4999>", "<3>"), ("<3>", "<4096>")]
    assert trainer.tokens[5_000:] == ["<4096><4>", "<4999><3>", "<3><4096>"]


@pytest.mark.parametrize(
    ("symbols", "at_once"),
    [(1, 1), (3, 2), (255, 7), (256, 7), (257, 7), (300, 1 << 20), (70_000, 11), (70_000, 1 << 20)],
)
def test_the_positions_of_each_symbol(monkeypatch: pytest.MonkeyPatch, symbols: int, at_once: int) -> None:
    """However many positions are sorted at once and however many bits the symbols need."""
    monkeypatch.setattr(symbol_array, "POSITIONS_AT_ONCE", at_once)
    some = sorted({0, symbols // 2, symbols - 1})
    symbol_P = np.random.default_rng(0).choice([*some, -1, -2], 20).astype(np.int32)

    positions = positions_by_symbol(symbol_P, symbols)

    assert len(positions) == symbols
    for symbol in some:
        assert positions[symbol].tolist() == np.flatnonzero(symbol_P == symbol).tolist()
        assert positions[symbol].dtype == np.int32
    assert sum(len(position) for position in positions) == (symbol_P >= 0).sum()
