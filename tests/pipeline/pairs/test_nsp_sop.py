"""What users rely on in pairs of sentences: true labels, as many of one as of the other, and short rows."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.pairs.corpus import DocumentLedger, EncodedCorpus, PairOptions
from pipeline.pairs.nsp_sop import TOO_SHORT, PairRow, pair_sentences
from tests.pipeline.pairs.encoded_corpus import corpus_of

DOCUMENTS = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=25), min_size=2, max_size=12)


def pairs_of(corpus: EncodedCorpus, options: PairOptions) -> tuple[list[PairRow], DocumentLedger]:
    rows_R7, ledger = pair_sentences(corpus, options, 3, 0)
    return [PairRow(*row) for row in rows_R7.tolist()], ledger


@pytest.mark.parametrize("objective", ["nsp", "sop"])
@given(documents=DOCUMENTS, max_length=st.integers(8, 140), seed=st.integers(0, 99))
@settings(max_examples=150)
def test_every_label_is_true_and_every_row_fits(objective, documents, max_length: int, seed: int) -> None:
    made = corpus_of(documents)
    rows, ledger = pairs_of(made, PairOptions(objective, max_length, 0.1, seed))
    ends = made.sentence_offsets_N1[made.document_offsets_D1].tolist()
    for row in rows:
        assert row.a_end > row.a_start and row.b_end > row.b_start
        assert row.a_end - row.a_start + row.b_end - row.b_start + 3 <= max_length
        assert ends[row.document_a] <= row.a_start and row.a_end <= ends[row.document_a + 1]
        assert ends[row.document_b] <= row.b_start and row.b_end <= ends[row.document_b + 1]
        if objective == "nsp":
            assert (row.document_a != row.document_b) == (row.label == 1)
            assert row.label == 1 or row.b_start >= row.a_end
        else:
            assert row.document_a == row.document_b
            assert (row.b_start < row.a_start) == (row.label == 1)
    short = sum(len(document) < 2 for document in documents)
    assert sum(n for (why, _), n in ledger.items() if why == TOO_SHORT) == short


@pytest.mark.parametrize("objective", ["nsp", "sop"])
@pytest.mark.parametrize("sentences", [2, 3, 40])
def test_labels_are_half_and_half_however_short_the_documents(objective, sentences: int) -> None:
    """Google's builder gives 57 to 67% on short documents: a chunk of one sentence is always called random there."""
    made = corpus_of([[20] * sentences] * (60_000 // sentences))
    labels = Counter(row.label for row in pairs_of(made, PairOptions(objective, 64, 0.1, 1))[0])
    n = labels[0] + labels[1]
    assert abs(labels[1] / n - 0.5) < 4 * 0.5 / n**0.5


def test_a_share_of_documents_is_short() -> None:
    made = corpus_of([[1] * 400] * 500)
    rows, _ = pairs_of(made, PairOptions("sop", 103, 0.3, 0))
    first = {row.document_a: row.a_end - row.a_start + row.b_end - row.b_start for row in reversed(rows)}
    assert 0.2 < sum(n < 100 for n in first.values()) / 500 < 0.4


def test_a_shard_of_copies_takes_no_longer_than_another() -> None:
    made = corpus_of([[5] * 4] * 20_000, [7] * 19_999 + [8])
    rows, _ = pairs_of(made, PairOptions("nsp", 32, 0.1, 0))
    drawn = [row for row in rows if row.label == 1 and row.document_a != 19_999]
    assert len(drawn) > 5_000 and {row.document_b for row in drawn} == {19_999}
