"""Words that do not fit into memory are refused before learning, with the --min_word_count that would fit."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.vocab.memory import (
    THRESHOLDS,
    WordAmounts,
    all_words,
    available_memory,
    check_fit,
    estimated_memory,
    listed_from,
    tally_words,
    words_below,
)
from schemas import shards
from schemas.errors import DataError

NONE = WordAmounts(0, 0, 0)
COUNTS = st.dictionaries(st.text(min_size=1), st.integers(1, 2_000_000), max_size=30)


def table_of(counts: dict[str, int]) -> pa.Table:
    return pa.table([pa.array(counts.keys(), pa.string()), list(counts.values())], schema=shards.COUNTS_SCHEMA)


@given(counts=COUNTS, row=st.integers(0, len(THRESHOLDS) - 1))
def test_tallies_are_exact(counts: dict[str, int], row: int) -> None:
    tally = tally_words(table_of(counts))
    rare = {word: count for word, count in counts.items() if count < THRESHOLDS[row]}
    for found, expected in ((words_below(tally, row), rare), (all_words(tally), counts)):
        assert found == WordAmounts(len(expected), sum(map(len, expected)), sum(expected.values()))


@given(left=COUNTS, right=COUNTS)
def test_tallies_of_partitions_add_up(left: dict[str, int], right: dict[str, int]) -> None:
    right = {f"{word}, right": count for word, count in right.items()}
    left = {f"{word}, left": count for word, count in left.items()}
    added = tally_words(table_of(left)) + tally_words(table_of(right))
    assert np.array_equal(added, tally_words(table_of(left | right)))


def test_words_that_do_not_fit_are_refused_with_a_count_that_does() -> None:
    counts = {f"w{i:05}": 1 + i % 7 for i in range(7_000)}
    tally = tally_words(table_of(counts))
    memory = words_below(tally, 4).bytes_needed("wordpiece")  # as many words as occur less than 5 times: 4 of 7

    with pytest.raises(DataError) as refused:
        check_fit(tally, NONE, memory, "wordpiece")

    message = str(refused.value)
    assert "7,000 different words with 42,000 characters" in message
    found = re.search(r"--min_word_count (\d+) fits and leaves out (\d,\d+) of 7,000", message)
    assert found is not None and found.groups() == ("4", "3,000")
    share = 1000 * (1 + 2 + 3) / sum(counts.values())
    assert f"{share:.3%} of the text" in message
    check_fit(tally, words_below(tally, int(np.flatnonzero(THRESHOLDS == 4)[0])), memory, "wordpiece")


def test_memory_for_nothing_at_all_says_so() -> None:
    with pytest.raises(DataError, match="no --min_word_count makes them fit"):
        check_fit(tally_words(table_of({"a": 1, "b": 9})), NONE, 1000, "wordpiece")


def test_more_positions_than_32_bits_number_do_not_fit() -> None:
    amounts = WordAmounts(200_000_000, 2_000_000_000, 10**12)
    assert not amounts.fits(1 << 60, "wordpiece")


@given(counts=COUNTS, limit=st.integers(0, 30))
def test_as_many_words_are_listed_as_the_limit_allows(counts: dict[str, int], limit: int) -> None:
    tally = tally_words(table_of(counts))
    lowest = listed_from(tally, limit)
    listed = sum(count >= lowest for count in counts.values())
    assert listed <= limit or lowest == THRESHOLDS[-1]


def test_memory_grows_with_the_text_and_is_known_here() -> None:
    assert estimated_memory(10**7, "wordpiece") < estimated_memory(10**12, "wordpiece") < 200e9
    assert available_memory() > 1 << 20
