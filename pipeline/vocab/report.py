"""What a vocabulary does to the text it was learnt from, and how two differ. Exact, for it goes by word counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Tokenizer

from schemas.vocabulary import Vocabulary, parse_vocabulary

LISTED = 20  # tokens or words of each kind that a report names
Counts = Iterable[tuple[str, int]]


def describe_vocabulary(tokenizer_json: bytes, counts: Counts) -> dict[str, Any]:
    """Statistics for the manifest: how words fall into tokens, which tokens are longest, rarest and never used."""
    vocabulary = parse_vocabulary(tokenizer_json, "tokenizer.json")
    tokens: Counter[str] = Counter()
    words = unknown = 0
    cut = word_cutter(tokenizer_json)
    for word, count in counts:
        pieces = cut(word)
        words += count
        unknown += count * ("[UNK]" in pieces)
        for piece in pieces:
            tokens[piece] += count
    ordinary = [token for i, token in enumerate(vocabulary.tokens) if i not in vocabulary.special_ids]
    return {
        "tokens_per_word": round(tokens.total() / max(words, 1), 4),
        "unknown_words": unknown,
        "coverage": round(1 - unknown / max(words, 1), 6),
        "single_characters": sum(len(token.removeprefix("##")) == 1 for token in ordinary),
        "never_used": sum(token not in tokens for token in ordinary),
        "longest": sorted(ordinary, key=lambda token: (-len(token), token))[:LISTED],
        "rarest": sorted((t for t in ordinary if t in tokens), key=lambda token: (tokens[token], token))[:LISTED],
    }


def word_cutter(tokenizer_json: bytes) -> Any:
    """A function from a word, as the count table spells it, to its tokens."""
    model = Tokenizer.from_str(tokenizer_json.decode()).model
    return lambda word: [token.value for token in model.tokenize(word)]


def compare_vocabularies(jsons: tuple[bytes, bytes], names: tuple[str, str], counts: Counts) -> Iterator[str]:
    """Lines that tell what two vocabularies share and how they cut the same words, commonest first."""
    a, b = (parse_vocabulary(data, name) for data, name in zip(jsons, names, strict=True))
    shared = set(a.tokens) & set(b.tokens)
    yield f"shared      {len(shared):,} tokens: {len(shared) / a.size:.1%} of A, {len(shared) / b.size:.1%} of B"
    for name, one, other in (("A", a, b), ("B", b, a)):
        yield f"only in {name}   " + " ".join(_first_missing(one, other))
    cutters = [word_cutter(data) for data in jsons]
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
