"""Learns a Unigram vocabulary (Kudo 2018, arXiv:1804.10959) as sentencepiece's trainer does, from exact word counts.

Frequent substrings are the first pieces. Expectation maximization then fits their probabilities to the corpus, and the
quarter of them whose loss costs the corpus the least likelihood is dropped. This repeats until the vocabulary has its
size. Characters are never dropped.

Differences from sentencepiece: substrings are counted with the words' counts; the loss is computed with expected counts
instead of those of the best segmentation; the last cut is also by loss instead of by probability; and at the end the
probabilities of the remaining pieces are fitted again, without the prior.

    unigram_words.py   words folded and cut into the parts that contain the pieces
    substrings.py      frequent substrings and where they are
    lattice.py         expected counts of pieces over all segmentations

Shape suffixes: N parts of words, S pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.vocab.exact_math import Floats, exp_digamma, natural_log
from pipeline.vocab.lattice import STRINGS_AT_ONCE, chunks_of
from pipeline.vocab.substrings import MAX_PIECE, Ints, Occurrences, Substrings, frequent_substrings
from pipeline.vocab.words import Words
from schemas.ragged import offsets_of

SEEDS_PER_PIECE = 10  # frequent substrings at the start, but at least MIN_SEEDS and at most MAX_SEEDS
MIN_SEEDS = 100_000
MAX_SEEDS = 1_000_000  # as in sentencepiece

# sentencepiece's numbers: rounds of expectation maximization between cuts, the share of the pieces that a cut leaves,
# how far above the size the prior is used, and the expected count below which a piece is dropped.
ROUNDS = 2
SHRINKING = 0.75
LAST_CUT_FROM = 1.1
MIN_EXPECTED = 0.5

FINAL_ROUNDS = 3


@dataclass(frozen=True)
class Pieces:
    """Learned pieces, the most probable first, and the natural logarithms of their probabilities."""

    spellings: list[str]
    scores: list[float]


def learn_pieces(parts: Words, size: int) -> Pieces:
    """Learn at most `size` pieces from parts of words, each of which occurs once, the longest first.

    There are fewer if the parts have too few frequent substrings, and more if they have more than `size` characters,
    which the caller must prevent.
    """
    return _Learner(parts, size).learn()


class _Learner:
    """The state of learning: the remaining pieces, their probabilities and their lattices.

    Two sets of lattices shrink together: those of the parts, and those of the pieces themselves, which show what
    replaces a dropped piece.
    """

    def __init__(self, parts: Words, size: int):
        self._size = size
        self._characters_T = parts.characters_T
        limit = min(max(MIN_SEEDS, SEEDS_PER_PIECE * size), MAX_SEEDS)
        seeds = frequent_substrings(parts, limit)
        self._starts_S = seeds.starts_S
        self._lengths_S = seeds.lengths_S

        self._lattices_of_parts = chunks_of(parts.lengths_N, parts.counts_N, seeds.occurrences)
        members = np.argsort(-seeds.lengths_S, kind="stable")
        members = members[seeds.lengths_S[members] > 1]
        lengths_N = seeds.lengths_S[members]
        self._lattices_of_pieces = chunks_of(lengths_N, np.ones_like(lengths_N), _occurrences_in_pieces(seeds, members))
        self._piece_of_string = [members[i : i + STRINGS_AT_ONCE] for i in range(0, len(members), STRINGS_AT_ONCE)]

        covered = (seeds.counts_S * seeds.lengths_S).astype(np.float64)
        self._probability_S = covered / math.fsum(covered.tolist())
        self._expected_S = covered

    def learn(self) -> Pieces:
        """Fit and cut until at most `size` pieces remain, then fit without the prior."""
        last_cut_from = max(self._size, int(LAST_CUT_FROM * self._size))
        while True:
            for _ in range(ROUNDS):
                self._fit_with_prior()
            if len(self._lengths_S) <= last_cut_from:
                break
            self._cut(max(last_cut_from, int(SHRINKING * len(self._lengths_S))))

        if len(self._lengths_S) > self._size:
            self._cut(self._size)
        for _ in range(FINAL_ROUNDS):
            self._fit()
        return self._result()

    def _expect(self) -> Floats:
        expected_S = np.zeros(len(self._lengths_S))
        for chunk in self._lattices_of_parts:
            chunk.add_expected(self._probability_S, expected_S)
        return expected_S

    def _fit_with_prior(self) -> None:
        """Do one round with a sparse Dirichlet prior (Kudo's trainer), which drops rare pieces."""
        expected_S = self._expect()
        is_kept_S = (expected_S >= MIN_EXPECTED) | (self._lengths_S == 1)
        self._expected_S = np.maximum(expected_S, MIN_EXPECTED)
        self._keep(is_kept_S)

        total = np.array([math.fsum(self._expected_S.tolist())])
        self._probability_S = exp_digamma(self._expected_S) / exp_digamma(total)

    def _fit(self) -> None:
        """Do one round of maximum likelihood."""
        self._expected_S = np.maximum(self._expect(), MIN_EXPECTED)
        self._probability_S = self._expected_S / math.fsum(self._expected_S.tolist())

    def _cut(self, size: int) -> None:
        """Drop pieces until `size` remain, or only characters. Among equal losses the first piece is kept."""
        loss_S = self._losses()
        loss_S[self._lengths_S == 1] = np.inf
        ranked = np.argsort(-loss_S, kind="stable")
        is_kept_S = np.zeros(len(loss_S), dtype=bool)
        is_kept_S[ranked[:size]] = True
        self._keep(is_kept_S | (self._lengths_S == 1))

    def _losses(self) -> Floats:
        """Return (S,) float64: the log-likelihood that the corpus loses without each piece; 0 for characters.

        The pieces of its best other segmentation take over its count, which also changes the total.
        """
        count_S = self._expected_S
        total = math.fsum(count_S.tolist())
        loss_S = np.zeros(len(count_S))

        for chunk, piece_N in zip(self._lattices_of_pieces, self._piece_of_string, strict=True):
            string_K, other_K = chunk.best_inner(self._probability_S)
            is_left_K = piece_N[string_K] >= 0  # the lattices of dropped pieces stay in place
            string_K = string_K[is_left_K]
            other_K = other_K[is_left_K]

            log_others_N = np.zeros(len(piece_N))
            np.add.at(log_others_N, string_K, natural_log(count_S[other_K] + count_S[piece_N[string_K]]))
            others_N = np.bincount(string_K, minlength=len(piece_N)).astype(np.float64)

            strings = np.flatnonzero(piece_N >= 0)
            pieces = piece_N[strings]
            others = others_N[strings]
            share: Floats = count_S[pieces] / total
            total_instead: Floats = others * count_S[pieces] - count_S[pieces] + total
            log_instead = log_others_N[strings] - others * natural_log(total_instead)
            loss_S[pieces] = count_S[pieces] * (natural_log(share) - log_instead)
        return loss_S

    def _keep(self, is_kept_S: NDArray[np.bool_]) -> None:
        numbers_S = np.where(is_kept_S, np.cumsum(is_kept_S) - 1, -1).astype(np.int32)
        for chunk in [*self._lattices_of_parts, *self._lattices_of_pieces]:
            chunk.keep(numbers_S)
        for piece_N in self._piece_of_string:
            piece_N[:] = np.where(piece_N >= 0, numbers_S[piece_N], -1)

        self._starts_S = self._starts_S[is_kept_S]
        self._lengths_S = self._lengths_S[is_kept_S]
        self._expected_S = self._expected_S[is_kept_S]
        self._probability_S = self._probability_S[is_kept_S]

    def _result(self) -> Pieces:
        characters = self._characters_T
        spellings = []
        for start, length in zip(self._starts_S.tolist(), self._lengths_S.tolist(), strict=True):
            spellings.append("".join(map(chr, characters[start : start + length].tolist())))

        scores = natural_log(self._probability_S).tolist()
        ranked = sorted(zip(scores, spellings, strict=True), key=lambda piece: (-piece[0], piece[1]))
        return Pieces([spelling for _, spelling in ranked], [score for score, _ in ranked])


def _occurrences_in_pieces(seeds: Substrings, members: Ints) -> list[Occurrences]:
    """Return where pieces occur inside the pieces `members`, which are laid end to end in this order."""
    offsets = offsets_of(seeds.lengths_S[members])[:-1]
    layers = []
    for length, layer in enumerate(seeds.occurrences, start=1):
        positions = [np.zeros(0, dtype=np.int32)]
        pieces = [np.zeros(0, dtype=np.int32)]
        # A layer is empty if all of its substrings were left out.
        for shift in range(MAX_PIECE - length + 1 if len(layer.positions_P) else 0):
            inside = np.flatnonzero(seeds.lengths_S[members] >= shift + length)
            wanted = seeds.starts_S[members[inside]] + shift
            places = np.searchsorted(layer.positions_P, wanted.astype(layer.positions_P.dtype))
            places = np.minimum(places, len(layer.positions_P) - 1)
            is_there = layer.positions_P[places] == wanted
            positions.append((offsets[inside[is_there]] + shift).astype(np.int32))
            pieces.append(layer.piece_P[places[is_there]])

        order = np.argsort(np.concatenate(positions), kind="stable")
        layers.append(Occurrences(np.concatenate(positions)[order], np.concatenate(pieces)[order]))
    return layers
