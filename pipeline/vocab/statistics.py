"""What a vocabulary does to the text it was learnt from, and how two differ. Exact, for it goes by word counts.

Letters: N different words, K their tokens, V the vocabulary, S the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders

from schemas.vocabulary import Model, Vocabulary, parse_vocabulary

LISTED = 20  # tokens or words of each kind that a report names
AT_ONCE = 100_000  # words that are cut at once
Counts = Iterable[tuple[str, int]]
Ints = NDArray[np.int64]


def describe_vocabulary(tokenizer_json: bytes, counts: Iterable[pa.Table], sources: Sequence[str]) -> dict[str, Any]:
    """Statistics for the manifest: how words fall into tokens, by source, and which tokens are longest and rarest.

    `counts` are BY_SOURCE, in as many tables as one likes.
    """
    vocabulary = parse_vocabulary(tokenizer_json, "tokenizer.json")
    totals_3S, used_V = np.zeros((3, len(sources)), np.int64), np.zeros(vocabulary.size, np.int64)
    for by_source in counts:
        add_usage(tokenizer_json, vocabulary, by_source, totals_3S, used_V)
    words, tokens, unknown = totals_3S.sum(1).tolist()
    return {
        **shares(words, tokens, unknown),
        "by_source": {
            name: {"words": words, **shares(words, tokens, unknown)}
            for name, (words, tokens, unknown) in zip(sources, totals_3S.T.tolist(), strict=True)
        },
        **describe_tokens(vocabulary, used_V),
    }


def add_usage(
    tokenizer_json: bytes, vocabulary: Vocabulary, by_source: pa.Table, totals_3S: Ints, used_V: Ints
) -> None:
    """Add each source's words, tokens and unknown words to `totals_3S`, and how often each token occurs to `used_V`."""
    encoded = by_source["word"].combine_chunks().dictionary_encode()
    ids_K, pieces_N = encode_words(tokenizer_json, encoded.dictionary.to_pylist())
    unknown_N = np.zeros(len(pieces_N), dtype=bool)
    unknown_N[np.repeat(np.arange(len(pieces_N)), pieces_N)[ids_K == vocabulary.special_id("unk")]] = True
    word, source, count = encoded.indices.to_numpy(), by_source["source"].to_numpy(), by_source["count"].to_numpy()
    for total_S, amount in zip(totals_3S, (1, pieces_N[word], unknown_N[word]), strict=True):
        np.add.at(total_S, source, count * amount)  # in 64-bit integers; bincount would round to floats
    counts_N = np.zeros(len(pieces_N), dtype=np.int64)
    np.add.at(counts_N, word, count)
    np.add.at(used_V, ids_K, np.repeat(counts_N, pieces_N))


def shares(words: int, tokens: int, unknown: int) -> dict[str, Any]:
    return {
        "tokens_per_word": round(tokens / max(words, 1), 4),
        "unknown_words": unknown,
        "coverage": round(1 - unknown / max(words, 1), 6),
    }


def describe_tokens(vocabulary: Vocabulary, used_V: NDArray[np.int64]) -> dict[str, Any]:
    """What stands out among the ordinary tokens; `used_V` is how often the text holds each."""
    ordinary = vocabulary.ordinary_ids.tolist()
    tokens, rarest_first = vocabulary.tokens, sorted(ordinary, key=lambda i: (used_V[i], vocabulary.tokens[i]))
    lengths = {i: len(tokens[i].removeprefix("##")) for i in ordinary}
    return {
        "single_characters": sum(length == 1 for length in lengths.values()),
        "never_used": int((used_V[vocabulary.ordinary_ids] == 0).sum()),
        "longest": [tokens[i] for i in sorted(ordinary, key=lambda i: (-lengths[i], tokens[i]))[:LISTED]],
        "rarest": [tokens[i] for i in rarest_first if used_V[i]][:LISTED],
    }


def encode_words(tokenizer_json: bytes, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(ids_K of all words end to end, pieces_N: how many each word has); words as the count table spells them."""
    model = Tokenizer(Tokenizer.from_str(tokenizer_json.decode()).model)
    parts, pieces = [], []
    for start in range(0, len(words), AT_ONCE):
        ids = [e.ids for e in model.encode_batch_fast(words[start : start + AT_ONCE], add_special_tokens=False)]
        pieces.append(np.fromiter(map(len, ids), np.int64, len(ids)))
        parts.append(np.fromiter(chain.from_iterable(ids), np.int64))
    none = np.zeros(0, dtype=np.int64)
    return np.concatenate([none, *parts]), np.concatenate([none, *pieces])


def cutter_by_spelling(tokenizer_json: bytes, spelt_by: Model) -> Callable[[str], list[str]]:
    """A function from a word, as the counts of a `spelt_by` vocabulary spell it, to the tokens of another."""
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    if parse_vocabulary(tokenizer_json, "tokenizer.json").model == spelt_by:
        return lambda word: [token.value for token in tokenizer.model.tokenize(word)]
    if spelt_by == "wordpiece":
        return lambda word: tokenizer.encode(word, add_special_tokens=False).tokens
    text = decoders.ByteLevel().decode
    return lambda word: tokenizer.encode(text([word]).strip(), add_special_tokens=False).tokens


def compare_vocabularies(jsons: tuple[bytes, bytes], names: tuple[str, str], counts: Counts) -> Iterator[str]:
    """Lines that tell what two vocabularies share and how they cut the same words, commonest first."""
    a, b = (parse_vocabulary(data, name) for data, name in zip(jsons, names, strict=True))
    shared = set(a.tokens) & set(b.tokens)
    yield f"shared      {len(shared):,} tokens: {len(shared) / a.size:.1%} of A, {len(shared) / b.size:.1%} of B"
    for name, one, other in (("A", a, b), ("B", b, a)):
        yield f"only in {name}   " + " ".join(_first_missing(one, other))
    cutters = [cutter_by_spelling(data, a.model) for data in jsons]
    words, totals, differing = 0, [0, 0], []
    for word, count in counts:
        cuts = [cut(word) for cut in cutters]
        words += count
        totals = [total + count * len(pieces) for total, pieces in zip(totals, cuts, strict=True)]
        if cuts[0] != cuts[1] and len(differing) < LISTED:
            differing.append(f"    {word}: {' '.join(cuts[0])}   |   {' '.join(cuts[1])}")
    in_a, in_b = (total / max(words, 1) for total in totals)
    yield f"per word    {in_a:.4f} tokens in A, {in_b:.4f} in B, over {words:,} words"
    yield "cut differently, commonest first (A | B):" if differing else "all words are cut alike"
    yield from differing


def _first_missing(one: Vocabulary, other: Vocabulary) -> list[str]:
    known = set(other.tokens)
    return [token for token in one.tokens if token not in known][:LISTED]
