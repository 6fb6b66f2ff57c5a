from __future__ import annotations

import random
import re

import numpy as np
import pytest
from datasketch import MinHash
from hypothesis import given
from hypothesis import strategies as st

from pipeline.near_duplicates import signatures
from pipeline.near_duplicates.signatures import (
    IDEOGRAPHS,
    PERMUTATIONS,
    distinct_signatures,
    hash_words,
    minhash_signatures,
    signature_rows,
)
from schemas.randomness import mix

WORDS = [f"word{i}" for i in range(3000)]


def signature(text: str) -> np.ndarray:
    return minhash_signatures([[text]])[0]


def plain_signature(text: str) -> list[int]:
    """Every shingle and every permutation, one after the other."""
    words = hash_words(text.lower())[0].tolist()
    words += [0] * (5 - len(words))
    word_factors = signatures._word_factors().tolist()
    factors, offsets = signatures._permutations()

    minima = [0xFFFFFFFF] * PERMUTATIONS
    for start in range(len(words) - 4):
        added = sum(word * factor for word, factor in zip(words[start : start + 5], word_factors, strict=True))
        shingle = int(mix(np.array([added % 2**64], np.uint64))[0]) >> 32
        for i in range(PERMUTATIONS):
            minima[i] = min(minima[i], (int(factors[i]) * shingle + int(offsets[i])) % 2**32)
    return minima


texts = st.lists(st.sampled_from(["Red", "red", "blue", "中文", "-", "x_1"]), max_size=12).map(" ".join)


@given(st.lists(texts, max_size=8))
def test_signatures_are_those_of_plain_loops_whatever_documents_are_together(documents: list[str]) -> None:
    found = minhash_signatures([[text] for text in documents])
    assert found.shape == (len(documents), PERMUTATIONS)
    assert found.tolist() == [plain_signature(text) for text in documents]


def test_long_documents_and_groups_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    documents = [[" ".join(rng.choices(WORDS, k=rng.choice([0, 3, 50, 2000])))] for _ in range(60)]
    expected = minhash_signatures(documents)
    assert expected.tolist() == [minhash_signatures([document])[0].tolist() for document in documents]

    monkeypatch.setattr(signatures, "_SHINGLES_AT_A_TIME", 100)
    assert minhash_signatures(documents).tolist() == expected.tolist()


def test_the_error_is_that_of_independent_permutations_and_of_datasketch() -> None:
    """Over 300 pairs: no bias, and the deviation of 128 independent draws, as datasketch's signatures have."""
    rng = random.Random(3)
    pairs = []
    for _ in range(300):
        words = rng.choices(WORDS, k=300)
        changed = list(words)
        for place in rng.sample(range(300), 10):
            changed[place] = rng.choice(WORDS)
        pairs.append((words, changed))

    documents = [[" ".join(words)] for pair in pairs for words in pair]
    minima = minhash_signatures(documents).reshape(300, 2, PERMUTATIONS)
    ours = np.mean(minima[:, 0] == minima[:, 1], axis=1)
    shingles = [[{" ".join(words[i : i + 5]) for i in range(296)} for words in pair] for pair in pairs]
    truth = np.array([len(a & b) / len(a | b) for a, b in shingles])
    theirs = np.array([_datasketch_estimate(a, b) for a, b in shingles])

    expected = np.sqrt(np.mean(truth * (1 - truth) / PERMUTATIONS))
    for estimates in (ours, theirs):
        errors = estimates - truth
        assert abs(errors.mean()) < 4 * expected / np.sqrt(300)
        assert 0.8 * expected < errors.std() < 1.2 * expected


def _datasketch_estimate(one: set[str], two: set[str]) -> float:
    minhashes = []
    for shingles in (one, two):
        made = MinHash(num_perm=PERMUTATIONS, seed=1, scheme="affine32")
        made.update_batch([shingle.encode() for shingle in shingles])
        minhashes.append(made)
    return minhashes[0].jaccard(minhashes[1])


def test_chinese_is_compared_by_characters() -> None:
    text = "".join(chr(0x4E00 + i % 700) for i in range(800))
    changed = text[:400] + "\u4e8c" + text[401:]
    assert np.mean(signature(text) == signature(changed)) > 0.9


def test_rows_hold_the_lowest_8_bits_and_copies_once() -> None:
    ids, minima = distinct_signatures([7, 5, 7], [["One two."], ["Three."], ["One two."]])
    rows = signature_rows(ids, minima)
    assert rows["document"].to_pylist() == [5, 7]
    assert rows["minima"].to_pylist()[1] == bytes(value & 255 for value in signature("One two.").tolist())


def test_a_run_without_documents_has_no_rows() -> None:
    assert signature_rows(*distinct_signatures([], [])).num_rows == 0


WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\W{IDEOGRAPHS}]+")

any_texts = st.text(st.one_of(st.sampled_from(list("ab _-.é中文あ\u30fb\ud800𝔸")), st.characters()), max_size=80)


def check(text: str) -> None:
    """The words are those of the regular expression, and words are equal exactly if their hashes are."""
    found = list(WORD.finditer(text))
    hashes, positions = hash_words(text)
    assert positions.tolist() == [word.start() for word in found]
    hash_of_word = {word.group(): value for word, value in zip(found, hashes.tolist(), strict=True)}
    assert [hash_of_word[word.group()] for word in found] == hashes.tolist()
    assert len(set(hash_of_word.values())) == len(hash_of_word)


@given(any_texts)
def test_words_are_those_of_the_regular_expression(text: str) -> None:
    check(text)


@given(any_texts, st.integers(1, 5))
def test_where_a_text_is_cut_leaves_no_trace(text: str, size: int) -> None:
    whole = hash_words(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signatures, "HASHED_CHARACTERS", size)
        signatures._powers.cache_clear()
        cut = hash_words(text)
    signatures._powers.cache_clear()
    assert whole[0].tolist() == cut[0].tolist()
    assert whole[1].tolist() == cut[1].tolist()


def test_long_texts_and_long_words() -> None:
    check(" ".join(f"word{i}" for i in range(40_000)))
    check("a" * 300_000 + " " + "a" * 299_999 + " a" + "中" * 200_000)
