"""What transformers makes of a vocabulary folder is what the pipeline encodes with."""

import re
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertTokenizerFast, RobertaTokenizerFast  # type: ignore[attr-defined]

from schemas.vocabulary import read_vocabulary

TEXT = st.one_of(st.text(), st.text("theca \u4e2d\U0002b820\u00e9\t,.'"))


@pytest.mark.parametrize("folder", ["vocab", "byte_vocab"])
@given(one=TEXT, two=TEXT.filter(bool))  # transformers takes an empty text for none
@settings(max_examples=1000, deadline=None)
def test_autotokenizer_agrees_on_any_text(
    request: pytest.FixtureRequest, loaded, folder: str, one: str, two: str
) -> None:
    path: Path = request.getfixturevalue(folder)
    theirs, ours = loaded(path)
    assert theirs(one, two)["input_ids"] == ours.encode(one, two).ids


MISSED = re.compile("[\U0002b820-\U0002b91f]")  # ideographs that tokenizers' own BERT rules do not set apart


@pytest.mark.parametrize(("folder", "kind"), [("vocab", BertTokenizerFast), ("byte_vocab", RobertaTokenizerFast)])
@given(text=TEXT)
@settings(max_examples=300, deadline=None)
def test_the_models_own_classes_agree(request: pytest.FixtureRequest, loaded, folder: str, kind, text: str) -> None:
    path: Path = request.getfixturevalue(folder)
    text = MISSED.sub("x", text) if folder == "vocab" else text
    assert own_class(kind, path)(text)["input_ids"] == loaded(path)[1].encode(text).ids


own_class = lru_cache(lambda kind, path: kind.from_pretrained(path))


@pytest.fixture(scope="module")
def loaded():
    """A function from a folder to (AutoTokenizer, Tokenizer), each loaded once."""
    known: dict[Path, tuple] = {}

    def load(path: Path) -> tuple:
        if path not in known:
            known[path] = (AutoTokenizer.from_pretrained(path), Tokenizer.from_file(str(path / "tokenizer.json")))
        return known[path]

    return load


@pytest.mark.parametrize("folder", ["vocab", "byte_vocab"])
def test_special_tokens_have_their_roles(request: pytest.FixtureRequest, loaded, folder: str) -> None:
    path: Path = request.getfixturevalue(folder)
    theirs, vocabulary = loaded(path)[0], read_vocabulary(str(path))
    for role in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(theirs, f"{role}_token_id") == vocabulary.special_id(role)  # type: ignore[arg-type]
    assert ("token_type_ids" in theirs("a", "b")) == (folder == "vocab")
    assert len(theirs) == vocabulary.size
