"""F1 of chunks in each tagging scheme, and against seqeval for tags of any kind."""

from __future__ import annotations

import random
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


@settings(max_examples=50)
@given(wild_cases())
def test_chunks_and_their_f1_are_seqeval_s(case: tuple[Sentences, Sentences]) -> None:
    predictions, references = case
    with warnings.catch_warnings():
        # It warns of odd tags, and where there is no chunk.
        warnings.simplefilter("ignore")
        assert chunks(references) == get_entities(references)
        assert chunk_f1(predictions, references) == pytest.approx(f1_score(references, predictions), abs=1e-12)


# conlleval's tables: the prefixes of the word before and of this word between which a chunk ends, or begins. On top of
# both, a chunk ends and begins where the type changes.
ENDS = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O"), ("E", "E"), ("E", "I"), ("E", "O")}
BEGINS = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I"), ("O", "E"), ("E", "E"), ("E", "I")}


def conlleval(predictions: Sentences, references: Sentences) -> float:
    """Count chunks as the script does it: in one pass over both columns, remembering whether all was equal so far."""
    correct = found = 0
    equal_so_far = False
    for sentences in zip(predictions, references, strict=True):
        before = [("O", ""), ("O", "")]
        for tags in zip(*([*sentence, "O"] for sentence in sentences), strict=True):
            now = [(prefix, name) for prefix, _, name in (tag.partition("-") for tag in tags)]
            pairs = list(zip(before, now, strict=True))
            ends = [(b[0], n[0]) in ENDS or (b[0] != "O" and b[1] != n[1]) for b, n in pairs]
            begins = [(b[0], n[0]) in BEGINS or (n[0] != "O" and b[1] != n[1]) for b, n in pairs]

            if equal_so_far and (any(ends) or now[0][1] != now[1][1]):
                correct += all(ends) and before[0][1] == before[1][1]
                equal_so_far = False
            equal_so_far |= all(begins) and now[0][1] == now[1][1]
            found += sum(begins)
            before = now
    return 2 * correct / found if found else 0.0


@pytest.mark.parametrize("prefixes", ["BI", "IE"])
def test_the_score_is_conlleval_s(prefixes: str) -> None:
    """In the schemes that the script knows. I- without B- and changes of the type inside a chunk are among them."""
    rng = random.Random(0)
    tags = ["O", *(f"{prefix}-{name}" for prefix in prefixes for name in TYPES)]
    scores = set()
    for _ in range(300):
        references = [rng.choices(tags, k=rng.randint(0, 8)) for _ in range(rng.randint(1, 6))]
        predictions = [[rng.choice([tag, tag, rng.choice(tags)]) for tag in sentence] for sentence in references]
        scores.add(chunk_f1(predictions, references))
        assert chunk_f1(predictions, references) == pytest.approx(conlleval(predictions, references), abs=1e-12)
    assert len(scores) > 50


def test_without_chunks_the_score_is_0() -> None:
    assert chunk_f1([["O", "O"]], [["O", "O"]]) == 0.0
