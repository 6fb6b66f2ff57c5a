"""F1 of chunks against seqeval and against conlleval's published rules, on 1,000 random cases each."""

from __future__ import annotations

import random
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

from tests.trainer.finetune.metrics.cases import CASES
from trainer.finetune.metrics.conll import Chunk, ChunkScores, chunk_f1, chunk_scores, chunk_scores_by_type, chunks

Sentences = list[list[str]]

TYPES = ("PER", "LOC", "A-B", "名")
IOB = ["O", *(f"{prefix}-{name}" for prefix in "BI" for name in TYPES)]
IOE = ["O", *(f"{prefix}-{name}" for prefix in "IE" for name in TYPES)]
IOBES = ["O", *(f"{prefix}-{name}" for prefix in "BIES" for name in TYPES)]

# Without a prefix, without a type, without either, with other prefixes, of one letter.
ODD = ["PER", "LOC", "B", "I", "E", "S", "B-", "I-", "-", "-PER", "X-PER", ".", ".-PER", "U-LOC", "N", "BPER", "BI-PER"]


@st.composite
def wild_cases(draw: st.DrawFn) -> tuple[Sentences, Sentences]:
    """Predictions and references of any tags, some of the predictions right."""
    tags = st.sampled_from(draw(st.sampled_from([IOB, IOE, IOBES, [*IOBES, *ODD], ODD])))
    references = draw(st.lists(st.lists(tags, max_size=8), min_size=1, max_size=6))
    predictions = [[tag if draw(st.booleans()) else draw(tags) for tag in sentence] for sentence in references]
    return predictions, references


@settings(max_examples=CASES, deadline=None)
@given(wild_cases())
def test_scores_are_seqeval_s(case: tuple[Sentences, Sentences]) -> None:
    predictions, references = case
    scores = chunk_scores(predictions, references)

    with warnings.catch_warnings():
        # It warns of odd tags, and where there is no chunk.
        warnings.simplefilter("ignore")
        assert scores.precision == pytest.approx(precision_score(references, predictions), abs=1e-12)
        assert scores.recall == pytest.approx(recall_score(references, predictions), abs=1e-12)
        assert scores.f1 == pytest.approx(f1_score(references, predictions), abs=1e-12)

        by_type = chunk_scores_by_type(predictions, references)
        of_each_type = f1_score(references, predictions, average=None)
        assert [found.f1 for found in by_type.values()] == pytest.approx(np.ravel(of_each_type).tolist(), abs=1e-12)


@settings(max_examples=CASES, deadline=None)
@given(wild_cases())
def test_chunks_are_seqeval_s(case: tuple[Sentences, Sentences]) -> None:
    for sentences in case:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = get_entities(sentences)
        assert [(chunk.type, chunk.first, chunk.last) for chunk in chunks(sentences)] == expected


# conlleval's two tables of 2004: (prefix of the word before, prefix of this word) where a chunk ends, or begins. On top
# of both, a chunk ends and begins where the type changes.
ENDS = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O"), ("E", "E"), ("E", "I"), ("E", "O")}
BEGINS = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I"), ("O", "E"), ("E", "E"), ("E", "I")}


class Reader:
    """One of conlleval's two columns, read word by word."""

    def __init__(self) -> None:
        self.prefix, self.type = "O", ""
        self.ends, self.begins = False, False
        self.ended_type = ""

    def read(self, tag: str) -> None:
        prefix, _, name = tag.partition("-")
        changed = name != self.type
        self.ends = (self.prefix, prefix) in ENDS or (self.prefix != "O" and changed)
        self.begins = (self.prefix, prefix) in BEGINS or (prefix != "O" and changed)
        self.ended_type = self.type
        self.prefix, self.type = prefix, name


def conlleval(predictions: Sentences, references: Sentences) -> ChunkScores:
    """Count chunks as the script does it: in one pass over both columns, remembering whether all was equal so far."""
    counts: Counter[str] = Counter()
    guessed, labeled = Reader(), Reader()
    equal_so_far = False

    for predicted_tags, labeled_tags in zip(predictions, references, strict=True):
        for predicted_tag, labeled_tag in zip([*predicted_tags, "O"], [*labeled_tags, "O"], strict=True):
            guessed.read(predicted_tag)
            labeled.read(labeled_tag)

            if equal_so_far and guessed.ends and labeled.ends and guessed.ended_type == labeled.ended_type:
                counts["correct"] += 1
                equal_so_far = False
            elif equal_so_far and (guessed.ends != labeled.ends or guessed.type != labeled.type):
                equal_so_far = False

            if guessed.begins and labeled.begins and guessed.type == labeled.type:
                equal_so_far = True
            counts["predicted"] += guessed.begins
            counts["labeled"] += labeled.begins

    return ChunkScores(counts["correct"], counts["predicted"], counts["labeled"])


@pytest.mark.parametrize("tags", [IOB, IOE, [*IOB, "B", "I"]], ids=["IOB", "IOE", "untyped"])
def test_counts_are_conlleval_s(tags: list[str]) -> None:
    """In the schemes that the script of 2004 knows; I- without B- and type changes inside a chunk are among them."""
    rng = random.Random(0)
    correct = 0
    for _ in range(CASES):
        references = [rng.choices(tags, k=rng.randint(0, 8)) for _ in range(rng.randint(1, 6))]
        predictions = [[tag if rng.random() < 0.7 else rng.choice(tags) for tag in tags_] for tags_ in references]

        scores = chunk_scores(predictions, references)
        assert scores == conlleval(predictions, references), (predictions, references)
        correct += scores.correct
    assert correct > CASES


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
    assert [(chunk.first, chunk.last) for chunk in chunks([tags.split()])] == found


def test_a_chunk_ends_with_its_sentence() -> None:
    assert chunks([["B-PER", "I-PER"], ["I-PER"]]) == [Chunk("PER", 0, 1), Chunk("PER", 3, 3)]


def test_by_type() -> None:
    by_type = chunk_scores_by_type([["B-PER", "O", "B-LOC"]], [["B-PER", "B-ORG", "B-PER"]])
    assert by_type == {"LOC": ChunkScores(0, 1, 0), "ORG": ChunkScores(0, 0, 1), "PER": ChunkScores(1, 1, 2)}
    assert by_type["PER"].f1 == pytest.approx(2 / 3)
    assert by_type["LOC"].f1 == by_type["LOC"].recall == by_type["ORG"].precision == 0.0


def test_without_chunks_the_score_is_0() -> None:
    assert chunk_f1([["O", "O"]], [["O", "O"]]) == 0.0


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="sentence 1 has 2 words, but 1 predicted tags"):
        chunk_f1([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(ValueError, match="0 predicted sentences and 1 labeled ones"):
        chunk_f1([], [["O"]])
    with pytest.raises(ValueError, match="a tag is empty"):
        chunk_f1([[""]], [["O"]])
