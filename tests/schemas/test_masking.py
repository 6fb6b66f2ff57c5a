import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.mask_draws import GROUP_LENGTHS, WordSpans, find_words, group_words
from schemas.masking import Kind, Masking, RowsToMask, budgets, draw_masks
from schemas.ragged import offsets_of
from schemas.randomness import key, numbers
from schemas.vocabulary import Vocabulary

WORDS = [f"w{i}" for i in range(60)] + [f"##p{i}" for i in range(40)]
VOCABULARY = Vocabulary("wordpiece", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS), "test")


def rows(lengths: list[int], seed: int = 0):
    """(ids_T, offsets_B1, word_starts_T) of rows [CLS] ... [SEP] with random tokens between."""
    rng = np.random.default_rng(seed)
    ids = np.concatenate([np.r_[2, rng.integers(5, 105, n - 2), 3] for n in lengths])
    return ids, offsets_of(np.array(lengths)), VOCABULARY.starts_word_V[ids]


def keys(n: int, name: str = "row"):
    return numbers(np.uint64(key(name)), np.arange(n))


ROW_LENGTHS = st.lists(st.integers(3, 140), min_size=1, max_size=12)


KINDS = ["token", "whole_word", "ngram", "span"]


@pytest.mark.parametrize("kind", KINDS)
@given(lengths=ROW_LENGTHS, seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_masks_keep_their_rules(kind, lengths: list[int], seed: int) -> None:
    ids, offsets, starts = rows(lengths, seed)
    masking = Masking(kind)
    masks = draw_masks(RowsToMask(ids, offsets, starts, keys(len(lengths))), masking, VOCABULARY)
    counts = np.diff(masks.offsets_B1)
    assert (counts <= budgets(np.array(lengths), masking)).all()
    if kind == "token":
        candidates = np.array(lengths) - 2
        assert (counts == np.minimum(candidates, budgets(np.array(lengths), masking))).all()
    assert (np.diff(masks.positions_K) > 0).all()
    assert not VOCABULARY.is_special_V[ids[masks.positions_K]].any()
    replaced = masks.seen_K[(masks.seen_K != ids[masks.positions_K]) & (masks.seen_K != 4)]
    assert (replaced >= 5).all()


@pytest.mark.parametrize("kind", KINDS[1:])
@given(lengths=ROW_LENGTHS, seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_words_are_masked_whole(kind: Kind, lengths: list[int], seed: int) -> None:
    ids, offsets, starts = rows(lengths, seed)
    masks = draw_masks(RowsToMask(ids, offsets, starts, keys(len(lengths))), Masking(kind), VOCABULARY)
    special = VOCABULARY.is_special_V[ids]
    begins = starts | special | np.r_[True, special[:-1]]
    word = np.cumsum(begins)
    chosen = set(masks.positions_K.tolist())
    for number in np.unique(word[masks.positions_K]):
        assert set(np.flatnonzero(word == number).tolist()) <= chosen


def test_whole_words_equal_a_plain_loop() -> None:
    """The array code against the rule in words: random order, skip what exceeds the budget."""
    lengths = [40, 17, 128, 5]
    ids, offsets, starts = rows(lengths, 3)
    keys_B = keys(4)
    masks = draw_masks(RowsToMask(ids, offsets, starts, keys_B), Masking("whole_word", prob=0.3), VOCABULARY)
    for row, n in enumerate(lengths):
        words: list[list[int]] = []
        for place in range(1, n - 1):
            if starts[offsets[row] + place] or place == 1:
                words.append([])
            words[-1].append(place)
        order = numbers(keys_B[row], np.array([word[0] for word in words]))
        left, expected = round(0.3 * n), []
        for i in np.argsort(order):
            if len(words[i]) <= left:
                left -= len(words[i])
                expected += words[i]
        found = masks.positions_K[masks.offsets_B1[row] : masks.offsets_B1[row + 1]] - offsets[row]
        assert found.tolist() == sorted(expected)


@pytest.mark.parametrize("kind", ["ngram", "span"])
def test_groups_have_the_published_lengths(kind: Kind) -> None:
    ids, offsets, starts = rows([400] * 200)
    words = words_of(ids, offsets, starts)
    groups = group_words(words, may(ids), kind)
    lengths = np.diff(np.append(groups.first_words, len(words.row)))
    inside = lengths[np.diff(groups.row, append=-1) == 0]  # a row's end cuts its last group
    shares = np.bincount(inside, minlength=len(GROUP_LENGTHS[kind]) + 1)[1:] / len(inside)
    assert shares == pytest.approx(GROUP_LENGTHS[kind], abs=4 * (0.25 / len(inside)) ** 0.5)
    mean = GROUP_LENGTHS[kind] @ np.arange(1, len(GROUP_LENGTHS[kind]) + 1)
    assert mean == pytest.approx({"ngram": 18 / 11, "span": 3.797}[kind], abs=0.001)


def may(ids: np.ndarray) -> np.ndarray:
    return ~VOCABULARY.is_special_V[ids]


def words_of(ids: np.ndarray, offsets: np.ndarray, starts: np.ndarray) -> WordSpans:
    return find_words(may(ids), starts, offsets, keys(len(offsets) - 1))


def test_groups_end_at_special_tokens() -> None:
    ids, offsets, starts = rows([60, 61])
    ids[[30, 95]] = 3  # [SEP] between two segments
    words = words_of(ids, offsets, starts)
    begins = group_words(words, may(ids), "span").positions
    assert {1, 31, 61, 96} <= set(begins.tolist())


def test_spans_equal_a_plain_loop() -> None:
    """Groups in random order, their words in order while they fit; one fate for the tokens of a group."""
    ids, offsets, starts = rows([200, 33, 128], 5)
    masking = Masking("span", prob=0.25)
    masks = draw_masks(RowsToMask(ids, offsets, starts, keys(3)), masking, VOCABULARY)
    words = words_of(ids, offsets, starts)
    begins = set(group_words(words, may(ids), "span").positions.tolist())
    for row, n in enumerate([200, 33, 128]):
        groups: list[list[list[int]]] = []
        for position in range(offsets[row] + 1, offsets[row + 1] - 1):
            if position in begins:
                groups.append([])
            if position in words.positions:
                groups[-1].append([])
            groups[-1][-1].append(position)
        order = numbers(keys(3)[row], np.array([group[0][0] - offsets[row] for group in groups]))
        left, expected = round(0.25 * n), []
        for i in np.argsort(order):
            for word in groups[i]:
                if len(word) <= left:
                    left -= len(word)
                    expected += word
        mine = slice(masks.offsets_B1[row], masks.offsets_B1[row + 1])
        assert masks.positions_K[mine].tolist() == sorted(expected)
        for group in groups:
            of_group = np.isin(masks.positions_K, np.concatenate(group))
            seen, true = masks.seen_K[of_group], ids[masks.positions_K[of_group]]
            assert (seen == 4).all() or (seen == true).all() or not (seen == 4).any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_masked_alike_in_any_company(kind: Kind) -> None:
    ids, offsets, starts = rows([30, 50, 20], 1)
    together = draw_masks(RowsToMask(ids, offsets, starts, keys(3)), Masking(kind), VOCABULARY)
    middle = slice(offsets[1], offsets[2])
    alone = draw_masks(
        RowsToMask(ids[middle], np.array([0, 50]), starts[middle], keys(3)[1:2]), Masking(kind), VOCABULARY
    )
    of_middle = slice(together.offsets_B1[1], together.offsets_B1[2])
    assert (together.positions_K[of_middle] - offsets[1]).tolist() == alone.positions_K.tolist()
    assert together.seen_K[of_middle].tolist() == alone.seen_K.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_shares_are_15_percent_and_80_10_10(kind: Kind) -> None:
    ids, offsets, starts = rows([128] * 8000)
    masks = draw_masks(RowsToMask(ids, offsets, starts, keys(8000)), Masking(kind), VOCABULARY)
    assert len(masks.positions_K) == pytest.approx(8000 * 19, rel=0 if kind == "token" else 0.005)  # round(0.15 * 128)
    true = ids[masks.positions_K]
    assert (masks.seen_K == 4).mean() == pytest.approx(0.8, abs=0.01)
    # a random token is the true one in 1 of 100 draws
    assert (masks.seen_K == true).mean() == pytest.approx(0.1 + 0.1 / 100, abs=0.01)


def test_budget_rounds_halves_to_even_and_is_capped() -> None:
    lengths = np.array([3, 10, 30, 128, 512])
    assert budgets(lengths, Masking()).tolist() == [1, 2, 4, 19, 77]  # 1.5 and 4.5 round to even
    assert budgets(lengths, Masking(max_predictions=20)).tolist() == [1, 2, 4, 19, 20]


@pytest.mark.parametrize("shown", [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.25)])
def test_other_shares_of_what_is_seen(shown: tuple[float, float]) -> None:
    """The same tokens are chosen, and the same random ones are drawn, whatever is shown at them."""
    ids, offsets, starts = rows([140] * 200)
    given_rows = RowsToMask(ids, offsets, starts, keys(200))
    usual = draw_masks(given_rows, Masking(), VOCABULARY)
    found = draw_masks(given_rows, Masking(shown=shown), VOCABULARY)
    assert (found.positions_K == usual.positions_K).all()

    true_K = ids[found.positions_K]
    shares = ((found.seen_K == 4).mean(), (found.seen_K == true_K).mean())
    # A random token is the true one in 1 of 100 cases.
    expected = (shown[0], shown[1] + (1 - sum(shown)) / 100)
    assert shares == pytest.approx(expected, abs=0.02)
    is_random = (usual.seen_K != 4) & (usual.seen_K != true_K) & (found.seen_K != 4) & (found.seen_K != true_K)
    assert (found.seen_K[is_random] == usual.seen_K[is_random]).all()
