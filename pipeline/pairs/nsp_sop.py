"""Which sentences become segment A and segment B of a row, and the label that is true of them.

The rules are google-research/bert's create_pretraining_data.py, mended where its labels are not true:

    target    max_length - 3 tokens; with probability short_seq_prob one length in [2, max_length - 3] for the document
    chunk     whole sentences until the target or the document's end; A is its first 1 to n-1 sentences, uniformly
    nsp       a fair coin: 0 = B is the rest of the chunk; 1 = B is a run of sentences from a random place of another
              document, and the rest of the chunk is put back
    sop       B is the rest of the chunk; a fair coin: 0 = in order, 1 = A and B exchanged (arXiv:1909.11942)
    too long  tokens leave the longer segment (B when equal), each from the front or the back by a fair coin

A chunk of one sentence has no B. Google then borrows one and calls the pair random, whatever the coin says, which moves
the label shares to 64% on short documents. Here it takes the sentence after it along, or at the document's end the one
before, before any label is drawn (and gives that one back when the coin says random); a document of one sentence is
dropped and counted. Everything works on lengths and places: no token is touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from schemas.randomness import Draws, key

Objective = Literal["nsp", "sop", "full_sentences", "doc_sentences"]


Ledger = Counter[tuple[str, int]]
"""What was left out or cut: (reason, number of the document in the shard) -> count."""
ALONE = "the shard's only document: no other to draw from"
TOO_SHORT = "document of fewer than two sentences"
EMPTY = "document without a token of the vocabulary"
CUT = "tokens cut from segments too long for a row"


@dataclass(frozen=True)
class PairingOptions:
    """How to pair; the part of the job's options that decides rows. `max_length` counts special tokens."""

    objective: Objective
    max_length: int
    short_seq_prob: float
    seed: int


@dataclass(frozen=True)
class EncodedCorpus:
    """One shard's documents: sentence i is tokens sentences[i] : sentences[i + 1]; document j likewise is sentences.

    Every document has a sentence and every sentence a token.

    Python's own integers, for a scalar read from a numpy array costs ten times as much.
    """

    sentences: list[int]
    documents: list[int]
    ids: list[int]


class PairRow(NamedTuple):
    """Two segments as half-open token ranges, the label, and the numbers of their documents in the shard."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int
    label: int
    document_a: int
    document_b: int


@dataclass
class Pairs:
    """The rows of a shard in reading order, and what no row could be made of."""

    rows: list[PairRow] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Counter)


def pair_sentences(corpus: EncodedCorpus, pairing: PairingOptions, special_tokens: int, pass_number: int) -> Pairs:
    """The rows of a shard; `special_tokens` is how many the row's layout adds (3 for BERT, 4 for RoBERTa)."""
    pairs = Pairs()
    if pairing.objective == "nsp" and len(set(corpus.ids)) < 2:
        pairs.ledger.update((ALONE, j) for j in range(len(corpus.ids)))
        return pairs
    max_tokens = pairing.max_length - special_tokens
    for j, identity in enumerate(corpus.ids):
        if corpus.documents[j + 1] - corpus.documents[j] < 2:
            pairs.ledger[TOO_SHORT, j] += 1
            continue
        draws = Draws(key(pairing.seed, "pairs", pairing.objective, pass_number, identity))
        short = draws.uniform() < pairing.short_seq_prob
        target = 2 + draws.below(max_tokens - 1) if short else max_tokens
        rows = nsp_rows(corpus, j, target, draws) if pairing.objective == "nsp" else sop_rows(corpus, j, target, draws)
        for row in rows:
            excess = row.a_end - row.a_start + row.b_end - row.b_start - max_tokens
            pairs.ledger[CUT, j] += max(excess, 0)
            pairs.rows.append(truncate(row, excess, draws) if excess > 0 else row)
    return pairs


def nsp_rows(corpus: EncodedCorpus, j: int, target: int, draws: Draws) -> Iterator[PairRow]:
    """Document j's rows before truncation: B follows A (0) or comes from another document (1)."""
    tokens, place, last = corpus.sentences, corpus.documents[j], corpus.documents[j + 1]
    while place < last:
        start, end = chunk(tokens, place, last, target)
        middle = start + 1 + draws.below(end - start - 1)
        if draws.uniform() >= 0.5:
            yield PairRow(tokens[start], tokens[middle], tokens[middle], tokens[end], 0, j, j)
            place = end
        else:
            if start < place:  # the sentence before was only for a B in order; A is the one that no row has yet
                start, middle = place, end
            other = other_document(corpus.ids, j, draws)
            begin, limit = corpus.documents[other], corpus.documents[other + 1]
            begin += draws.below(limit - begin)
            stop = sentences_until(tokens, begin, limit, target - (tokens[middle] - tokens[start]))
            yield PairRow(tokens[start], tokens[middle], tokens[begin], tokens[stop], 1, j, other)
            place = middle  # what A left of the chunk is put back


def sop_rows(corpus: EncodedCorpus, j: int, target: int, draws: Draws) -> Iterator[PairRow]:
    """Document j's rows before truncation: two runs of sentences, in their order (0) or exchanged (1)."""
    tokens, place, last = corpus.sentences, corpus.documents[j], corpus.documents[j + 1]
    while place < last:
        start, end = chunk(tokens, place, last, target)
        middle = start + 1 + draws.below(end - start - 1)
        one, two = (tokens[start], tokens[middle]), (tokens[middle], tokens[end])
        yield PairRow(*two, *one, 1, j, j) if draws.uniform() < 0.5 else PairRow(*one, *two, 0, j, j)
        place = end


def other_document(ids: list[int], j: int, draws: Draws) -> int:
    """A document of the shard with another id than document j's; the caller knows that there is one."""
    other = draws.below(len(ids))
    while ids[other] == ids[j]:
        other = draws.below(len(ids))
    return other


def chunk(tokens: list[int], place: int, last: int, target: int) -> tuple[int, int]:
    """Sentences (start, end) from `place` on, at least two of them, until `target` tokens or the document's end."""
    end = sentences_until(tokens, place, last, target)
    if end - place > 1:
        return place, end
    return (place, end + 1) if end < last else (place - 1, end)


def sentences_until(tokens: list[int], start: int, last: int, target: int) -> int:
    """The end of the shortest run of at least one sentence from `start` with `target` tokens, or `last`."""
    end = start + 1
    while end < last and tokens[end] - tokens[start] < target:
        end += 1
    return end


def truncate(row: PairRow, excess: int, draws: Draws) -> PairRow:
    """Drop `excess` tokens from the longer segment, each from its front or back by a fair coin."""
    a, b = row.a_end - row.a_start, row.b_end - row.b_start
    level = min(excess, abs(a - b))  # first the longer one comes down to the other, then they take turns, B first
    from_b = (level if b >= a else 0) + (excess - level + 1) // 2
    front_b = fair_coins(from_b, draws)
    front_a = fair_coins(excess - from_b, draws)
    back_a, back_b = excess - from_b - front_a, from_b - front_b
    return PairRow(row.a_start + front_a, row.a_end - back_a, row.b_start + front_b, row.b_end - back_b, *row[4:])


def fair_coins(n: int, draws: Draws) -> int:
    """How many of n fair coins show heads: set bits among n random bits."""
    heads = 0
    while n > 0:
        heads += (draws.number() & ((1 << min(n, 64)) - 1)).bit_count()
        n -= 64
    return heads
