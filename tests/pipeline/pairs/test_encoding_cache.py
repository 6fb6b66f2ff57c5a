"""The caches and chunks of an encoder, with small tokenizers, against plain loops."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel

from pipeline.pairs import encoding
from pipeline.pairs.encoding import Encoder
from pipeline.pairs.encoding_cache import MISSING, EncodedStrings, EncodingCache
from pipeline.vocab.kinds import maker_of
from pipeline.words.rules import normalizer
from schemas.ragged import offsets_of
from schemas.vocabulary import read_vocabulary
from schemas.vocabulary_kinds import Model, kind_of

ALPHABET = sorted(ByteLevel.alphabet())


def small_tokenizer(model: Model, *added: AddedToken) -> bytes:
    """WordPiece of single letters, or bytes and four merges; and added tokens."""
    specials = kind_of(model).specials[0].all
    if model == "wordpiece":
        tokens = [*specials, *"abcd'.,", "##a", "##b", "##c", "ab", "##bc"]
        vocab = {token: i for i, token in enumerate(tokens)}
        tokenizer: Any = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=6))
        tokenizer.normalizer = normalizer(lowercase=True)
    else:
        merges = [("a", "b"), ("\u0120", "ab"), ("c", "c"), ("\u0120", "\u0120")]
        letters = [*specials, *ALPHABET, "ab", "\u0120ab", "cc", "\u0120\u0120"]
        tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(letters)}, merges))
    tokenizer.pre_tokenizer = maker_of(model).pre_tokenizer()
    tokenizer.add_special_tokens(list(specials))
    tokenizer.add_tokens(list(added))
    return tokenizer.to_str().encode()


SENTENCES = st.lists(
    st.lists(st.sampled_from(["a", "b", "c", "ab", "abc", "'", ".", " ", "   ", "\t", "\u00e9", "Abcabcab"])).map(
        "".join
    ),
    max_size=6,
)


def marks_of(run: str, words: list[str]) -> list[int]:
    """A mark for each character of the words, by a rule that looks at both the run and the place in the word."""
    return [(len(run) + place + number) % 3 for number, word in enumerate(words) for place in range(len(word))]


def mark_all(runs: list[str], words_of_run: list[list[str]]) -> NDArray[np.int8]:
    marks = [mark for run, words in zip(runs, words_of_run, strict=True) for mark in marks_of(run, words)]
    return np.array(marks, np.int8)


@pytest.mark.parametrize("model", ["wordpiece", "bytebpe"])
@pytest.mark.parametrize("with_added", [False, True])
@given(lots=st.lists(SENTENCES, min_size=1, max_size=3), most=st.sampled_from([0, 2, 1_000_000]))
@settings(max_examples=20)
def test_lots_of_sentences_equal_the_library(model: Model, with_added: bool, lots: list[list[str]], most: int) -> None:
    """Lot after lot by one encoder, however large its cache."""
    data = small_tokenizer(model, *([AddedToken("bb", normalized=False)] if with_added else []))
    library = Tokenizer.from_str(data.decode())
    library.encode_special_tokens = True
    encoder = Encoder(data, model)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoding, "MAX_CACHED_PIECES", most)
        for lot in lots:
            ids_T, offsets_N1, marks_T = encoder.encode(pa.array(lot, pa.string()))
            expected = [library.encode(sentence, add_special_tokens=False).ids for sentence in lot]
            assert [ids_T[a:b].tolist() for a, b in itertools.pairwise(offsets_N1)] == expected
            assert marks_T is None and ids_T.dtype == np.int32 and offsets_N1.dtype == np.int64


@given(lots=st.lists(SENTENCES, min_size=1, max_size=3), most=st.sampled_from([0, 2, 1_000_000]))
@settings(max_examples=20)
def test_a_token_has_the_mark_of_its_first_character(lots: list[list[str]], most: int) -> None:
    data = small_tokenizer("wordpiece")
    library: Any = Tokenizer.from_str(data.decode())
    encoder = Encoder(data, "wordpiece", mark_all)

    def plain(run: str) -> list[tuple[int, int]]:
        """(id, mark) of each token of a run."""
        words = [word for word, _ in library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str(run))]
        marks = marks_of(run, words)
        found, place = [], 0
        for word in words:
            first = place
            for token in library.model.tokenize(word):
                found.append((token.id, marks[first]))
                first += len(token.value.removeprefix("##"))
            place += len(word)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoding, "MAX_CACHED_PIECES", most)
        for lot in lots:
            encoded = encoder.encode(pa.array(lot, pa.string()))
            expected = [pair for sentence in lot for run in sentence.split(" ") for pair in plain(run)]
            assert encoded.marks_T is not None
            assert list(zip(encoded.ids_T.tolist(), encoded.marks_T.tolist(), strict=True)) == expected


def test_a_cache_of_long_pieces_is_cleared_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_CACHED_BYTES", 100)
    encoder = Encoder(small_tokenizer("wordpiece"), "wordpiece")
    for letter in "abcd":
        encoder.encode(pa.array([letter * 90]))
        assert len(encoder._pieces) == 1


STRINGS = st.one_of(
    st.text("ab", max_size=3),
    st.sampled_from(["", "\0", "a\0", "b" * 17, "\u4e2d" * 6]),
    st.text(max_size=20),
)


@given(lots=st.lists(st.dictionaries(STRINGS, st.lists(st.integers(0, 9), max_size=4)), max_size=4))
@settings(max_examples=100)
def test_a_cache_is_a_dictionary(lots: list[dict[str, list[int]]]) -> None:
    cache = EncodingCache()
    plain: dict[str, list[int]] = {}
    for lot in lots:
        strings = list(lot)
        is_new = (cache.find(pa.array(strings, pa.string())) == MISSING).tolist()
        assert is_new == [string not in plain for string in strings]
        new = [string for string in strings if string not in plain]
        ids = [i for string in new for i in lot[string]]
        lengths = np.array([len(lot[string]) for string in new], np.int64)
        encoded = EncodedStrings(np.array(ids, np.int32), offsets_of(lengths), None)
        numbers = cache.add(pa.array(new, pa.string()), encoded)
        assert numbers.tolist() == list(range(len(plain), len(plain) + len(new)))
        plain |= {string: lot[string] for string in new}
        assert len(cache) == len(plain)

        strings = [*reversed(plain), *plain]
        numbers_R = cache.find(pa.array(strings, pa.string()))
        ids_T, offsets_R1, marks_T = cache.encoded.take(numbers_R)
        assert ids_T.tolist() == [i for string in strings for i in plain[string]]
        assert np.diff(offsets_R1).tolist() == [len(plain[string]) for string in strings]
        assert offsets_R1[0] == 0 and marks_T is None
        assert ids_T.dtype == np.int32 and numbers_R.dtype == np.int64


@pytest.mark.parametrize("folder", ["vocab", "byte_vocab"])
def test_chunks_leave_no_trace(
    request: pytest.FixtureRequest, folder: str, monkeypatch: pytest.MonkeyPatch, documents: list[str]
) -> None:
    path: Path = request.getfixturevalue(folder)
    data = (path / "tokenizer.json").read_bytes()
    model = read_vocabulary(str(path)).model
    expected = Encoder(data, model).encode(pa.array(documents))

    monkeypatch.setattr("pipeline.pairs.encoding.CHUNK_BYTES", 100)
    encoder = Encoder(data, model)
    assert len(list(encoder.encode_chunks(pa.array(documents)))) > 3
    found = encoder.encode(pa.array(documents))
    assert found.ids_T.tolist() == expected.ids_T.tolist()
    assert found.offsets_N1.tolist() == expected.offsets_N1.tolist()


def test_a_slice_of_sentences(vocab: Path, documents: list[str]) -> None:
    encoder = Encoder((vocab / "tokenizer.json").read_bytes(), "wordpiece")
    ids, offsets, _ = encoder.encode(pa.array(documents))
    cut, cut_offsets, _ = encoder.encode(pa.array(documents).slice(3, 4))
    assert cut.tolist() == ids[offsets[3] : offsets[7]].tolist()
    assert cut_offsets.tolist() == (offsets[3:8] - offsets[3]).tolist()
