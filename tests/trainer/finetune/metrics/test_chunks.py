"""F1 of chunks in each tagging scheme, and against seqeval for tags of any kind."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities

from trainer.finetune.metrics.chunks import chunk_f1, chunks

Sentences = list[list[str]]

TYPES = ("PER", "LOC", "A-B", "名")
IOBES = ["O", *(f"{prefix}-{name}" for prefix in "BIES" for name in TYPES)]

# Without a prefix, without a type, without either, with other prefixes, of one letter.
ODD = ["PER", "LOC", "B", "I", "E", "S", "B-", "I-", "-", "-PER", "X-PER", ".", ".-PER", "U-LOC", "N", "BPER", "BI-PER"]


@st.composite
def wild_cases(draw: st.DrawFn) -> tuple[Sentences, Sentences]:
    """Predictions and references of any tags, some of the predictions right."""
    tags = st.sampled_from(draw(st.sampled_from([IOBES, [*IOBES, *ODD]])))
    references = draw(st.lists(st.lists(tags, max_size=8), min_size=1, max_size=6))
    predictions = [[tag if draw(st.booleans()) else draw(tags) for tag in sentence] for sentence in references]
    return predictions, references


@settings(max_examples=50, deadline=None)
@given(wild_cases())
def test_chunks_and_their_f1_are_seqeval_s(case: tuple[Sentences, Sentences]) -> None:
    predictions, references = case
    with warnings.catch_warnings():
        # It warns of odd tags, and where there is no chunk.
        warnings.simplefilter("ignore")
        assert chunks(references) == get_entities(references)
        assert chunk_f1(predictions, references) == pytest.approx(f1_score(references, predictions), abs=1e-12)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-PER I-PER O B-PER B-PER", [(0, 1), (3, 3), (4, 4)]),
        ("I-PER I-PER O I-PER B-PER", [(0, 1), (3, 3), (4, 4)]),
        ("B-PER E-PER O S-PER S-PER", [(0, 1), (3, 3), (4, 4)]),
        ("B-PER E-PER B-PER I-PER E-PER", [(0, 1), (2, 4)]),
        ("I-PER I-LOC I-LOC I-PER O", [(0, 0), (1, 2), (3, 3)]),
        ("O O O", []),
    ],
)
def test_one_text_in_each_scheme(tags: str, found: list[tuple[int, int]]) -> None:
    assert [(first, last) for _, first, last in chunks([tags.split()])] == found


def test_a_chunk_ends_with_its_sentence() -> None:
    assert chunks([["B-PER", "I-PER"], ["I-PER"]]) == [("PER", 0, 1), ("PER", 3, 3)]


def test_without_chunks_the_score_is_0() -> None:
    assert chunk_f1([["O", "O"]], [["O", "O"]]) == 0.0
