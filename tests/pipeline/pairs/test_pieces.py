"""Sentences cut into pieces, and pieces into words, against plain Python."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from pipeline.pairs.encoding import WordCutter, cut_into_pieces
from pipeline.vocab.kinds import maker_of
from pipeline.words.rules import cutter_of, gpt2_pre_tokenizer, normalizer
from schemas.vocabulary_kinds import Model

CHARACTERS = st.one_of(
    st.sampled_from([" ", " ", "a", "B", "'", "s", "re", "ll", "1", ".", "-", "\t", "\x7f"]),
    st.sampled_from(["\u00e9", "\u0301", "\u4e00", "\u9fff", "\u4dff", "\ua000", "\u3400", "\U0002b820", "\uff0c"]),
    st.sampled_from(["\u0085", "\u00a0", "\u1680", "\u2003", "\u200b", "\u2028", "\u202f", "\u205f", "\u3000"]),
)
SENTENCES = st.lists(st.lists(CHARACTERS, max_size=12).map("".join), max_size=8)


def plain_pieces(sentence: str, isolates_ideographs: bool, keeps_white_space: bool) -> list[str]:
    """One character at a time."""
    is_irregular = sentence.lstrip(" ").split(" ") != sentence.split() or sentence.startswith("  ")
    is_whole = keeps_white_space and (is_irregular or any(character < " " for character in sentence))

    pieces: list[str] = []
    after_ideograph = False
    for character in sentence:
        is_ideograph = isolates_ideographs and "\u4e00" <= character <= "\u9fff"
        begins = not pieces or is_ideograph or after_ideograph or (character == " " and not is_whole)
        if begins:
            pieces.append(character)
        else:
            pieces[-1] += character
        after_ideograph = is_ideograph
    return pieces


@pytest.mark.parametrize("rules", [(False, False), (True, False), (False, True)])
@given(sentences=SENTENCES, first=st.integers(0, 3))
@settings(max_examples=300)
def test_pieces_equal_the_plain_algorithm(rules: tuple[bool, bool], sentences: list[str], first: int) -> None:
    """Also for a slice of an array."""
    pieces = cut_into_pieces(pa.array(sentences, pa.string()).slice(first), *rules)
    strings = pieces.parts.to_pylist()
    found = [strings[start:end] for start, end in itertools.pairwise(pieces.offsets_N1.tolist())]
    assert found == [plain_pieces(sentence, *rules) for sentence in sentences[first:]]
    pieces.parts.validate(full=True)


def tokenizer_of(model: Model, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}) if model == "wordpiece" else models.BPE({}, []))
    tokenizer.pre_tokenizer = maker_of(model).pre_tokenizer()
    if model == "wordpiece":
        tokenizer.normalizer = normalizer(lowercase)
    return tokenizer


ASCII_RUNS = st.lists(st.sampled_from([*"abAB019'.,-_$#", "'s", "'re", "'ll", "'D", "''"]), max_size=10).map("".join)


@pytest.mark.parametrize(("model", "lowercase"), [("wordpiece", True), ("wordpiece", False), ("bytebpe", False)])
@given(runs=st.lists(ASCII_RUNS, max_size=6), spaced=st.booleans())
@settings(max_examples=100)
def test_words_of_plain_pieces_equal_the_tokenizers_own(
    model: Model, lowercase: bool, runs: list[str], spaced: bool
) -> None:
    tokenizer = tokenizer_of(model, lowercase)
    cut = cutter_of(tokenizer, model)
    pieces = [f" {run}" if spaced else run for run in runs if run]

    cutter = WordCutter(tokenizer, model)
    array = pa.array(pieces, pa.string())
    assert cutter.is_plain(array).all()

    words = cutter.cut_plain(array)
    strings = words.parts.to_pylist()
    found = [strings[start:end] for start, end in itertools.pairwise(words.offsets_N1.tolist())]
    assert found == [cut(piece if model == "bytebpe" else piece.strip(" ")) for piece in pieces]


@pytest.mark.parametrize("model", ["wordpiece", "bytebpe"])
def test_other_pieces_are_not_plain(model: Model) -> None:
    cutter = WordCutter(tokenizer_of(model, lowercase=True), model)
    for piece in (" ", "\u00e9", "a\tb", "a\x7f", "\x1f", "a\u0301"):
        assert not cutter.is_plain(pa.array([piece]))[0]

    # With its white space as part of words, a whole sentence is one piece.
    assert cutter.is_plain(pa.array(["a  b", " a", "a b "])).tolist() == [False, True, False]


def test_rules_that_differ_from_the_table_are_not_replaced_by_it() -> None:
    tokenizer = tokenizer_of("wordpiece", lowercase=True)
    tokenizer.pre_tokenizer = gpt2_pre_tokenizer()
    assert not WordCutter(tokenizer, "wordpiece").is_plain(pa.array(["a"]))[0]
