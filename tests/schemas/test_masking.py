"""Shares of masks and of what is seen at them. The masks themselves: test_masking_reference.py."""

import numpy as np
import pytest

from schemas.masking import Masking, RowsToMask, budgets, draw_masks
from schemas.ragged import offsets_of
from schemas.randomness import key, numbers
from schemas.vocabulary import Vocabulary

WORDS = [f"w{i}" for i in range(60)] + [f"##p{i}" for i in range(40)]
VOCABULARY = Vocabulary("wordpiece", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS), "test")


def rows(lengths: list[int]):
    """(ids_T, offsets_B1, word_starts_T) of rows [CLS] ... [SEP] with random tokens between."""
    rng = np.random.default_rng(0)
    ids = np.concatenate([np.r_[2, rng.integers(5, 105, n - 2), 3] for n in lengths])
    return ids, offsets_of(np.array(lengths)), VOCABULARY.starts_word_V[ids]


def keys(n: int):
    return numbers(np.uint64(key("row")), np.arange(n))


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
