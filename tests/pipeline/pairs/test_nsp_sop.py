"""What users rely on in pairs of sentences: true labels, as many of one as of the other, and short rows."""

from collections import Counter

import pytest

from pipeline.pairs.corpus import DocumentLedger, EncodedCorpus, PairOptions
from pipeline.pairs.nsp_sop import PairRow, pair_sentences
from tests.pipeline.pairs.encoded_corpus import corpus_of


def pairs_of(corpus: EncodedCorpus, options: PairOptions) -> tuple[list[PairRow], DocumentLedger]:
    rows_R7, ledger = pair_sentences(corpus, options, 3, 0)
    return [PairRow(*row) for row in rows_R7.tolist()], ledger


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
