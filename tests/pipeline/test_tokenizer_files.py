"""What transformers makes of a vocabulary folder is what the pipeline encodes with."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from schemas.vocabulary import read_vocabulary

TEXT = st.one_of(st.text(), st.text("theca \u4e2d\U0002b820\u00e9\t,.'"))


@pytest.mark.parametrize("folder", ["vocab", "byte_vocab"])
@given(one=TEXT, two=TEXT.filter(bool))  # transformers takes an empty text for none
@settings(max_examples=100, deadline=None)
def test_autotokenizer_agrees_on_any_text(
    request: pytest.FixtureRequest, loaded, folder: str, one: str, two: str
) -> None:
    path: Path = request.getfixturevalue(folder)
    theirs, ours = loaded(path)
    assert theirs(one, two)["input_ids"] == ours.encode(one, two).ids


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
