"""Masks against a plain implementation: one row, one word and one integer at a time, in Python's own numbers.

The streams of random numbers, the shares and the orders are written out here again, because stored masks and the masks
of a resumed run depend on them: a change of either is a change of what a seed means.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.masking import KINDS, Kind, Masking, Masks, RowsToMask, draw_masks
from schemas.ragged import offsets_of
from schemas.randomness import GOLDEN, key, numbers
from schemas.vocabulary import Vocabulary
from tests.draws import Draws

TOKENS = [f"w{i}" for i in range(40)] + [f"##p{i}" for i in range(40)]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = Vocabulary("wordpiece", (*TOKENS[:30], *SPECIALS[:3], *TOKENS[30:], *SPECIALS[3:]), "test")
SPECIAL_IDS = [VOCABULARY.tokens.index(token) for token in SPECIALS]
MASK_ID = VOCABULARY.tokens.index("[MASK]")
ORDINARY_IDS = [i for i in range(len(VOCABULARY.tokens)) if i not in SPECIAL_IDS]

ORDER, FATE, REPLACEMENT, LENGTH = range(4)
PROBABILITIES = {"ngram": [6 / 11, 3 / 11, 2 / 11], "span": [0.2 * 0.8**i / (1 - 0.8**10) for i in range(10)]}

# Few special tokens, so that there are words of several pieces and groups of several words between them.
TOKEN = st.one_of(*[st.sampled_from(ORDINARY_IDS)] * 9, st.sampled_from(SPECIAL_IDS))
ROWS = st.lists(st.lists(TOKEN, min_size=1, max_size=120), min_size=1, max_size=5)


def draw(row_key: int, place: int, stream: int) -> int:
    """The number that belongs to a place of a row, below 2**64."""
    counter = place + stream * 2**32
    return Draws((row_key + counter * GOLDEN) % 2**64).number()


def uniform(row_key: int, place: int, stream: int) -> float:
    return (draw(row_key, place, stream) >> 11) / 2**53


def plain_words(ids: list[int]) -> list[list[int]]:
    """Places of each word's tokens; special tokens belong to none."""
    words: list[list[int]] = []
    after_special = True
    for place, token in enumerate(ids):
        if token in SPECIAL_IDS:
            after_special = True
            continue

        if after_special or not VOCABULARY.tokens[token].startswith("##"):
            words.append([])
        words[-1].append(place)
        after_special = False

    return words


def drawn_length(number: int, probabilities: list[float]) -> int:
    """The length whose share of [0, 1) holds the middle of one of 65,536 equal steps."""
    step = (number // 2**48 + 0.5) / 65_536
    total = 0.0
    for length, probability in enumerate(probabilities, 1):
        total += probability
        if step < total:
            return length

    return len(probabilities)


def plain_groups(row_key: int, ids: list[int], kind: Kind) -> list[list[list[int]]]:
    """Groups of words that are masked together, in order."""
    words = plain_words(ids)
    if kind == "whole_word":
        return [[word] for word in words]

    # Groups of drawn lengths, one draw for each word, laid over the row's words until these are used up.
    begin = 0
    begins = {begin}
    for word in words:
        begin += drawn_length(draw(row_key, word[0], LENGTH), PROBABILITIES[kind])
        begins.add(begin)

    groups: list[list[list[int]]] = []
    for i, word in enumerate(words):
        after_special = word[0] > 0 and ids[word[0] - 1] in SPECIAL_IDS
        if i in begins or after_special:
            groups.append([])
        groups[-1].append(word)

    return groups


def plain_row(row_key: int, ids: list[int], masking: Masking) -> tuple[list[int], list[int]]:
    """(places of the masked tokens, what the model sees there)."""
    left = max(1, round(len(ids) * masking.prob))
    if masking.max_predictions is not None:
        left = min(left, masking.max_predictions)

    if masking.kind == "token":
        groups = [[[place]] for place, token in enumerate(ids) if token not in SPECIAL_IDS]
    else:
        groups = plain_groups(row_key, ids, masking.kind)

    # Groups in random order, the words of a group in their own order, each that still fits.
    fate_place = {}
    for group in sorted(groups, key=lambda group: draw(row_key, group[0][0], ORDER)):
        for word in group:
            if len(word) > left:
                continue
            left -= len(word)
            for place in word:
                fate_place[place] = group[0][0] if masking.kind == "span" else place

    places = sorted(fate_place)
    return places, [plain_seen(row_key, ids[place], place, fate_place[place]) for place in places]


def plain_seen(row_key: int, token: int, place: int, fate_place: int) -> int:
    fate = uniform(row_key, fate_place, FATE)
    if fate < 0.8:
        return MASK_ID

    if fate < 0.9:
        return token

    return ORDINARY_IDS[int(uniform(row_key, place, REPLACEMENT) * len(ORDINARY_IDS))]


def flat(rows: list[list[int]]) -> np.ndarray:
    return np.concatenate([np.array(row, dtype=np.uint16) for row in rows])


def draw_rows(rows: list[list[int]], masking: Masking) -> tuple[Masks, list[int]]:
    """(masks, the rows' keys)."""
    ids_T = flat(rows)
    offsets_B1 = offsets_of(np.array([len(row) for row in rows]))
    keys_B = numbers(np.uint64(key("rows")), np.arange(len(rows)))
    masks = draw_masks(RowsToMask(ids_T, offsets_B1, VOCABULARY.starts_word_V[ids_T], keys_B), masking, VOCABULARY)
    return masks, keys_B.tolist()


def assert_equal_to_plain(rows: list[list[int]], masking: Masking) -> None:
    masks, row_keys = draw_rows(rows, masking)
    assert masks.positions_K.dtype == np.int64
    assert masks.seen_K.dtype == np.uint16

    offset = 0
    assert masks.offsets_B1[0] == 0
    for r, ids in enumerate(rows):
        places, seen = plain_row(row_keys[r], ids, masking)
        mine = slice(masks.offsets_B1[r], masks.offsets_B1[r + 1])
        assert (masks.positions_K[mine] - offset).tolist() == places
        assert masks.seen_K[mine].tolist() == seen
        offset += len(ids)

    assert masks.offsets_B1[-1] == len(masks.positions_K)


@pytest.mark.parametrize("kind", KINDS)
@given(rows=ROWS, prob=st.sampled_from([0.05, 0.15, 0.4, 1.0]), max_predictions=st.sampled_from([None, None, 1, 3, 20]))
@settings(max_examples=80)
def test_masks_equal_the_plain_algorithm(
    kind: Kind, rows: list[list[int]], prob: float, max_predictions: int | None
) -> None:
    """Special tokens anywhere, rows without a word, budgets below and above what there is."""
    assert_equal_to_plain(rows, Masking(kind, prob, max_predictions))


@pytest.mark.parametrize("kind", KINDS)
def test_long_words_are_skipped_as_in_the_plain_algorithm(kind: Kind) -> None:
    """Most words exceed the budget, so rows are filled only when all their groups have been looked through."""
    rng = np.random.default_rng(1)
    begin, inside = VOCABULARY.tokens.index("w1"), VOCABULARY.tokens.index("##p1")
    rows = []
    for _ in range(40):
        pieces = rng.choice([1, 2, 8, 9, 10, 11, 12], 60)
        rows.append([token for n in pieces.tolist() for token in [begin] + [inside] * (n - 1)])

    assert_equal_to_plain(rows, Masking(kind, max_predictions=5))
    assert_equal_to_plain(rows, Masking(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_row_and_the_most_rows(kind: Kind) -> None:
    """A row's number and a place in it take 16 bits each of a sorted integer; both limits must hold."""
    rng = np.random.default_rng(2)
    longest = rng.choice(ORDINARY_IDS, 65_536).tolist()
    assert_equal_to_plain([longest, longest[:50]], Masking(kind, prob=0.01))

    most = rng.choice(ORDINARY_IDS, 65_536)
    masks, row_keys = draw_rows([[token] for token in most], Masking(kind))
    assert masks.positions_K.tolist() == list(range(65_536))
    for r in (0, 1, 255, 256, 65_535):
        assert masks.seen_K[r] == plain_seen(row_keys[r], most[r], 0, 0)


@pytest.mark.parametrize("shown", [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.25)])
def test_other_shares_of_what_is_seen(shown: tuple[float, float]) -> None:
    """The same tokens are chosen, and the same random ones are drawn, whatever is shown at them."""
    rows = np.random.default_rng(0).choice(ORDINARY_IDS, (200, 140)).tolist()
    usual, found = (draw_rows(rows, masking)[0] for masking in (Masking(), Masking(shown=shown)))
    assert (found.positions_K == usual.positions_K).all()

    true_K = flat(rows)[found.positions_K]
    shares = ((found.seen_K == MASK_ID).mean(), (found.seen_K == true_K).mean())
    # A random token is the true one in 1 of 80 cases.
    expected = (shown[0], shown[1] + (1 - sum(shown)) / len(ORDINARY_IDS))
    assert shares == pytest.approx(expected, abs=0.02)
    is_random = np.all([(seen_K != MASK_ID) & (seen_K != true_K) for seen_K in (usual.seen_K, found.seen_K)], axis=0)
    assert (found.seen_K[is_random] == usual.seen_K[is_random]).all()
