import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.pairs.encoding import Encoder
from schemas.vocabulary import read_vocabulary

PIECES = st.sampled_from(
    [
        "the ",
        "The",
        " ",
        "  ",
        "\t",
        "\n",
        "\u3000",
        "dog's",
        "[SEP]",
        "<mask>",
        "\u4e2d\u6587",
        "\u00e9",
        "1,2",
        "\u2581",
        "``",
        "''",
        "\u0301",
    ]
)
TEXTS = st.one_of(st.text(), st.lists(PIECES).map("".join))


@pytest.mark.parametrize("folder", ["vocab", "byte_vocab", "albert_vocab"])
@given(texts=st.lists(TEXTS, max_size=6))
@settings(max_examples=200, deadline=None)
def test_equals_the_library_on_any_text(request: pytest.FixtureRequest, folder: str, texts: list[str]) -> None:
    path: Path = request.getfixturevalue(folder)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    encoder = Encoder((path / "tokenizer.json").read_bytes(), read_vocabulary(str(path)).model)
    ids, offsets, _ = encoder.encode(pa.array(texts, pa.string()))
    found = [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    assert found == [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def test_the_cache_is_bounded(vocab: Path, monkeypatch: pytest.MonkeyPatch, documents: list[str]) -> None:
    encoder = Encoder((vocab / "tokenizer.json").read_bytes(), "wordpiece")
    expected = encoder.encode(pa.array(documents))[0].tolist()
    monkeypatch.setattr("pipeline.pairs.encoding.MAX_CACHED_PIECES", 3)
    found = [encoder.encode(pa.array([document]))[0].tolist() for document in documents]
    assert list(itertools.chain.from_iterable(found)) == expected
    assert len(encoder._pieces) < 100


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
