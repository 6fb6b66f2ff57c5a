"""Byte-pair encoding: learns merges from word counts (Sennrich et al., arXiv:1508.07909), deterministically.

The most frequent pair of neighboring symbols becomes one symbol, over and over. Among pairs with equal counts, the one
with the lower symbol ids wins. Ids follow from the alphabet's order and from the merges so far, and counts are exact
64-bit integers, so equal word counts always give equal merges.

    symbol_array.py   the words as sequences of symbols: find a pair, replace it, report which counts change
    pair_counts.py    the counts of the most frequent pairs, and which one is next
    bpe.py            the loop over merges, and the tokens that they make

WordPiece and byte-level BPE both use it. WordPiece here is the bottom-up kind that merges by count, as `tokenizers`
trains it; Google never published its own trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pipeline.vocab.pair_counts import MAX_PAIRS, PairCounts, pair_of
from pipeline.vocab.symbol_array import FEW, SymbolArray, WordSymbols, sum_by_key

Join = Callable[[str, str], str]
"""A function from the spellings of two neighboring symbols to the spelling of their merge."""


def join_bytes(left: str, right: str) -> str:
    """Join two byte-level BPE symbols. Example: `join_bytes("un", "able")` -> `"unable"`."""
    return left + right


def join_wordpieces(left: str, right: str) -> str:
    """Join two WordPiece symbols. Example: `join_wordpieces("un", "##able")` -> `"unable"`."""
    return left + right.removeprefix("##")


class BPETrainer:
    """Learns merges. `tokens[i]` spells symbol i: first the alphabet, then one token per merge."""

    def __init__(
        self,
        words: WordSymbols,
        alphabet: Sequence[str],
        join: Join,
        max_pairs: int = MAX_PAIRS,
        forbidden: frozenset[str] = frozenset(),
    ):
        """Prepare to merge the symbols of words, which are indices into `alphabet`.

        The alphabet's order decides ties. `max_pairs` bounds memory and does not change the result. Pairs that spell
        one of `forbidden` are not merged.
        """
        self._forbidden = forbidden
        self.tokens = list(alphabet)
        self.merges: list[tuple[str, str]] = []
        self._join = join
        self._symbols = SymbolArray(words, len(alphabet))
        self._pairs = PairCounts(max_pairs)

    def train(self, size: int, min_frequency: int) -> None:
        """Merge until there are `size` tokens or no pair occurs `min_frequency` times."""
        self._count_all_pairs(min_frequency)

        while len(self.tokens) < size:
            key = self._pairs.pop_most_frequent()
            if key is not None:
                if self._may_merge(*pair_of(key)):
                    self._merge(*pair_of(key))
            elif self._pairs.floor > min_frequency:
                # The kept pairs are used up, but rarer pairs were left out when they were counted.
                self._count_all_pairs(min_frequency)
            else:
                break

    def _may_merge(self, left: int, right: int) -> bool:
        return not self._forbidden or self._join(self.tokens[left], self.tokens[right]) not in self._forbidden

    def _count_all_pairs(self, min_frequency: int) -> None:
        keys = []
        counts = []
        for left in range(len(self.tokens)):
            left_keys, left_counts = self._symbols.count_pairs_after(left, min_frequency)
            keys.append(left_keys)
            counts.append(left_counts)

        self._pairs.reset(np.concatenate(keys), np.concatenate(counts), min_frequency)

    def _merge(self, left: int, right: int) -> None:
        """Make a token of a pair, and replace the pair by its symbol everywhere.

        No earlier token has the new spelling. Consider a string of characters such that no merge extends across its
        ends: it is divided into symbols in the same way wherever it occurs, because a merge depends only on the two
        symbols that it joins, and a repeated symbol is paired from its left end. So one merge makes all occurrences of
        a token.

        This requires that a spelling identifies a symbol. A whole word "##a" would be the same token as the piece "##a"
        of other words, but BERT's rules make every "#" a separate word.
        """
        merge = (self.tokens[left], self.tokens[right])
        self.merges.append(merge)
        self.tokens.append(self._join(*merge))

        positions_M = self._symbols.find(left, right)
        if len(positions_M) <= FEW:
            self._pairs.add_few(self._symbols.replace_few(positions_M, left, right))
            return

        keys, changes = self._symbols.replace(positions_M, left, right)
        keys_K, changes_K = sum_by_key(keys, changes)
        self._pairs.add(keys_K, changes_K)
