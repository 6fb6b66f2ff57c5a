import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.vocab.merges import MergeLearner, join_bytes, join_wordpieces, replace_pair


def naive_merges(words: dict[str, int], size: int) -> list[tuple[str, str]]:
    """Byte-pair encoding as the paper writes it: count all pairs, merge the best, start again."""
    split = {word: list(word) for word in words}
    order = sorted({character for word in words for character in word})
    merges: list[tuple[str, str]] = []
    while len(order) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in split.items():
            for pair in itertools.pairwise(parts):
                pairs[pair] += words[word]
        if not pairs or max(pairs.values()) < 1:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], order.index(pair[0]), order.index(pair[1])))
        if best not in merges:
            merges.append(best)
        if "".join(best) not in order:
            order.append("".join(best))
        numbered = {word: [order.index(part) for part in parts] for word, parts in split.items()}
        pair, new = (order.index(best[0]), order.index(best[1])), order.index("".join(best))
        split = {word: [order[i] for i in replace_pair(parts, pair, new)] for word, parts in numbered.items()}
    return merges


@given(st.dictionaries(st.text("abc", min_size=1, max_size=7), st.integers(1, 9), min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_equals_the_plain_algorithm(words: dict[str, int]) -> None:
    alphabet = sorted({character for word in words for character in word})
    learner = MergeLearner(list(words), list(words.values()), alphabet, join_bytes)
    learner.learn(20, 1)
    assert learner.merges == naive_merges(words, 20)


def test_ties_go_to_the_lower_ids() -> None:
    learner = MergeLearner(["ab", "cd"], [5, 5], list("abcd"), join_bytes)
    learner.learn(6, 1)
    assert learner.merges == [("a", "b"), ("c", "d")]


def test_counts_above_32_bits_decide() -> None:
    """In 32 bits 2**32 + 1 would be 1 and lose to 2."""
    learner = MergeLearner(["ab", "cd"], [2**32 + 1, 2], list("abcd"), join_bytes)
    learner.learn(5, 1)
    assert learner.tokens[-1] == "ab"


def test_rare_pairs_are_not_merged() -> None:
    learner = MergeLearner(["ab", "cd"], [2, 1], list("abcd"), join_bytes)
    learner.learn(100, 2)
    assert learner.tokens == ["a", "b", "c", "d", "ab"]


def test_joining_wordpieces() -> None:
    assert join_wordpieces("un", "##able") == "unable"
    assert join_wordpieces("##a", "##b") == "##ab"
    assert replace_pair([1, 1, 1], (1, 1), 2) == [2, 1]
