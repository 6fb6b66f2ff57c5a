from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.pairs.encoding import Encoder
from schemas.vocabulary import read_vocabulary


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
