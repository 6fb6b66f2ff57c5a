"""Token vectors from counts alone: the truncated factorization of positive pointwise mutual information (PPMI).

Tokens that occur near the same tokens get similar vectors, before any training. Skip-gram with negative sampling
factorizes nearly the same matrix (Levy and Goldberg, "Neural word embedding as implicit matrix factorization",
NeurIPS 2014), but counting and one factorization take only seconds. The choices here are those of Levy, Goldberg and
Dagan (TACL 2015, aclanthology.org/Q15-1016) that held up in our own comparisons (docs/measurements.md): contexts
smoothed by an exponent of 3/4, no shift, and the square root of the eigenvalues.

Shape suffixes: V vocabulary, E width of a vector, S width of the searched subspace (E + OVERSAMPLING, at most V).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from schemas.randomness import key
from trainer.distributed.threads import single_thread
from trainer.distributed.watchdog import progress

CONTEXT_EXPONENT = 0.75
"""Counts of contexts are raised to this power, which lowers the mutual information with rare tokens. It is word2vec's
constant."""

EIGENVALUE_EXPONENT = 0.5
"""Eigenvectors are scaled by their eigenvalues to this power. 0 loses 0.4 nats after half a minute, 1 loses 0.1."""

OVERSAMPLING = 32
"""Columns of the subspace beyond E, which make its first E directions accurate (Halko et al., arXiv:0909.4061). They
take 5 to 10; more cost little here."""

ITERATIONS = 6
"""Products with the matrix, each of which turns the subspace toward the eigenvectors of the largest eigenvalues. Chosen
by hand: Halko et al. take one or two, and each more makes the vectors more accurate."""

BLOCK_COLUMNS = 64
"""Columns multiplied at once. With 30,000 rows, 64 columns fit into a processor's cache, and 800 do not."""

BLOCK_ROWS = 1024
"""Rows of the matrix whose mutual information is computed at once."""

Triples = tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]]
"""Unordered pairs of tokens with a positive weight: (first, second, weight), with first <= second."""


class WordVectors(NamedTuple):
    """vectors_VE: float32, with a standard deviation of 1 over the tokens that have a vector, 0 elsewhere.

    has_vector_V: bool: whether a token has any mutual information.
    """

    vectors_VE: torch.Tensor
    has_vector_V: torch.Tensor


def word_vectors(
    triples: Iterable[Triples], context_weights_V: NDArray[np.int64], width: int, seed: int
) -> WordVectors:
    """Return a vector for each token. The result does not depend on the number of threads.

    context_weights_V: the total weight of each token's pairs, as for `ppmi`.
    seed: for the subspace to start from, and for the rotation of the result.
    """
    matrix = ppmi(cooccurrence_matrix(triples, len(context_weights_V)), context_weights_V)
    has_vector_V = torch.from_numpy(np.diff(matrix.indptr) > 0)

    generator = torch.Generator().manual_seed(key(seed, "word vectors") >> 1)  # torch takes 63 bits
    with single_thread():
        vectors_VE = rotated(factorize(matrix, width, generator), generator)

        # Tokens without mutual information have rows of zeros, except for rounding.
        vectors_VE[~has_vector_V] = 0
        if has_vector_V.any():
            vectors_VE /= vectors_VE[has_vector_V].std()
    return WordVectors(vectors_VE.float(), has_vector_V)


def cooccurrence_matrix(triples: Iterable[Triples], vocabulary_size: int) -> sparse.csr_matrix:
    """Return the symmetric (V, V) matrix of weights in float64: entry [a, b] counts a and b near each other.

    A pair of equal tokens counts twice, because each of the two is a context of the other.
    """
    no_tokens = np.zeros(0, dtype=np.uint32)
    parts: list[Triples] = [(no_tokens, no_tokens, np.zeros(0, dtype=np.int64))]
    for part in triples:
        parts.append(part)
        progress()

    # Built once, from all parts: adding a matrix for each of thousands of files would copy the sum each time.
    first, second, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
    del parts
    shape = (vocabulary_size, vocabulary_size)
    upper = sparse.csr_matrix((weight.astype(np.float64), (first, second)), shape=shape)
    del first, second, weight
    return sparse.csr_matrix(upper + upper.T)


def ppmi(cooccurrences: sparse.csr_matrix, context_weights_V: NDArray[np.int64]) -> sparse.csr_matrix:
    """Return the positive pointwise mutual information (PPMI) of a symmetric (V, V) matrix of weights, in float32.

    The value of a token a with a context b is log(p(a, b) / (p(a) q(b))), or 0 if that is negative, where q is the
    smoothed distribution of contexts. Each of two tokens is a context of the other, so the two values are averaged,
    which makes the result symmetric.

    context_weights_V: the total weight of each token's pairs, with those of equal tokens twice. These are the row sums
    of the matrix of all pairs. This one may lack rare pairs: with its own row sums, the values would be too large.

    The matrix is overwritten: it has two entries for each pair of tokens, and copies of it would take gigabytes.
    """
    weights_V = context_weights_V.astype(np.float64)
    smoothed_V = weights_V**CONTEXT_EXPONENT
    total = smoothed_V.sum()

    directed = cooccurrences
    entries_before_V = directed.indptr
    for start in range(0, len(weights_V), BLOCK_ROWS):
        end = min(start + BLOCK_ROWS, len(weights_V))
        block = slice(entries_before_V[start], entries_before_V[end])
        entries = np.diff(entries_before_V[start : end + 1])

        # p(a, b) / p(a) is the share of b among the contexts of a.
        share_of_context = directed.data[block] / np.repeat(weights_V[start:end], entries)
        expected_share = smoothed_V[directed.indices[block]] / total
        directed.data[block] = np.maximum(np.log(share_of_context / expected_share), 0)

    directed.eliminate_zeros()
    return sparse.csr_matrix((directed + directed.T) * 0.5, dtype=np.float32)


def factorize(matrix: sparse.csr_matrix, width: int, generator: torch.Generator) -> torch.Tensor:
    """Return (V, E) float64: the eigenvectors of the eigenvalues of largest magnitude of a symmetric matrix, scaled.

    Uses subspace iteration from random columns, then the Rayleigh-Ritz method (Halko et al., arXiv:0909.4061). If the
    vocabulary is smaller than E, the last columns are zero.
    """
    vocabulary_size = len(matrix.indptr) - 1
    columns = min(width + OVERSAMPLING, vocabulary_size)
    subspace_VS = torch.randn(vocabulary_size, columns, generator=generator, dtype=torch.float64)

    for _ in range(ITERATIONS):
        subspace_VS, _ = torch.linalg.qr(product(matrix, subspace_VS))

    # Projected onto the subspace, the matrix is small enough for an exact eigendecomposition. Rounding makes it
    # slightly asymmetric, so it is averaged with its transpose.
    projected_SS = subspace_VS.T @ product(matrix, subspace_VS)
    eigenvalues_S, eigenvectors_SS = torch.linalg.eigh((projected_SS + projected_SS.T) / 2)

    largest = eigenvalues_S.abs().argsort(descending=True, stable=True)[:width]
    scales = eigenvalues_S[largest].abs() ** EIGENVALUE_EXPONENT
    vectors_VE = torch.zeros(vocabulary_size, width, dtype=torch.float64)
    vectors_VE[:, : len(largest)] = (subspace_VS @ eigenvectors_SS[:, largest]) * scales
    return vectors_VE


def product(matrix: sparse.csr_matrix, dense_VS: torch.Tensor) -> torch.Tensor:
    """Return matrix @ dense, (V, S) float64, computed in float32: each iteration corrects the last one's rounding."""
    blocks = []
    for block in dense_VS.float().split(BLOCK_COLUMNS, dim=1):
        blocks.append(matrix @ block.numpy())
        progress()  # the other ranks wait here, for minutes if the vocabulary and the vectors are large
    return torch.from_numpy(np.concatenate(blocks, axis=1)).double()


def rotated(vectors_VE: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the vectors after a random rotation.

    A rotation preserves all inner products. It spreads the information of the first few eigenvectors over all
    dimensions, and so over all attention heads.
    """
    width = vectors_VE.shape[1]
    random_EE = torch.randn(width, width, generator=generator, dtype=torch.float64)
    rotation_EE, _ = torch.linalg.qr(random_EE)
    return vectors_VE @ rotation_EE
