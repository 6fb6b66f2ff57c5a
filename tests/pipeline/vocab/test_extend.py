"""A vocabulary extended by the words of a domain: old ids and old text stay, and transformers reads the same ids."""

import itertools
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AlbertTokenizer, AutoTokenizer, BertTokenizerFast, RobertaTokenizerFast, XLMRobertaTokenizer

from pipeline.pairs.encoding import Encoder
from pipeline.words.rules import literal_tokenizer
from schemas.errors import DataError
from schemas.manifest import read_manifest
from schemas.vocabulary import EXTENSION_FILE, Extension, read_vocabulary

DOMAIN = ["kubernetes", "kube", "pods", "podsandbox", "cafés", "cats", "catalog", "x-ray", "\u4e2d\u6587\u5b57", "z"]
BASES = {
    "vocab": ("wordpiece", BertTokenizerFast),
    "accented_vocab": ("wordpiece", BertTokenizerFast),
    "byte_vocab": ("bytebpe", RobertaTokenizerFast),
    "unigram_vocab": ("unigram", AlbertTokenizer),
    "albert_vocab": ("unigram", AlbertTokenizer),
    "xlm_vocab": ("unigram", XLMRobertaTokenizer),
}
ADD = 5


@pytest.fixture(scope="module")
def domain(command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("domain")
    lines = [f"The {a} of {b} and the {a}, {b}{a}." for a, b in itertools.product(DOMAIN, repeat=2)]
    (folder / "in.txt").write_text("\n\n".join("\n".join(lines[i : i + 5]) for i in range(0, 100, 5)))
    made = command("shard", "--input", folder / "in.txt", "--output", folder / "text", "--sentence_splitter", "newline")
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def extended(command, request: pytest.FixtureRequest, domain: Path) -> Callable[[str], tuple[Path, Path]]:
    """A function from a base to (its folder, the extended one)."""

    @cache
    def make(base: str) -> tuple[Path, Path]:
        folder: Path = request.getfixturevalue(base)
        output = domain / base
        made = command("vocab", "--text", domain / "text", "--extend", folder, "--add", ADD, "--output", output)
        assert made.returncode == 0, made.stderr
        return folder, output

    return make


@pytest.mark.parametrize("base", BASES)
def test_new_ids_come_after_the_old_and_know_their_pieces(extended, base: str) -> None:
    folder, output = extended(base)
    old = read_vocabulary(str(folder))
    new = read_vocabulary(str(output))
    assert new.model == BASES[base][0] and new.tokens[: old.size] == old.tokens
    assert new.size == old.size + ADD
    assert new.extension is not None
    assert (new.extension.base_size, new.extension.base_fingerprint) == (old.size, old.fingerprint)

    for token_id, pieces in new.extension.rows.items():
        spelled = [old.tokens[i].removeprefix("##") if i else old.tokens[i] for i in pieces]
        assert "".join(spelled) == new.tokens[token_id] and len(pieces) > 1

    statistics = read_manifest(str(output), "vocab").statistics["extension"]
    assert statistics["new_tokens"] == ADD and statistics["tokens_after"] < statistics["tokens_before"]


ODD = ["the", "The", " ", "  ", ".", "ing", "s", "k", "x", "-", "\u00e9", "\u0301", "\u4e2d", "[SEP]", "cat", "\u3000"]
PARTS = st.lists(st.sampled_from([*DOMAIN, *ODD]))
TEXTS = st.one_of(st.text(), PARTS.map("".join), PARTS.map(" ".join))


@pytest.mark.parametrize("base", BASES)
@given(text=TEXTS)
@settings(max_examples=300)
def test_text_without_new_words_keeps_its_ids(extended, tokenizers, base: str, text: str) -> None:
    folder, output = extended(base)
    before, _ = tokenizers(folder)
    after, encoder = tokenizers(output)
    old_size = before.get_vocab_size()
    ids = after.encode(text, add_special_tokens=False).ids
    old_ids = before.encode(text, add_special_tokens=False).ids

    # A new token is only where its spelling is, and without one nothing changed.
    normalized = after.normalizer.normalize_str(text) if after.normalizer else text
    for token_id in ids:
        if token_id >= old_size:
            assert spelling(after.id_to_token(token_id), BASES[base][0]) in normalized
    if max(ids, default=0) < old_size:
        assert ids == old_ids
    if BASES[base][0] != "bytebpe":  # whose pairs begin every sentence with a space, as the next test has it
        assert ids == encoder.encode(pa.array([text], pa.string())).ids_T.tolist()


def spelling(token: str, model: str) -> str:
    if model == "bytebpe":
        data = bytes(code for character in token for code in [BYTES[character]])
        return data.decode(errors="ignore").strip(" ")
    return token.replace("\u2581", "").removeprefix("##")


def _bytes() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTES = _bytes()


@pytest.fixture(scope="module")
def tokenizers():
    """A function from a folder to (the library's tokenizer, our encoder)."""

    @cache
    def load(folder: Path) -> tuple[Tokenizer, Encoder]:
        data = (folder / "tokenizer.json").read_bytes()
        return literal_tokenizer(data), Encoder(data, read_vocabulary(str(folder)).model)

    return load


@pytest.mark.parametrize("base", BASES)
def test_transformers_reads_the_same_ids(extended, tokenizers, base: str) -> None:
    """By AutoTokenizer and by the model's own class."""
    _, output = extended(base)
    tokenizer, encoder = tokenizers(output)
    own = BASES[base][1].from_pretrained(output)
    auto = AutoTokenizer.from_pretrained(output)
    for left, right in itertools.product([*DOMAIN, "the", ".", "cat"], repeat=2):
        for text in (f" {left} {right}", f" the {left}{right}, {right}s"):
            expected = encoder.encode(pa.array([text])).ids_T.tolist()
            assert tokenizer.encode(text, add_special_tokens=False).ids == expected
            assert auto(text, add_special_tokens=False)["input_ids"] == expected
            assert own(text, add_special_tokens=False)["input_ids"] == expected
    assert len(auto) == read_vocabulary(str(output)).size


def test_the_words_that_save_most_come_first(extended, domain: Path) -> None:
    folder, output = extended("vocab")
    old = Tokenizer.from_file(str(folder / "tokenizer.json"))
    new = read_vocabulary(str(output))
    text = (domain / "in.txt").read_text().lower().replace("\u00e9", "e")
    saved = []
    for word in new.tokens[-ADD:]:
        pieces = len(old.model.tokenize(word))
        words = [found for found, _ in old.pre_tokenizer.pre_tokenize_str(text)]
        saved.append((pieces - 1) * words.count(word))
    assert saved == sorted(saved, reverse=True) and saved[-1] > 0


def test_a_counted_text_extends_alike(command, extended, domain: Path, tmp_path: Path) -> None:
    folder, output = extended("byte_vocab")
    flags = ("--extend", folder, "--add", ADD, "--output", tmp_path / "out")
    made = command("vocab", "--text", domain / "text", "--counts", tmp_path / "counts", *flags)
    assert made.returncode == 0, made.stderr
    for name in ("tokenizer.json", "merges.txt", "vocab.json", EXTENSION_FILE):
        assert (tmp_path / "out" / name).read_bytes() == (output / name).read_bytes()


def test_what_cannot_be_extended_is_one_line(command, domain: Path, byte_vocab: Path, tmp_path: Path) -> None:
    for name, content in (("cut", "{"), ("empty", "{}"), ("list", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(content)
    text = ("--text", domain / "text", "--output", tmp_path / "out")
    for flags, code, message in (
        (("--extend", byte_vocab), 2, "--add N belong together"),
        (("--extend", byte_vocab, "--add", 3, "--size", 9), 2, "--size follows from the vocabulary"),
        (("--extend", tmp_path, "--add", 3), 3, "tokenizer.json is missing"),
        (("--extend", tmp_path / "cut", "--add", 3), 3, "cut/tokenizer.json is not a WordPiece"),
        (("--extend", tmp_path / "empty", "--add", 3), 3, "empty/tokenizer.json is not a WordPiece"),
        (("--extend", tmp_path / "list", "--add", 3), 3, "list/tokenizer.json is not a WordPiece"),
        (("--model", "bytebpe"), 2, "vocab needs --size"),
    ):
        refused = command("vocab", *text, *flags)
        assert refused.returncode == code and message in refused.stderr, refused.stderr

    tokenizer = Tokenizer.from_file(str(byte_vocab / "tokenizer.json"))
    tokenizer.add_tokens(["covid19"])
    (tmp_path / "published").mkdir()
    tokenizer.save(str(tmp_path / "published" / "tokenizer.json"))
    refused = command("vocab", *text, "--extend", tmp_path / "published", "--add", 3)
    assert refused.returncode == 3 and "has 1 added tokens with ids after" in refused.stderr


@pytest.mark.parametrize(
    "change", [{"base_size": 3}, {"rows": {}}, {"rows": None}, {"base_size": None}, {"tokens_fingerprint": None}]
)
def test_a_damaged_extension_is_refused(extended, change: dict) -> None:
    _, output = extended("vocab")
    content = json.loads((output / EXTENSION_FILE).read_text()) | change
    with pytest.raises(DataError, match="Copy the vocabulary again"):
        Extension.from_json(json.dumps(content).encode(), read_vocabulary(str(output)).tokens, "x")


def test_an_extension_beside_another_vocabulary_of_its_size_is_refused(extended, tmp_path: Path) -> None:
    """Its rows would initialize the embeddings of other tokens."""
    copy = Path(shutil.copytree(extended("vocab")[1], tmp_path / "vocab"))
    tokenizer = copy / "tokenizer.json"
    content = json.loads(tokenizer.read_text())
    content["truncation"] = {"max_length": 9, "strategy": "LongestFirst", "direction": "Right", "stride": 0}
    content["post_processor"] = None  # an export may write other rules; the tokens are the same
    tokenizer.write_text(json.dumps(content))
    assert read_vocabulary(str(copy)).extension is not None

    ids = content["model"]["vocab"]
    *_, first, second = sorted(ids, key=ids.__getitem__)
    ids[first], ids[second] = ids[second], ids[first]
    tokenizer.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"extension\.json belongs to another vocabulary than .*tokenizer\.json"):
        read_vocabulary(str(copy))


@pytest.mark.parametrize("flag", [(), ("--overwrite",)])
def test_a_vocabulary_is_not_extended_in_place(command, domain: Path, vocab: Path, tmp_path: Path, flag) -> None:
    """A second try after a kill would extend what the first one wrote."""
    copy = Path(shutil.copytree(vocab, tmp_path / "vocab"))
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    words = ("vocab", "--text", domain / "text", "--add", 3, "--extend", copy)
    for output in (copy, f"file://{copy}/"):
        refused = command(*words, "--output", output, *flag)
        assert refused.returncode == 2 and "is the folder that --extend names" in refused.stderr, refused.stderr
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
