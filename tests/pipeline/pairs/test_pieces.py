"""Sentences cut into pieces, against plain Python."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.pairs.encoding import cut_into_pieces

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
