"""Word vectors from counts: equal to plain loops and to a dense factorization, on any number of threads."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from trainer.models.word_vectors import CONTEXT_EXPONENT, cooccurrence_matrix, factorize, ppmi, word_vectors

TOKENS = 9

Weights = dict[tuple[int, int], int]


def triples_of(weights: Weights, files: int = 2) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the weights in several files, as `statistics` writes them."""
    rows = sorted((first, second, weight) for (first, second), weight in weights.items())
    found = []
    for i in range(files):
        part = np.array(rows[i::files], dtype=np.int64).reshape(-1, 3)
        found.append((part[:, 0].astype(np.uint32), part[:, 1].astype(np.uint32), part[:, 2]))
    return found


def contexts_of(weights: Weights, vocabulary_size: int) -> np.ndarray:
    """Return (V,) int64: the total weight of each token's pairs. A pair of equal tokens counts twice."""
    totals_V = np.zeros(vocabulary_size, dtype=np.int64)
    for (first, second), weight in weights.items():
        totals_V[first] += weight
        totals_V[second] += weight
    return totals_V


pairs_of_tokens = st.tuples(st.integers(0, TOKENS - 1), st.integers(0, TOKENS - 1)).map(lambda p: (min(p), max(p)))
some_weights = st.dictionaries(pairs_of_tokens, st.integers(1, 10**6), min_size=1, max_size=30)


@given(some_weights)
@settings(max_examples=60)
def test_mutual_information_equals_a_plain_loop(weights: Weights) -> None:
    near = np.zeros((TOKENS, TOKENS))
    for (first, second), weight in weights.items():
        near[first, second] += weight
        near[second, first] += weight

    smoothed = [sum(near[token]) ** CONTEXT_EXPONENT for token in range(TOKENS)]

    def information(token: int, context: int) -> float:
        if near[token, context] == 0:
            return 0.0
        share = near[token, context] / sum(near[token])
        return max(0.0, log(share / (smoothed[context] / sum(smoothed))))

    matrix = cooccurrence_matrix(triples_of(weights), TOKENS)
    assert np.array_equal(matrix.toarray(), near)

    found = ppmi(matrix, contexts_of(weights, TOKENS)).toarray()
    for a in range(TOKENS):
        for b in range(TOKENS):
            assert found[a, b] == pytest.approx((information(a, b) + information(b, a)) / 2, abs=1e-5)


@given(some_weights, st.sets(st.integers(0, 29)))
@settings(max_examples=60)
def test_dropped_pairs_do_not_change_the_information_of_kept_ones(weights: Weights, dropped: set[int]) -> None:
    contexts_V = contexts_of(weights, TOKENS)
    kept = {pair: weight for i, (pair, weight) in enumerate(weights.items()) if i not in dropped}
    of_all = ppmi(cooccurrence_matrix(triples_of(weights), TOKENS), contexts_V).toarray()
    of_kept = ppmi(cooccurrence_matrix(triples_of(kept), TOKENS), contexts_V).toarray()

    is_kept = np.zeros((TOKENS, TOKENS), dtype=bool)
    for first, second in kept:
        is_kept[first, second] = True
        is_kept[second, first] = True
    assert np.array_equal(of_kept, np.where(is_kept, of_all, 0))


def test_each_file_is_read_once_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one rank reads up to 4,096 files, the others wait."""
    reported = []
    monkeypatch.setattr("trainer.models.word_vectors.progress", lambda: reported.append(1))
    cooccurrence_matrix(triples_of({(i, i + 1): 1 for i in range(8)}, files=8), TOKENS)
    assert len(reported) >= 8


def test_the_subspace_is_that_of_the_largest_eigenvalues() -> None:
    dense = random_information(400)
    vectors_VE = factorize(sparse.csr_matrix(dense), 24, torch.Generator().manual_seed(1))

    eigenvalues, eigenvectors = np.linalg.eigh(dense.astype(np.float64))
    largest = np.argsort(-np.abs(eigenvalues))[:24]
    best = (eigenvectors[:, largest] * np.abs(eigenvalues[largest])) @ eigenvectors[:, largest].T
    found = (vectors_VE @ vectors_VE.T).numpy()
    assert np.linalg.norm(found - best) < 0.03 * np.linalg.norm(best)


def random_information(size: int) -> np.ndarray:
    """A symmetric matrix whose eigenvalues fall slowly, as those of a corpus do."""
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((size, size)) / np.arange(1, size + 1) ** 0.7
    return np.maximum(vectors @ vectors.T, 0).astype(np.float32)


def test_words_in_the_same_contexts_have_similar_vectors() -> None:
    """Tokens 0 to 3 occur near 10 to 19, tokens 4 to 7 near 20 to 29, and never near each other."""
    weights = {}
    for token in range(8):
        first_context = 10 if token < 4 else 20
        for context in range(first_context, first_context + 10):
            weights[(token, context)] = 60 + 7 * ((token * context) % 11)

    vectors_VE, has_vector_V = word_vectors(triples_of(weights), contexts_of(weights, 32), width=8, seed=0)
    assert has_vector_V.tolist() == [token < 8 or 10 <= token < 30 for token in range(32)]
    assert (vectors_VE[~has_vector_V] == 0).all()
    assert float(vectors_VE[has_vector_V].std()) == pytest.approx(1, rel=1e-5)

    cosine = torch.nn.functional.cosine_similarity
    assert cosine(vectors_VE[0], vectors_VE[3], dim=0) > 0.9
    assert cosine(vectors_VE[0], vectors_VE[5], dim=0) < 0.3


def test_threads_and_files_do_not_show() -> None:
    """Large enough that without `single_thread` the vectors of three threads and of one differ."""
    rng = np.random.default_rng(5)
    tokens = 8_000
    weights = {}
    for first, second, weight in rng.integers(1, tokens, (100_000, 3)):
        weights[(int(min(first, second)), int(max(first, second)))] = int(weight)
    contexts_V = contexts_of(weights, tokens)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        on_three = word_vectors(triples_of(weights, files=3), contexts_V, 128, seed=2).vectors_VE
        assert torch.get_num_threads() == 3
        torch.set_num_threads(1)
        on_one = word_vectors(triples_of(weights, files=1), contexts_V, 128, seed=2).vectors_VE
    finally:
        torch.set_num_threads(before)
    assert torch.equal(on_three, on_one)

    other_seed = word_vectors(triples_of(weights), contexts_V, 128, seed=3).vectors_VE
    assert not torch.equal(other_seed, on_one)


def test_a_vocabulary_smaller_than_the_width_has_columns_of_zeros_before_the_rotation() -> None:
    weights = {(0, 1): 5, (1, 2): 9, (2, 3): 4}
    vectors_VE, _ = word_vectors(triples_of(weights), contexts_of(weights, 5), 16, seed=0)
    assert vectors_VE.shape == (5, 16)
    assert torch.isfinite(vectors_VE).all()
