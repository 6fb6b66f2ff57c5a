"""From word counts to the tokens of a vocabulary, in the order of their ids.

wordpiece   [PAD] [UNK] [CLS] [SEP] [MASK], the alphabet sorted, then merges in the order learnt
bytebpe     <s> <pad> </s> <unk>, the 256 bytes, merges, and <mask> last, as in RoBERTa
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tokenizers import pre_tokenizers

from pipeline.vocab.merges import MergeLearner, join_bytes, join_wordpieces
from schemas.errors import DataError
from schemas.vocabulary import BERT_SPECIALS, Model

MOST_CUT = 0.005  # share of the text's characters that the alphabet may leave out
MAX_WORD = 100  # characters; a longer word becomes [UNK] when encoded (tokenizers' limit; Google's was 200)


@dataclass(frozen=True)
class Learnt:
    """`tokens[i]` has id i. `cut_characters` were too rare for the alphabet: words that hold one become [UNK]."""

    tokens: list[str]
    merges: list[tuple[str, str]]
    cut_characters: dict[str, int]


def learn(
    words: list[str],
    counts: list[int],
    model: Model,
    size: int,
    min_frequency: int,
    max_alphabet: int | None = None,
    pad_to_multiple: int = 1,
) -> Learnt:
    """Learn a vocabulary of at most `size` tokens, filled up to a multiple with [unusedN] when asked.

    Raises DataError when `size` cannot hold the special tokens and the alphabet.
    """
    if model == "wordpiece":
        learnt = learn_wordpiece(words, counts, size, min_frequency, max_alphabet)
    else:
        learnt = learn_bytebpe(words, counts, size, min_frequency)
    unused = [f"[unused{i}]" for i in range(-len(learnt.tokens) % pad_to_multiple)]
    last = ["<mask>"] if model == "bytebpe" else []  # stays last, as in RoBERTa
    ordinary = learnt.tokens[: len(learnt.tokens) - len(last)]
    return replace(learnt, tokens=[*ordinary, *unused, *last])


def learn_wordpiece(
    words: list[str], counts: list[int], size: int, min_frequency: int, max_alphabet: int | None
) -> Learnt:
    """At most `max_alphabet` characters, by default half the vocabulary; a word with a rarer one is left out."""
    specials = list(BERT_SPECIALS.values())
    at_most = max_alphabet or max(1, size // 2 - len(specials))
    kept, cut = common_characters(zip(words, counts, strict=True), at_most)
    if max_alphabet is None:
        check_coverage(words, counts, cut, size)
    pieces, piece_counts = [], []
    for word, count in zip(words, counts, strict=True):
        if len(word) <= MAX_WORD and kept.issuperset(word):
            pieces.append([word[0], *("##" + character for character in word[1:])])
            piece_counts.append(count)
    alphabet = sorted({piece for word in pieces for piece in word})
    if len(specials) + len(alphabet) > size:
        raise DataError(
            f"--size {size} cannot hold {len(specials)} special tokens and an alphabet of {len(alphabet)} characters. "
            f"Give at least {len(specials) + len(alphabet)}."
        )
    learner = MergeLearner(pieces, piece_counts, alphabet, join_wordpieces)
    learner.learn(size - len(specials), min_frequency)
    return Learnt(specials + learner.tokens, learner.merges, cut)


def check_coverage(words: list[str], counts: list[int], cut: dict[str, int], size: int) -> None:
    """Raises DataError when the characters cut are not rare ones: their words would all be [UNK]."""
    characters = sum(len(word) * count for word, count in zip(words, counts, strict=True))
    if sum(cut.values()) > MOST_CUT * characters:
        raise DataError(
            f"--size {size} cannot hold the alphabet: half of it would leave out {len(cut)} characters that make up "
            f"{sum(cut.values()) / characters:.1%} of the text. Give at least {2 * (size // 2 + len(cut))}."
        )


def learn_bytebpe(words: list[str], counts: list[int], size: int, min_frequency: int) -> Learnt:
    """Every byte has a token, so nothing is ever unknown."""
    first, last = ["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fixed = len(first) + len(alphabet) + len(last)
    if fixed > size:
        raise DataError(f"--size {size} cannot hold {fixed - 256} special tokens and 256 bytes. Give at least {fixed}.")
    learner = MergeLearner(words, counts, alphabet, join_bytes)
    learner.learn(size - len(first) - len(last), min_frequency)
    return Learnt(first + learner.tokens + last, learner.merges, {})


def common_characters(words: Iterable[tuple[str, int]], at_most: int) -> tuple[set[str], dict[str, int]]:
    """(the commonest characters, the others with their counts); ties go to the lower code point."""
    counts: Counter[str] = Counter()
    for word, count in words:
        for character in word:
            counts[character] += count
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    return set(ranked[:at_most]), {character: counts[character] for character in ranked[at_most:]}
