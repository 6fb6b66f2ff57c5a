import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.randomness import GOLDEN, key, mix, numbers, permutation, uniforms
from tests.draws import Draws


def test_numbers_are_those_of_splitmix64() -> None:
    # First outputs for seed 1234567, as published with the reference implementation (prng.di.unimi.it/splitmix64.c).
    draws = Draws(1234567)
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [draws.number() for _ in range(4)] == published
    assert numbers(np.uint64(1234567), np.arange(4)).tolist() == published


def test_keys_are_what_they_were() -> None:
    assert key(7, "pairs", 123) == key("7", "pairs", "123") == 15806726151565132237
    assert key("a", "bc") != key("ab", "c")


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**40), min_size=1, max_size=5))
def test_arrays_and_single_draws_are_the_same_numbers(draw_key: int, counters: list[int]) -> None:
    """For any key and counter, with sums and products above 2**64."""
    expected = [Draws((draw_key + counter * GOLDEN) % 2**64).number() for counter in counters]
    keys = np.full(len(counters), draw_key, dtype=np.uint64)

    assert numbers(np.uint64(draw_key), np.array(counters)).tolist() == expected
    assert numbers(keys, np.array(counters)).tolist() == expected
    assert numbers(keys, counters[0]).tolist() == expected[:1] * len(counters)
    assert uniforms(keys, np.array(counters)).tolist() == [(number >> 11) / 2**53 for number in expected]


def test_mixing_leaves_its_argument_as_it_is() -> None:
    x = np.arange(10, dtype=np.uint64)
    mixed = mix(x)

    assert x.tolist() == list(range(10))
    assert mixed.dtype == np.uint64
    assert len(set(mixed.tolist())) == 10


@given(st.integers(0, 60), st.integers(0, 2**64 - 1))
def test_a_permutation_sorts_by_the_numbers_of_its_key(n: int, permutation_key: int) -> None:
    draws = Draws(permutation_key)
    drawn = [draws.number() for _ in range(n)]

    assert permutation(n, permutation_key).tolist() == sorted(range(n), key=lambda i: drawn[i])
