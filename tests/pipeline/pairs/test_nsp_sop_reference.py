"""Pairing against a plain implementation that moves sentences between lists and draws the same random numbers.

The plain code holds every token of a segment, cuts one token at a time and throws one coin at a time. Both must agree
on every row, label and count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.pairs.corpus import EncodedCorpus, PairOptions
from pipeline.pairs.nsp_sop import ALONE, CUT, TOO_SHORT, DrawsInStep, PairRow, pair_sentences
from schemas.manifest import Objective
from schemas.randomness import key
from tests.draws import Draws
from tests.pipeline.pairs.encoded_corpus import corpus_of

Sentence = list[int]
"""Numbers of tokens in the shard."""
PlainRow = tuple[list[int], list[int], int, int, int]
"""Tokens of A, tokens of B, label, document of A, document of B."""

SENTENCE_LENGTHS = st.one_of(st.integers(1, 12), st.integers(1, 60), st.integers(150, 300))
DOCUMENTS = st.lists(st.lists(SENTENCE_LENGTHS, min_size=1, max_size=12), min_size=1, max_size=6)


def sentences_of(corpus: EncodedCorpus) -> list[list[Sentence]]:
    """Each document as a list of sentences, each a list of token numbers."""
    sentences = [list(range(begin, end)) for begin, end in pairwise(corpus.sentence_offsets_N1.tolist())]
    return [sentences[begin:end] for begin, end in pairwise(corpus.document_offsets_D1.tolist())]


def flat(sentences: list[Sentence]) -> list[int]:
    return [token for sentence in sentences for token in sentence]


def take_sentences(sentences: list[Sentence], target: int) -> list[Sentence]:
    """The first sentences: at least one, then more until there are `target` tokens."""
    taken: list[Sentence] = []
    for sentence in sentences:
        if taken and len(flat(taken)) >= target:
            break
        taken.append(sentence)

    return taken


def plain_chunk(sentences: list[Sentence], place: int, target: int) -> tuple[int, int]:
    """Numbers (start, end) of the sentences of a chunk: two at least, borrowed from behind or else from before."""
    end = place + len(take_sentences(sentences[place:], target))
    if end - place >= 2:
        return place, end

    if end < len(sentences):
        return place, end + 1

    return place - 1, end


def plain_sop(sentences: list[Sentence], j: int, target: int, draws: Draws) -> Iterator[PlainRow]:
    """A document's rows before truncation."""
    place = 0
    while place < len(sentences):
        start, end = plain_chunk(sentences, place, target)
        taken = sentences[start:end]
        sentences_in_one = 1 + draws.below(len(taken) - 1)
        one = flat(taken[:sentences_in_one])
        two = flat(taken[sentences_in_one:])

        if draws.uniform() < 0.5:
            yield two, one, 1, j, j
        else:
            yield one, two, 0, j, j

        place = end


def plain_nsp(documents: list[list[Sentence]], ids: list[int], j: int, target: int, draws: Draws) -> Iterator[PlainRow]:
    """A document's rows before truncation."""
    sentences = documents[j]
    place = 0
    while place < len(sentences):
        start, end = plain_chunk(sentences, place, target)
        taken = sentences[start:end]
        sentences_in_a = 1 + draws.below(len(taken) - 1)
        first = taken[:sentences_in_a]

        if draws.uniform() >= 0.5:
            yield flat(first), flat(taken[sentences_in_a:]), 0, j, j
            place = end
            continue

        if start < place:  # the borrowed sentence is already in a row
            first = sentences[place:end]

        other = draws.below(len(ids))
        while ids[other] == ids[j]:
            other = draws.below(len(ids))

        begin = draws.below(len(documents[other]))
        drawn = take_sentences(documents[other][begin:], target - len(flat(first)))
        yield flat(first), flat(drawn), 1, j, other
        place += len(first)


def plain_coins(n: int, draws: Draws) -> int:
    """Heads among n coins: the lowest bits of as many random numbers as they need."""
    heads = 0
    number = 0
    for thrown in range(n):
        if thrown % 64 == 0:
            number = draws.number()
        heads += number % 2
        number //= 2

    return heads


def plain_truncate(a: list[int], b: list[int], max_tokens: int, draws: Draws) -> tuple[list[int], list[int]]:
    """One token at a time from the longer segment, from B when they are equal; B's coins are thrown first."""
    lost_a = 0
    lost_b = 0
    while len(a) - lost_a + len(b) - lost_b > max_tokens:
        if len(a) - lost_a > len(b) - lost_b:
            lost_a += 1
        else:
            lost_b += 1

    front_b = plain_coins(lost_b, draws)
    front_a = plain_coins(lost_a, draws)
    kept_a = a[front_a:][: len(a) - lost_a]
    kept_b = b[front_b:][: len(b) - lost_b]
    return kept_a, kept_b


def plain_pairs(
    corpus: EncodedCorpus, options: PairOptions, special_tokens: int, pass_number: int
) -> tuple[list[PlainRow], Counter[tuple[str, int]]]:
    documents = sentences_of(corpus)
    ids = corpus.document_ids_D.tolist()
    rows: list[PlainRow] = []
    ledger: Counter[tuple[str, int]] = Counter()
    if options.objective == "nsp" and len(set(ids)) == 1:
        return rows, Counter({(ALONE, j): 1 for j in range(len(documents))})

    room = options.max_length - special_tokens
    for j, sentences in enumerate(documents):
        if len(sentences) == 1:
            ledger[TOO_SHORT, j] = 1
            continue

        draws = Draws(key(options.seed, "pairs", options.objective, pass_number, ids[j]))
        target = room
        if draws.uniform() < options.short_seq_prob:
            target = 2 + draws.below(room - 1)

        # A generator, because truncating one row draws random numbers before the next row does.
        made = plain_sop(sentences, j, target, draws)
        if options.objective == "nsp":
            made = plain_nsp(documents, ids, j, target, draws)

        for a, b, label, document_a, document_b in made:
            ledger[CUT, j] += max(0, len(a) + len(b) - room)
            kept_a, kept_b = plain_truncate(a, b, room, draws)
            rows.append((kept_a, kept_b, label, document_a, document_b))

    return rows, ledger


def plain(row: PairRow) -> PlainRow:
    tokens_a = list(range(row.a_start, row.a_end))
    tokens_b = list(range(row.b_start, row.b_end))
    return tokens_a, tokens_b, row.label, row.document_a, row.document_b


@pytest.mark.parametrize("objective", ["nsp", "sop"])
@given(
    documents=DOCUMENTS,
    max_length=st.integers(8, 140),
    special_tokens=st.integers(3, 4),
    short_seq_prob=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 999),
    data=st.data(),
)
@settings(max_examples=300)
def test_rows_equal_the_plain_algorithm(
    objective: Objective,
    documents: list[list[int]],
    max_length: int,
    special_tokens: int,
    short_seq_prob: float,
    seed: int,
    data: st.DataObject,
) -> None:
    """Whatever the lengths, also when documents share an id."""
    ids = data.draw(st.lists(st.integers(1, 4), min_size=len(documents), max_size=len(documents)))
    corpus = corpus_of(documents, ids)
    options = PairOptions(objective, max_length, short_seq_prob, seed)

    rows_R7, found_ledger = pair_sentences(corpus, options, special_tokens, seed % 3)
    rows, ledger = plain_pairs(corpus, options, special_tokens, seed % 3)
    assert [plain(PairRow(*row)) for row in rows_R7.tolist()] == rows
    assert found_ledger == ledger


def test_coins_are_the_lowest_bits_of_as_few_draws_as_hold_them() -> None:
    coins = np.array([0, 1, 2, 63, 64, 65, 127, 128, 129, 200])
    keys = np.arange(len(coins), dtype=np.uint64)
    draws = DrawsInStep(keys)
    plain_draws = [Draws(draw_key) for draw_key in keys.tolist()]

    heads = draws.fair_coins(coins, np.arange(len(coins)))
    assert heads.tolist() == list(map(plain_coins, coins.tolist(), plain_draws))
    assert draws.numbers().tolist() == [plain.number() for plain in plain_draws]  # as many were drawn


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 2**32 - 1)), min_size=1, max_size=5))
def test_integers_below_a_limit_are_exact(drawn: list[tuple[int, int]]) -> None:
    keys, limits = zip(*drawn, strict=True)
    found = DrawsInStep(np.array(keys, dtype=np.uint64)).below(np.array(limits))
    assert found.tolist() == [Draws(draw_key).below(limit) for draw_key, limit in drawn]
