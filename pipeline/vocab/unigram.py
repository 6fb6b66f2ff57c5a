"""Learns a Unigram vocabulary (Kudo 2018, arXiv:1804.10959) as sentencepiece's trainer does, from exact word counts.

Frequent substrings are the first tokens. Expectation maximization then fits their probabilities to the corpus, and the
quarter of them whose loss costs the corpus the least likelihood is dropped. This repeats until the vocabulary has its
size. Characters are never dropped.

Differences from sentencepiece: substrings are counted with the words' counts; the loss is computed with expected counts
instead of those of the best segmentation; the last cut is also by loss instead of by probability; and at the end the
probabilities of the remaining tokens are fitted again, without the prior.

The logarithm and digamma are made of additions, multiplications and divisions alone, which IEEE 754 rounds the same
everywhere. numpy's own `exp` and `log` use the processor's widest instructions, and their last bits differ between
processors. A vocabulary must not: a step that is repeated on another machine must write the same bytes.

Shape suffixes: N parts of words, T characters of all of them, S tokens; P positions of substrings of one length, D
distinct substrings of that length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.vocab.counted_words import Words
from pipeline.vocab.lattice import MAX_TOKEN, STRINGS_AT_ONCE, Floats, Ids, Occurrences, chunks_of
from pipeline.words.arrow import Bools, Ints
from schemas.ragged import offsets_of

SEEDS_PER_TOKEN = 10  # frequent substrings at the start, but at least MIN_SEEDS and at most MAX_SEEDS
MIN_SEEDS = 100_000
MAX_SEEDS = 1_000_000  # as in sentencepiece

# sentencepiece's numbers: rounds of expectation maximization between cuts, the share of the tokens that a cut leaves,
# how far above the size the prior is used, and the expected count below which a token is dropped.
ROUNDS = 2
SHRINKING = 0.75
LAST_CUT_FROM = 1.1
MIN_EXPECTED = 0.5

FINAL_ROUNDS = 3

_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
_LOG_TERMS = 12  # of the series below: its argument is at most 0.0295, so the remainder is below 1e-17
_EXP_TERMS = 10
_HALVINGS = 6
_SHIFT = 6


@dataclass(frozen=True)
class LearnedTokens:
    """Learned tokens, the most probable first, and the natural logarithms of their probabilities."""

    spellings: list[str]
    scores: list[float]


def learn_tokens(parts: Words, size: int) -> LearnedTokens:
    """Learn at most `size` tokens from parts of words, each of which occurs once, the longest first.

    There are fewer if the parts have too few frequent substrings, and more if they have more than `size` characters,
    which the caller must prevent.
    """
    return _Learner(parts, size).learn()


class _Learner:
    """The state of learning: the remaining tokens, their probabilities and their lattices.

    Two sets of lattices shrink together: those of the parts, and those of the tokens themselves, which show what
    replaces a dropped token.
    """

    def __init__(self, parts: Words, size: int):
        self._size = size
        self._characters_T = parts.characters_T
        limit = min(max(MIN_SEEDS, SEEDS_PER_TOKEN * size), MAX_SEEDS)
        seeds = frequent_substrings(parts, limit)
        self._starts_S = seeds.starts_S
        self._lengths_S = seeds.lengths_S

        self._lattices_of_parts = chunks_of(parts.lengths_N, parts.counts_N, seeds.occurrences)
        members = np.argsort(-seeds.lengths_S, kind="stable")
        members = members[seeds.lengths_S[members] > 1]
        lengths_N = seeds.lengths_S[members]
        self._lattices_of_tokens = chunks_of(lengths_N, np.ones_like(lengths_N), _occurrences_in_tokens(seeds, members))
        self._token_of_string = [members[i : i + STRINGS_AT_ONCE] for i in range(0, len(members), STRINGS_AT_ONCE)]

        covered = (seeds.counts_S * seeds.lengths_S).astype(np.float64)
        self._probability_S = covered / math.fsum(covered.tolist())
        self._expected_S = covered

    def learn(self) -> LearnedTokens:
        """Fit and cut until at most `size` tokens remain, then fit without the prior."""
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
        """Do one round with a sparse Dirichlet prior (Kudo's trainer), which drops rare tokens."""
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
        """Drop tokens until `size` remain, or only characters. Among equal losses the first token is kept."""
        loss_S = self._losses()
        loss_S[self._lengths_S == 1] = np.inf
        ranked = np.argsort(-loss_S, kind="stable")
        is_kept_S = np.zeros(len(loss_S), dtype=bool)
        is_kept_S[ranked[:size]] = True
        self._keep(is_kept_S | (self._lengths_S == 1))

    def _losses(self) -> Floats:
        """Return (S,) float64: the log-likelihood that the corpus loses without each token; 0 for characters.

        The tokens of its best other segmentation take over its count, which also changes the total.
        """
        count_S = self._expected_S
        total = math.fsum(count_S.tolist())
        loss_S = np.zeros(len(count_S))

        for chunk, token_N in zip(self._lattices_of_tokens, self._token_of_string, strict=True):
            string_K, other_K = chunk.best_inner(self._probability_S)
            is_left_K = token_N[string_K] >= 0  # the lattices of dropped tokens stay in place
            string_K = string_K[is_left_K]
            other_K = other_K[is_left_K]

            log_others_N = np.zeros(len(token_N))
            np.add.at(log_others_N, string_K, natural_log(count_S[other_K] + count_S[token_N[string_K]]))
            others_N = np.bincount(string_K, minlength=len(token_N)).astype(np.float64)

            strings = np.flatnonzero(token_N >= 0)
            tokens = token_N[strings]
            others = others_N[strings]
            share: Floats = count_S[tokens] / total
            total_instead: Floats = others * count_S[tokens] - count_S[tokens] + total
            log_instead = log_others_N[strings] - others * natural_log(total_instead)
            loss_S[tokens] = count_S[tokens] * (natural_log(share) - log_instead)
        return loss_S

    def _keep(self, is_kept_S: Bools) -> None:
        numbers_S = np.where(is_kept_S, np.cumsum(is_kept_S) - 1, -1).astype(np.int32)
        for chunk in [*self._lattices_of_parts, *self._lattices_of_tokens]:
            chunk.keep(numbers_S)
        for token_N in self._token_of_string:
            token_N[:] = np.where(token_N >= 0, numbers_S[token_N], -1)

        self._starts_S = self._starts_S[is_kept_S]
        self._lengths_S = self._lengths_S[is_kept_S]
        self._expected_S = self._expected_S[is_kept_S]
        self._probability_S = self._probability_S[is_kept_S]

    def _result(self) -> LearnedTokens:
        characters = self._characters_T
        spellings = []
        for start, length in zip(self._starts_S.tolist(), self._lengths_S.tolist(), strict=True):
            spellings.append("".join(map(chr, characters[start : start + length].tolist())))

        scores = natural_log(self._probability_S).tolist()
        ranked = sorted(zip(scores, spellings, strict=True), key=lambda token: (-token[0], token[1]))
        return LearnedTokens([spelling for _, spelling in ranked], [score for score, _ in ranked])


def _occurrences_in_tokens(seeds: Substrings, members: Ints) -> list[Occurrences]:
    """Return where tokens occur inside the tokens `members`, which are laid end to end in this order."""
    offsets = offsets_of(seeds.lengths_S[members])[:-1]
    layers = []
    for length, layer in enumerate(seeds.occurrences, start=1):
        positions = [np.zeros(0, dtype=np.int32)]
        tokens = [np.zeros(0, dtype=np.int32)]
        # A layer is empty if all of its substrings were left out.
        for shift in range(MAX_TOKEN - length + 1 if len(layer.positions_P) else 0):
            inside = np.flatnonzero(seeds.lengths_S[members] >= shift + length)
            wanted = seeds.starts_S[members[inside]] + shift
            places = np.searchsorted(layer.positions_P, wanted.astype(layer.positions_P.dtype))
            places = np.minimum(places, len(layer.positions_P) - 1)
            is_there = layer.positions_P[places] == wanted
            positions.append((offsets[inside[is_there]] + shift).astype(np.int32))
            tokens.append(layer.token_P[places[is_there]])

        order = np.argsort(np.concatenate(positions), kind="stable")
        layers.append(Occurrences(np.concatenate(positions)[order], np.concatenate(tokens)[order]))
    return layers


@dataclass(frozen=True)
class Substrings:
    """S substrings: `counts_S` in the corpus, and `starts_S`, each one's first occurrence in the words' characters.

    occurrences: by length, from 1 up; `token_P` are indices into the S substrings.
    """

    starts_S: Ints
    lengths_S: Ints
    counts_S: Ints
    occurrences: list[Occurrences]


def frequent_substrings(words: Words, limit: int) -> Substrings:
    """Return all characters, and the `limit` longer substrings that occur twice and cover the most characters.

    Substrings of length L + 1 are those of length L with one more character, so each length takes one pass of a hash
    table over the positions where the shorter substring is frequent. That finds what a suffix array finds (as in
    sentencepiece) without sorting, and counts each distinct word as often as it occurs.

    A substring that is always followed by the same character in its word is left out, because the longer one says as
    much. The order is by length, then by first occurrence.
    """
    layers = _count_by_length(words)
    _drop_uninformative(layers, limit)

    first = 0
    occurrences = []
    for layer in layers:
        numbers_D = np.where(layer.is_kept_D, first + np.cumsum(layer.is_kept_D) - 1, -1).astype(np.int32)
        first += int(layer.is_kept_D.sum())
        token_P = numbers_D[layer.names_P]
        is_kept_P = token_P >= 0
        occurrences.append(Occurrences(layer.positions_P[is_kept_P], token_P[is_kept_P]))
        layer.forget_positions()

    return Substrings(
        starts_S=np.concatenate([layer.starts_D[layer.is_kept_D] for layer in layers]),
        lengths_S=np.repeat(np.arange(1, len(layers) + 1), [int(layer.is_kept_D.sum()) for layer in layers]),
        counts_S=np.concatenate([layer.counts_D[layer.is_kept_D] for layer in layers]),
        occurrences=occurrences,
    )


class _Layer:
    """The substrings of one length. `names_P` are numbers of distinct substrings, in order of first occurrence."""

    def __init__(self, positions_P: Ids, keys_P: Ints, count_T: Ints):
        encoded = pa.array(keys_P).dictionary_encode()
        self.positions_P = positions_P
        self.names_P: Ids = encoded.indices.to_numpy()
        distinct = len(encoded.dictionary)

        self.counts_D = np.zeros(distinct, dtype=np.int64)
        np.add.at(self.counts_D, self.names_P, count_T[positions_P])

        # The last of several assignments wins, which is the first occurrence because the order is reversed.
        self.starts_D = np.zeros(distinct, dtype=np.int64)
        self.starts_D[self.names_P[::-1]] = positions_P[::-1]
        self.is_kept_D = np.ones(distinct, dtype=bool)

    def forget_dropped(self) -> None:
        """Free the positions of dropped substrings, which take most of the memory."""
        is_kept_P = self.is_kept_D[self.names_P]
        self.positions_P = self.positions_P[is_kept_P]
        self.names_P = self.names_P[is_kept_P]

    def forget_positions(self) -> None:
        self.positions_P = np.zeros(0, dtype=np.int32)
        self.names_P = np.zeros(0, dtype=np.int32)


def _count_by_length(words: Words) -> list[_Layer]:
    """Return the substrings of each length: all characters, and longer substrings that occur at least twice."""
    ends_N = offsets_of(words.lengths_N)[1:]
    end_T = np.repeat(ends_N, words.lengths_N)
    count_T = np.repeat(words.counts_N, words.lengths_N)
    symbols_T = words.characters_T.astype(np.int64)

    # 32 bits are enough, because `check_fit` limits the number of characters.
    layers = [_Layer(np.arange(len(symbols_T), dtype=np.int32), symbols_T, count_T)]
    symbols_T = layers[0].names_P.astype(np.int64)
    alphabet = len(layers[0].counts_D)

    for length in range(2, MAX_TOKEN + 1):
        shorter = layers[-1]
        is_long_enough_P = shorter.positions_P + length <= end_T[shorter.positions_P]
        can_grow_P = is_long_enough_P & (shorter.counts_D[shorter.names_P] > 1)
        positions_P = shorter.positions_P[can_grow_P]
        prefix_P = shorter.names_P[can_grow_P].astype(np.int64)

        layer = _Layer(positions_P, prefix_P * alphabet + symbols_T[positions_P + length - 1], count_T)
        prefix_D = np.zeros(len(layer.counts_D), dtype=np.int64)
        prefix_D[layer.names_P] = prefix_P
        if length > 2:
            # The shorter substring is always followed by this character.
            is_all_D = layer.counts_D == shorter.counts_D[prefix_D]
            shorter.is_kept_D[prefix_D[is_all_D]] = False
            shorter.forget_dropped()
        layer.is_kept_D = layer.counts_D > 1
        layers.append(layer)

    layers[-1].forget_dropped()
    return layers


def _drop_uninformative(layers: list[_Layer], limit: int) -> None:
    """Keep the `limit` substrings of two or more characters that cover most of the corpus; ties go to the first."""
    covered = [layer.counts_D * length for length, layer in enumerate(layers, start=1)]
    candidates = [np.flatnonzero(layer.is_kept_D) for layer in layers[1:]]
    amounts = np.concatenate([amount[places] for amount, places in zip(covered[1:], candidates, strict=True)])
    if len(amounts) <= limit:
        return

    is_chosen = np.zeros(len(amounts), dtype=bool)
    is_chosen[np.argsort(-amounts, kind="stable")[:limit]] = True
    bounds = np.cumsum([len(places) for places in candidates])[:-1]
    for layer, places, chosen in zip(layers[1:], candidates, np.split(is_chosen, bounds), strict=True):
        layer.is_kept_D[places[~chosen]] = False


def natural_log(x: Floats) -> Floats:
    """Return ln(x) for positive, finite x, with a relative error below 1e-15."""
    mantissa, exponent = np.frexp(x)
    is_low = mantissa < _SQRT_HALF
    mantissa = np.where(is_low, 2 * mantissa, mantissa)
    exponent = exponent - is_low

    # ln(m) = 2 artanh(z) with z = (m - 1) / (m + 1), as a power series in z squared.
    z = (mantissa - 1) / (mantissa + 1)
    squared = z * z
    series = np.zeros_like(z)
    for k in range(_LOG_TERMS, -1, -1):
        series = series * squared + 1 / (2 * k + 1)
    return exponent * _LN2 + 2 * z * series


def exp_digamma(x: Floats) -> Floats:
    """Return exp(digamma(x)) for positive x: about x - 1/2, and much less than x below 1.

    digamma(x) = digamma(x + 6) - sum of 1 / (x + k) for k < 6, and exp(digamma(t + 1/2)) has a short asymptotic series
    in 1 / t (DLMF 5.11).
    """
    t = x + (_SHIFT - 0.5)
    cubed = t * t * t
    shifted = t + 1 / (24 * t) - 37 / (5760 * cubed) + 10313 / (2903040 * cubed * t * t)

    correction = np.zeros_like(x)
    for k in range(_SHIFT):
        correction = correction + 1 / (x + k)
    return shifted * _exp_of_negative(correction)


def _exp_of_negative(y: Floats) -> Floats:
    """Return exp(-y) for y from 0 to a few hundred: a Taylor series of y / 2**halvings, squared that many times."""
    halvings = _HALVINGS + np.maximum(np.frexp(y)[1], 0).max(initial=0)
    part = -y / (1 << int(halvings))

    result = np.ones_like(y)
    for k in range(_EXP_TERMS, 0, -1):
        result = 1 + result * part / k
    for _ in range(int(halvings)):
        result = result * result
    return result
