"""F1 of chunks against seqeval, which counts as conlleval does, for tags of every scheme and of none."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities

from trainer.finetune.metrics.chunks import chunk_f1, chunks, have_prefixes
from trainer.finetune.metrics.metric_table import METRICS

Sentences = list[list[str]]

TYPES = ("PER", "LOC", "A-B", "名")
IOBES_TAGS = ["O", *(f"{prefix}-{name}" for prefix in "BIES" for name in TYPES)]

# Without a prefix, without a type, without either, with other prefixes, of one letter.
ODD = ["PER", "LOC", "B", "I", "E", "S", "B-", "I-", "-", "-PER", "X-PER", ".", ".-PER", "U-LOC", "N", "BPER", "BI-PER"]


@st.composite
def wild_cases(draw: st.DrawFn) -> tuple[Sentences, Sentences]:
    """Predictions and references of any tags, some of the predictions right."""
    tags = st.sampled_from(draw(st.sampled_from([IOBES_TAGS, [*IOBES_TAGS, *ODD]])))
    references = draw(st.lists(st.lists(tags, max_size=8), min_size=1, max_size=6))
    predictions = [[tag if draw(st.booleans()) else draw(tags) for tag in sentence] for sentence in references]
    return predictions, references


@settings(max_examples=150)
@given(wild_cases())
def test_chunks_and_their_f1_are_seqeval_s(case: tuple[Sentences, Sentences]) -> None:
    predictions, references = case
    with warnings.catch_warnings():
        # It warns of odd tags, and where there is no chunk.
        warnings.simplefilter("ignore")
        assert chunks(references) == get_entities(references)
        assert chunk_f1(predictions, references) == pytest.approx(f1_score(references, predictions), abs=1e-12)


def test_without_chunks_the_score_is_0() -> None:
    assert chunk_f1([["O", "O"]], [["O", "O"]]) == 0.0


@pytest.mark.parametrize(("middle", "last", "single"), [("I", "L", "U"), ("I", "E", "S"), ("M", "E", "S")])
def test_chunks_of_one_word_and_last_words_end_in_every_scheme(middle: str, last: str, single: str) -> None:
    labels = ["O", "B-A", f"{middle}-A", f"{last}-A", f"{single}-A"]
    references = [[4, 4, 1, 2, 3, 1, 3, 0]]
    guesses = [[4, 0, 1, 2, 3, 4, 3, 0]]  # of four chunks, the first and the third
    assert METRICS["chunk_f1"].function(references, references, labels) == 1.0
    assert METRICS["chunk_f1"].function(guesses, references, labels) == pytest.approx(2 * 2 / (4 + 4))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["O", "B-PER", "I-PER"], True),
        (["O", "I-ORG"], True),
        (["B", "E", "M", "S"], True),  # words of Chinese sentences
        (["B_PER", "I_PER", "O"], True),
        (["ADJ", "NOUN", "VERB"], False),
        (["B", "E", "S", "V"], False),  # parts of speech, too, may have one letter
        (["0", "1", "2"], False),
        (["PUNCT-COMMA", "NN-PL"], False),
    ],
)
def test_which_tags_are_of_chunks(labels: list[str], expected: bool) -> None:
    assert have_prefixes(labels) == expected
