"""Tokenizers, published ones too, encode here as in `tokenizers`, whatever their files hold, or are refused by name."""

import itertools
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import AlbertTokenizer, BertTokenizerFast

from pipeline.jobs import pairs as pairs_job
from pipeline.pairs.encoding import Encoder
from pipeline.pairs.published_tokenizer import check_encoding, without_dropout
from pipeline.words.rules import literal_tokenizer
from schemas import shards
from schemas.errors import DataError
from schemas.manifest import read_manifest
from schemas.vocabulary import parse_vocabulary, read_vocabulary

Edit = Callable[[dict], None]

ADDED = [AddedToken("covid19"), AddedToken("mRNA-1273", normalized=False), AddedToken("Dog", single_word=True)]
ADDED += [AddedToken("CAT", single_word=True, normalized=False), AddedToken("xy", lstrip=True)]
ADDED += [AddedToken("Zq", rstrip=True, normalized=False), AddedToken("New York", lstrip=True, rstrip=True)]
ADDED += [AddedToken("(", normalized=False), AddedToken("\u5317\u4eac"), AddedToken("\u00c9t\u00e9")]
SPELLINGS = ["covid19", "COVID19", "mRNA-1273", "mrna-1273", "dog", "Dog", "dogs", "CAT", "cat", "Xy", "xyxy", "Zq"]
SPELLINGS += ["zq", "New York", "new  york", "(", "\u5317\u4eac", "\u5317", "\u4eac", "\u00c9t\u00e9", "ete"]
SPELLINGS += ["E\u0301te\u0301"]
OTHERS = [" ", "  ", "\t", "\u3000", "the", "The ", ".", ",", "'s", "[SEP]", "<mask>", "\u4e2d", "\u00e9", "\u0301"]
OTHERS += [
    "O\u0323ko\u0323\u0301",
    "\u1ecck\u1ecd\u0300",
    "\u0130",
    "\u03a3",
    "\u1e9e",
    "\u2581",
    "\u00ad",
    "\u200b",
    "\U0002b820",
    "\U0002b91f",
    "\x00",
    "1",
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(SPELLINGS + OTHERS)).map("".join))


def ids_of(encoder: Encoder, texts: list[str]) -> list[list[int]]:
    """Encode and cut the ids into sentences."""
    ids, offsets, _ = encoder.encode(pa.array(texts, pa.string()))
    return [ids[start:end].tolist() for start, end in itertools.pairwise(offsets)]


def published(folder: Path, edit: Edit | None = None, added: list[AddedToken] | None = None) -> bytes:
    """Return the tokenizer.json of a folder after an edit of its JSON, with added tokens."""
    content = json.loads((folder / "tokenizer.json").read_text())
    if edit is not None:
        edit(content)
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_tokens(added or [])
    return tokenizer.to_str().encode()


def keep_control_characters(content: dict) -> None:
    content["normalizer"]["clean_text"] = False
    content["pre_tokenizer"] = {"type": "BertPreTokenizer"}


def no_prefix_space(content: dict) -> None:
    content["pre_tokenizer"]["add_prefix_space"] = False


def published_rules(content: dict) -> None:
    content["pre_tokenizer"] = {"type": "BertPreTokenizer"}


def one_space(content: dict) -> None:
    replace = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Nmt"}, {"type": "NFKC"}, replace]}
    content["pre_tokenizer"] = content["pre_tokenizer"]["pretokenizers"][1]


def cut_off(content: dict) -> None:
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}


VARIANTS: dict[str, tuple[str, Edit | None, list[AddedToken]]] = {
    "wordpiece": ("vocab", None, []),
    "wordpiece, added tokens": ("vocab", None, ADDED),
    "wordpiece, added tokens, truncation": ("vocab", cut_off, ADDED),
    "wordpiece, published rules": ("vocab", published_rules, []),
    "wordpiece, clean_text false": ("vocab", keep_control_characters, []),
    "wordpiece, case alone": ("accented_vocab", published_rules, ADDED),
    "bytebpe": ("byte_vocab", None, []),
    "bytebpe, added tokens": ("byte_vocab", None, ADDED),
    "bytebpe, added tokens, no prefix space": ("byte_vocab", no_prefix_space, ADDED),
    "unigram": ("albert_vocab", None, []),
    "unigram, added tokens": ("albert_vocab", None, ADDED),
    "unigram, XLM-R's": ("xlm_vocab", None, ADDED),
    "unigram, learned here": ("unigram_vocab", None, []),
    "unigram, learned here, XLNet's": ("xlnet_vocab", None, ADDED),
}


@pytest.fixture(scope="module")
def variant(request: pytest.FixtureRequest) -> Callable[[str], tuple[Tokenizer, Encoder]]:
    """A function from a variant's name to (the library's tokenizer, our encoder)."""

    @cache
    def make(name: str) -> tuple[Tokenizer, Encoder]:
        folder, edit, added = VARIANTS[name]
        data = published(request.getfixturevalue(folder), edit, added)
        return literal_tokenizer(data), Encoder(data, parse_vocabulary(data, name).model)

    return make


def reference(tokenizer: Tokenizer, text: str, begins_words: bool) -> list[int]:
    """Return the library's ids. `begins_words`: with a space before the text unless it begins with an added token."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    added = [i for i, token in tokenizer.get_added_tokens_decoder().items() if not token.special]
    if not begins_words or not text or text.startswith(" ") or (ids and ids[0] in added):
        return ids
    return tokenizer.encode(" " + text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", VARIANTS)
@given(texts=st.lists(TEXTS, max_size=6))
@settings(max_examples=150)
def test_equals_the_library_on_any_text(variant, name: str, texts: list[str]) -> None:
    tokenizer, encoder = variant(name)
    expected = [reference(tokenizer, text, name.endswith("no prefix space")) for text in texts]
    assert ids_of(encoder, texts) == expected


@given(words=st.lists(st.sampled_from([spelling for spelling in SPELLINGS if " " not in spelling]), min_size=1))
def test_unigram_of_older_conversions_equals_the_library_on_words(xlm_vocab: Path, words: list[str]) -> None:
    data = published(xlm_vocab, one_space)
    text = " ".join(words)
    ids = literal_tokenizer(data).encode(text, add_special_tokens=False).ids
    assert ids_of(Encoder(data, "unigram"), [text]) == [ids]


def test_every_spelling_next_to_everything(variant) -> None:
    """All pairs: what Hypothesis may not come upon."""
    texts = ["".join(both) for both in itertools.product(SPELLINGS + OTHERS, repeat=2)]
    for name in VARIANTS:
        tokenizer, encoder = variant(name)
        expected = [reference(tokenizer, text, name.endswith("no prefix space")) for text in texts]
        assert ids_of(encoder, texts) == expected, name


@pytest.mark.parametrize("texts", [["\u5317\u4eac\u5927\u5b66 covid19"], ["a covid19 \u5317\u4eac", "the dog"]])
def test_chinese_words_around_added_tokens(vocab: Path, texts: list[str]) -> None:
    from pipeline.pairs.segmenters import word_marker
    from pipeline.pairs.word_segmentation import CONTINUES

    data = published(vocab, None, [AddedToken("covid19"), AddedToken("\u5927")])
    ids, _, marks = Encoder(data, "wordpiece", word_marker("jieba")).encode(pa.array(texts))
    plain, _, none = Encoder(data, "wordpiece").encode(pa.array(texts))
    assert ids.tolist() == plain.tolist() and none is None and marks is not None

    # jieba: the words are 北京大学, or 北京.
    expected = {1: [False, True, True, True, False], 2: [False, False, False, True, False, False]}[len(texts)]
    assert (marks == CONTINUES).tolist() == expected


def test_added_tokens_begin_words_and_are_readable(byte_vocab: Path) -> None:
    vocabulary = parse_vocabulary(published(byte_vocab, None, ADDED), "tokenizer.json")
    assert len(vocabulary.added) == len(ADDED)
    for token_id in vocabulary.added:
        assert vocabulary.starts_word_V[token_id]
        assert vocabulary.readable(token_id) == vocabulary.tokens[token_id]


SENTENCES = [f"The covid19 vaccine mRNA-1273 (number {i}) was tested {i} times - near the old town." for i in range(40)]


def chain(command, folder: Path, vocab: Path, *flags: object) -> Path:
    """Make pairs of SENTENCES with a published vocabulary; return their folder."""
    (folder / "in.txt").write_text("\n\n".join("\n".join(SENTENCES[i : i + 4]) for i in range(0, 40, 4)))
    text, pairs = folder / "text", folder / "pairs"
    shard = ("shard", "--input", folder / "in.txt", "--output", text, "--sentence_splitter", "newline")
    for arguments in (
        (*shard, "--num_shards", 1),
        ("pairs", "--text", text, "--vocab", vocab, "--output", pairs, "--objective", "doc_sentences", *flags),
    ):
        done = command(*arguments)
        assert done.returncode == 0, done.stderr
    return pairs


def rows_of(pairs: Path) -> list[dict]:
    vocabulary = read_vocabulary(str(pairs / "vocabulary"))
    (shard,) = read_manifest(str(pairs), "pairs").shards
    data = (pairs / shard.path).read_bytes()
    return shards.decode_table(data, shard.path, shards.pairs_schema(vocabulary.size)).to_pylist()


def test_rows_hold_the_tokens_that_transformers_added(command, vocab: Path, tmp_path: Path) -> None:
    """`tokenizer.add_tokens`: every row begins with the ids of one of the corpus' sentences."""
    tokenizer = BertTokenizerFast(vocab=str(vocab / "vocab.txt"), do_lower_case=True)
    tokenizer.add_tokens(["covid19", "mRNA-1273"])
    tokenizer.save_pretrained(tmp_path / "published")
    added = set(tokenizer.convert_tokens_to_ids(["covid19", "mRNA-1273"]))

    rows = rows_of(chain(command, tmp_path, tmp_path / "published", "--max_length", 512))
    known = {tuple(tokenizer(sentence, add_special_tokens=False)["input_ids"]) for sentence in SENTENCES}
    for row in rows:
        ids = row["input_ids"]
        assert added <= set(ids)
        assert any(tuple(ids[1 : 1 + len(sentence)]) == sentence for sentence in known)
        assert all(row["word_starts"][i] for i, token_id in enumerate(ids) if token_id in added)


def test_rows_hold_alberts_user_defined_symbols(command, albert_vocab: Path, tmp_path: Path) -> None:
    """transformers writes the user-defined symbols of a SentencePiece model as added tokens."""
    content = json.loads((albert_vocab / "tokenizer.json").read_text())
    scores = [(token, score) for token, score in content["model"]["vocab"]]
    symbols = [symbol for symbol in '()"-.\u2013\u00a3\u20ac' if symbol not in dict(scores)]
    tokenizer = AlbertTokenizer(vocab=scores + [(symbol, 0.0) for symbol in symbols])
    added = [AddedToken(symbol, normalized=False) for symbol in '()"-.\u2013\u00a3\u20ac']
    tokenizer.add_tokens(added)
    tokenizer.save_pretrained(tmp_path / "published")

    rows = rows_of(chain(command, tmp_path, tmp_path / "published", "--max_length", 512))
    known = {tuple(tokenizer(sentence, add_special_tokens=False)["input_ids"]) for sentence in SENTENCES}
    for row in rows:
        assert any(tuple(row["input_ids"][1 : 1 + len(sentence)]) == sentence for sentence in known)


def test_dropout_is_turned_off_and_recorded(command, byte_vocab: Path, tmp_path: Path) -> None:
    """The same command twice gives the same rows, which are those of the copy that training exports."""
    content = json.loads((byte_vocab / "tokenizer.json").read_text())
    content["model"]["dropout"] = 0.1
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "tokenizer.json").write_text(json.dumps(content))

    pairs = []
    for name in ("a", "b"):
        for value in vars(
            pairs_job
        ).values():  # as in a new process: an encoder that remembers words does not draw again
            if hasattr(value, "cache_clear"):
                value.cache_clear()
        (tmp_path / name).mkdir()
        pairs.append(chain(command, tmp_path / name, tmp_path / "published", "--max_length", 64))
    manifests = [read_manifest(str(folder), "pairs") for folder in pairs]
    assert manifests[0].fingerprint == manifests[1].fingerprint
    assert manifests[0].options["removed_dropout"] == 0.1
    copy = read_vocabulary(str(pairs[0] / "vocabulary"))
    assert copy.fingerprint == manifests[0].options["vocabulary"] == read_vocabulary(str(byte_vocab)).fingerprint

    tokenizer = Tokenizer.from_file(str(pairs[0] / "vocabulary" / "tokenizer.json"))
    known = {tuple(tokenizer.encode(sentence, add_special_tokens=False).ids) for sentence in SENTENCES}
    for row in rows_of(pairs[0]):
        ids = row["input_ids"]
        assert any(tuple(ids[1 : 1 + len(sentence)])[: len(ids) - 2] == sentence[: len(ids) - 2] for sentence in known)


@pytest.mark.parametrize("dropout", [None, 0.0])
def test_a_tokenizer_without_dropout_stays_as_it_is(byte_vocab: Path, dropout: float | None) -> None:
    content = json.loads((byte_vocab / "tokenizer.json").read_text())
    content["model"]["dropout"] = dropout
    data = json.dumps(content).encode()
    assert without_dropout(data, "tokenizer.json") == (data, 0.0)


def test_an_added_token_that_is_encoded_otherwise_is_refused_by_name(vocab: Path, monkeypatch) -> None:
    """As if the search for added tokens missed one."""
    data = published(vocab, None, [AddedToken("covid19")])
    vocabulary = parse_vocabulary(data, "tokenizer.json")
    check_encoding(data, vocabulary, "published")
    monkeypatch.setattr("pipeline.pairs.added_tokens._search", lambda contents: None)
    with pytest.raises(DataError, match=r"published: tokenizer\.json encodes its added token 'covid19'.*Remove it"):
        check_encoding(data, vocabulary, "published")
