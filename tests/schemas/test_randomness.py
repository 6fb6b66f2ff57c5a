import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.randomness import Draws, key, numbers, permutation, uniforms


def test_numbers_are_those_of_splitmix64() -> None:
    # First outputs for seed 1234567, as published with the reference implementation (prng.di.unimi.it/splitmix64.c).
    draws = Draws(1234567)
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [draws.number() for _ in range(4)] == published
    assert numbers(np.uint64(1234567), np.arange(4)).tolist() == published


def test_keys_are_what_they_were() -> None:
    assert key(7, "pairs", 123) == key("7", "pairs", "123") == 15806726151565132237
    assert key("a", "bc") != key("ab", "c")


@given(st.integers(0, 2**64 - 1), st.integers(1, 10**6))
def test_below_stays_below(draw_key: int, n: int) -> None:
    assert 0 <= Draws(draw_key).below(n) < n


def test_draws_look_uniform() -> None:
    drawn = uniforms(np.uint64(key("uniform")), np.arange(100_000))
    assert abs(drawn.mean() - 0.5) < 0.005
    assert (np.histogram(drawn, 20, (0, 1))[0] > 4700).all()


@given(st.integers(0, 300), st.integers(0, 2**64 - 1))
def test_a_permutation_holds_every_number_once(n: int, permutation_key: int) -> None:
    assert sorted(permutation(n, permutation_key).tolist()) == list(range(n))
