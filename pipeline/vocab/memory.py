"""How many words are rare, and whether all words fit into the memory of the worker that learns from them.

A *tally* is an int64 array (THRESHOLDS + 1, 3). Row t describes the words that occur less often than THRESHOLDS[t]: the
number of distinct words, of their characters, and of their occurrences in the text. The last row describes all words.
The sum of the tallies of two partitions is the tally of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.vocab.kinds import maker_of
from schemas.errors import DataError
from schemas.host_limits import available_bytes
from schemas.vocabulary_kinds import Model

Tally = NDArray[np.int64]


def _thresholds() -> NDArray[np.int64]:
    """Return every number up to 32, then numbers that grow by an eighth at a time, to about a million."""
    numbers = list(range(1, 33))
    while numbers[-1] < 1_000_000:
        numbers.append(numbers[-1] * 9 // 8)
    return np.array(numbers, dtype=np.int64)


THRESHOLDS = _thresholds()

BYTES_PER_WORD = 24
"""Maximum memory for learning, in addition to what kinds.py has for each kind."""

MAX_POSITIONS = 2**31 - 2
"""Maximum characters and gaps, because the trainer numbers them with 32 bits."""

USED_SHARE = 0.8  # of the free memory, because the estimate is not exact and the worker does other things too


@dataclass(frozen=True)
class WordAmounts:
    """Numbers of distinct words, of their characters, and of their occurrences in the text."""

    words: int
    characters: int
    occurrences: int

    def bytes_needed(self, model: Model) -> int:
        """Return the memory needed to learn from these words, in bytes."""
        at_least, per_character = maker_of(model).learning_bytes
        return at_least + BYTES_PER_WORD * self.words + per_character * self.characters

    def fits(self, memory: int, model: Model) -> bool:
        return self.bytes_needed(model) <= memory and self.words + self.characters <= MAX_POSITIONS

    def minus(self, other: WordAmounts) -> WordAmounts:
        """Return the amounts without `other`, the amounts of some of these words."""
        occurrences = self.occurrences - other.occurrences
        return WordAmounts(self.words - other.words, self.characters - other.characters, occurrences)


def estimated_memory(text_bytes: int, model: Model) -> int:
    """Estimate the memory for learning, in bytes, before the words are counted. Too large for a small text.

    Heaps' law, with constants that fit web text from 16 GB (10 million distinct words) to 10 TB (480 million): words =
    10 million * (text bytes / 16 GB) ** 0.6, of 9 characters each.
    """
    words = int(10_000_000 * (text_bytes / 16e9) ** 0.6)
    return WordAmounts(words, 9 * words, 0).bytes_needed(model)


def available_memory() -> int:
    """Return how many bytes learning may use here: a share of what the machine and its control groups leave free."""
    return int(available_bytes() * USED_SHARE)


def tally_words(counts: pa.Table) -> Tally:
    """Return the tally of distinct words and their counts (shards.COUNTS_SCHEMA)."""
    counts_N = counts["count"].to_numpy()
    characters_N = pc.utf8_length(counts["word"]).to_numpy()  # type: ignore[attr-defined]

    # The first threshold above the word's count, or the last row.
    row_N = np.searchsorted(THRESHOLDS, counts_N, side="right")
    tally = np.zeros((len(THRESHOLDS) + 1, 3), dtype=np.int64)
    for column, amounts in enumerate((1, characters_N, counts_N)):
        np.add.at(tally[:, column], row_N, amounts)
    return tally.cumsum(axis=0)


def all_words(tally: Tally) -> WordAmounts:
    return words_below(tally, -1)


def words_below(tally: Tally, row: int) -> WordAmounts:
    """Return the amounts of the words that occur less often than THRESHOLDS[row]."""
    return WordAmounts(*tally[row].tolist())


def listed_from(tally: Tally, limit: int) -> int:
    """Return the lowest threshold that at most `limit` words reach, or the highest threshold if there is none."""
    words_at_least = tally[-1, 0] - tally[:-1, 0]
    fitting = THRESHOLDS[words_at_least <= limit]
    return int(fitting[0] if len(fitting) else THRESHOLDS[-1])


def check_fit(tally: Tally, left_out: WordAmounts, memory: int, model: Model) -> None:
    """Raise DataError unless the words that are not left out fit into `memory` bytes.

    The error names the --min_word_count that would fit, and what it would leave out.
    """
    total = all_words(tally)
    kept = total.minus(left_out)
    if kept.fits(memory, model):
        return

    needed = (
        f"Learning from {kept.words:,} different words with {kept.characters:,} characters takes "
        f"{kept.bytes_needed(model) / 1e9:.1f} GB, and this worker has {memory / 1e9:.1f} GB for it. Give workers more "
        "memory"
    )
    for row, threshold in enumerate(THRESHOLDS.tolist()):
        below = words_below(tally, row)
        if below.words < total.words and total.minus(below).fits(memory, model):
            share = below.occurrences / total.occurrences
            raise DataError(
                f"{needed}, or leave rare words out of learning: --min_word_count {threshold} fits and leaves out "
                f"{below.words:,} of {total.words:,} different words, which are {share:.3%} of the text."
            )
    raise DataError(f"{needed}: no --min_word_count makes them fit.")
