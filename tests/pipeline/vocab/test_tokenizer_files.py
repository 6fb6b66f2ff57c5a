"""What transformers makes of a vocabulary folder is what the pipeline encodes with."""

import re
import unicodedata
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers
from transformers import AlbertTokenizer, AutoTokenizer, BertTokenizerFast, RobertaTokenizerFast, XLNetTokenizer

from pipeline.words.rules import literal_tokenizer
from schemas.vocabulary import read_vocabulary

TEXT = st.one_of(st.text(), st.text("theca \u4e2d\U0002b820\u00e9\t,.'"))


@pytest.mark.parametrize("folder", ["vocab", "accented_vocab", "byte_vocab", "unigram_vocab", "xlnet_vocab"])
@given(one=TEXT, two=TEXT.filter(bool))  # transformers takes an empty text for none
@settings(max_examples=1000)
def test_autotokenizer_agrees_on_any_text(
    request: pytest.FixtureRequest, loaded, folder: str, one: str, two: str
) -> None:
    path: Path = request.getfixturevalue(folder)
    theirs, ours = loaded(path)
    assert theirs(one, two)["input_ids"] == ours.encode(one, two).ids


MISSED = re.compile("[\U0002b820-\U0002b91f]")  # ideographs that tokenizers' own BERT rules do not set apart

KINDS = [
    ("vocab", BertTokenizerFast),
    ("accented_vocab", BertTokenizerFast),
    ("byte_vocab", RobertaTokenizerFast),
    ("unigram_vocab", AlbertTokenizer),
    ("xlnet_vocab", XLNetTokenizer),
]


@pytest.mark.parametrize(("folder", "kind"), KINDS)
@given(text=TEXT)
@settings(max_examples=300)
def test_the_models_own_classes_agree(request: pytest.FixtureRequest, loaded, folder: str, kind, text: str) -> None:
    path: Path = request.getfixturevalue(folder)
    text = MISSED.sub("x", text) if kind is BertTokenizerFast else text
    if folder in ("unigram_vocab", "xlnet_vocab"):
        text = plain(text)
    assert own_class(kind, path)(text)["input_ids"] == loaded(path)[1].encode(text).ids


def plain(text: str) -> str:
    """Leave out what ALBERT's and XLNet's classes keep, whose rules have no table of sentencepiece's.

    These are invisible characters, white space other than spaces, and Hangul in one character.
    """
    nmt = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    kept = []
    for character in text:
        decomposed = normalizers.NFKD().normalize_str(character)
        is_changed = nmt.normalize_str(decomposed) != decomposed and not unicodedata.combining(decomposed[-1])
        kept.append(" " if is_changed else character)
    return "".join(kept)


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


@pytest.mark.parametrize("folder", ["vocab", "byte_vocab", "unigram_vocab", "xlnet_vocab"])
def test_special_tokens_have_their_roles(request: pytest.FixtureRequest, loaded, folder: str) -> None:
    path: Path = request.getfixturevalue(folder)
    theirs, vocabulary = loaded(path)[0], read_vocabulary(str(path))
    for role in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(theirs, f"{role}_token_id") == vocabulary.special_id(role)
    assert ("token_type_ids" in theirs("a", "b")) == (folder != "byte_vocab")
    assert len(theirs) == vocabulary.size


@pytest.mark.parametrize("folder", ["unigram_vocab", "xlnet_vocab"])
def test_special_tokens_that_are_spelled_out_are_text(request: pytest.FixtureRequest, folder: str) -> None:
    """A Unigram model finds any of its tokens in a text. Characters of special tokens are therefore always cheaper."""
    path: Path = request.getfixturevalue(folder)
    vocabulary = read_vocabulary(str(path))
    model = literal_tokenizer((path / "tokenizer.json").read_bytes())
    spelled = [vocabulary.tokens[i] for i in vocabulary.special_ids]
    spelled += [token for token in vocabulary.tokens if token.startswith("[unused")]
    for token in spelled:
        assert vocabulary.tokens.index(token) not in model.encode(f"a {token} b{token}", add_special_tokens=False).ids


def test_xlnets_special_tokens_have_the_published_ids(xlnet_vocab: Path) -> None:
    vocabulary = read_vocabulary(str(xlnet_vocab))
    assert vocabulary.tokens[:9] == ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    assert vocabulary.special_ids == tuple(range(9)) and vocabulary.is_xlnet
    assert vocabulary.size % 64 == 0

    tokenizer = AutoTokenizer.from_pretrained(xlnet_vocab)
    encoded = tokenizer("the cat", "the dog")
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert tokens[-2:] == ["<sep>", "<cls>"] and tokens.count("<sep>") == 2
    assert encoded["token_type_ids"][-2:] == [1, 2] and tokenizer.padding_side == "left"
