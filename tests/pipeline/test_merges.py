import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.vocab.merges import MOST_PAIRS, Join, MergeLearner, join_bytes, join_wordpieces


def replace_pair(word: list[str], pair: tuple[str, str], new: str) -> list[str]:
    replaced, i = [], 0
    while i < len(word):
        both = tuple(word[i : i + 2]) == pair
        replaced.append(new if both else word[i])
        i += 2 if both else 1
    return replaced


def naive_merges(words: dict[tuple[str, ...], int], size: int, join: Join) -> list[tuple[str, str]]:
    """Byte-pair encoding as the paper writes it: count all pairs, merge the best, start again."""
    split = {word: list(word) for word in words}
    order = sorted({symbol for word in words for symbol in word})
    merges: list[tuple[str, str]] = []
    while len(order) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in split.items():
            for pair in itertools.pairwise(parts):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], order.index(pair[0]), order.index(pair[1])))
        if best not in merges:
            merges.append(best)
        if join(*best) not in order:
            order.append(join(*best))
        split = {word: replace_pair(parts, best, join(*best)) for word, parts in split.items()}
    return merges


def learner_of(
    words: dict[tuple[str, ...], int], join: Join = join_bytes, most_pairs: int = MOST_PAIRS
) -> MergeLearner:
    alphabet = sorted({symbol for word in words for symbol in word})
    symbols = [alphabet.index(symbol) for word in words for symbol in word]
    lengths, counts = (np.array(list(values), dtype=np.int64) for values in (map(len, words), words.values()))
    return MergeLearner(np.array(symbols), lengths, counts, alphabet, join, most_pairs)


WORDS = st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 9), min_size=1, max_size=12)


@pytest.mark.parametrize("join", [join_bytes, join_wordpieces])
@given(words=WORDS, size=st.integers(3, 30), most_pairs=st.sampled_from([2, 4, 16, MOST_PAIRS]))
@settings(max_examples=300, deadline=None)
def test_equals_the_plain_algorithm(join: Join, words: dict[str, int], size: int, most_pairs: int) -> None:
    """However few pairs are kept and however often they are counted again."""
    mark = "##" if join is join_wordpieces else ""
    split = {(word[0], *(mark + character for character in word[1:])): count for word, count in words.items()}
    learner = learner_of(split, join, most_pairs)
    learner.learn(size, 1)
    assert learner.merges == naive_merges(split, size, join)


def test_ties_go_to_the_lower_ids() -> None:
    learner = learner_of({("a", "b"): 5, ("c", "d"): 5})
    learner.learn(6, 1)
    assert learner.merges == [("a", "b"), ("c", "d")]


def test_counts_above_32_bits_decide() -> None:
    """In 32 bits 2**32 + 1 would be 1 and lose to 2; the second merge needs the exact count of what the first left."""
    learner = learner_of({("c", "d"): 2, ("a", "b", "c"): 2**32 + 1, ("b", "c"): 2**33})
    learner.learn(6, 1)
    assert learner.merges == [("b", "c"), ("a", "bc")]


def test_rare_pairs_are_not_merged() -> None:
    learner = learner_of({("a", "b"): 2, ("c", "d"): 1})
    learner.learn(100, 2)
    assert learner.tokens == ["a", "b", "c", "d", "ab"]


def test_words_of_one_letter_repeated() -> None:
    learner = learner_of({("a",) * 5: 3})
    learner.learn(10, 1)
    assert learner.tokens == ["a", "aa", "aaa", "aaaaa"]  # (aa, a) before (aa, aa)


def test_joining_wordpieces() -> None:
    assert join_wordpieces("un", "##able") == "unable"
    assert join_wordpieces("##a", "##b") == "##ab"
