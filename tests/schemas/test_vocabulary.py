import json
from pathlib import Path

import pytest

from schemas.errors import DataError
from schemas.vocabulary import Vocabulary, parse_vocabulary, read_vocabulary


def test_wordpiece(vocab: Path) -> None:
    vocabulary = read_vocabulary(str(vocab))
    assert vocabulary.model == "wordpiece"
    assert vocabulary.tokens[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert vocabulary.special_ids == (0, 1, 2, 3, 4)
    starts = vocabulary.starts_word_V
    assert all(starts[i] != token.startswith("##") for i, token in enumerate(vocabulary.tokens))
    assert [line for line in (vocab / "vocab.txt").read_text().split("\n") if line] == list(vocabulary.tokens)


def test_bytebpe(byte_vocab: Path) -> None:
    vocabulary = read_vocabulary(str(byte_vocab))
    assert vocabulary.tokens[:4] == ("<s>", "<pad>", "</s>", "<unk>")
    assert vocabulary.tokens[-1] == "<mask>"
    the = vocabulary.tokens.index("\u0120the")
    assert vocabulary.starts_word_V[the]
    assert vocabulary.readable(the) == "the"


def test_the_fingerprint_sees_tokens_and_normalisation_but_not_a_calls_padding(vocab: Path) -> None:
    content = json.loads((vocab / "tokenizer.json").read_text())

    def fingerprint(**changes) -> str:
        return parse_vocabulary(json.dumps(content | changes).encode(), "x").fingerprint

    assert fingerprint() == fingerprint(truncation={"max_length": 5}) == read_vocabulary(str(vocab)).fingerprint
    assert fingerprint() != fingerprint(normalizer=None)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"model": {"type": "Unigram", "vocab": []}, "added_tokens": []}'])
def test_another_tokenizer_is_an_error(data: bytes) -> None:
    with pytest.raises(DataError, match=r"t\.json"):
        parse_vocabulary(data, "t.json")


def test_special_tokens_of_no_family_are_an_error_that_says_what_remains() -> None:
    tokens = [[token, 0.0] for token in ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")]  # DeBERTa's
    data = json.dumps({"model": {"type": "Unigram", "vocab": tokens}, "added_tokens": []}).encode()
    message = (
        r"lacks the special tokens <pad>, <unk>: .* of albert or xlnet or roberta\..*`clozeline finetune` takes it"
    )
    with pytest.raises(DataError, match=message):
        parse_vocabulary(data, "t.json")


@pytest.mark.parametrize("number", [{}, None, "7", 7.0, True])
def test_an_id_is_a_whole_number(vocab: Path, number: object) -> None:
    content = json.loads((vocab / "tokenizer.json").read_text())
    token = next(token for token, found in content["model"]["vocab"].items() if found == 7)
    content["model"]["vocab"][token] = number
    with pytest.raises(DataError, match="Expected a whole number"):
        parse_vocabulary(json.dumps(content).encode(), "t.json")


def test_a_character_belongs_to_the_byte_level_token_that_completes_it() -> None:
    tokens = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "\u0120\u00e0", "\u00b8", "\u00ab", "a")
    vocabulary = Vocabulary("bytebpe", tokens, "f" * 32)
    assert vocabulary.readable_row([0, 5, 6, 7, 8, 2]) == ["<s>", "", "", "\u0e2b", "a", "</s>"]
    assert vocabulary.readable_row([5, 6, 2, 7]) == ["", "\\xe0\\xb8", "</s>", "\\xab"]
    assert vocabulary.readable_row([5, 8]) == ["", "\\xe0a"]
    assert [vocabulary.shown(i) for i in (5, 7, 8)] == ["\u2423\\xe0", "\\xab", "a"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["vocab.txt"], r"of vocab\.txt \(.*do_lower_case=False.*from_pretrained\('.*'\)\.save_pretrained\('.*'\)\"$"),
        (["vocab.txt", "tokenizer_config.json"], r"of vocab\.txt: python -c"),
        (["vocab.json", "merges.txt"], r"of merges\.txt, vocab\.json: python"),
        (["sentencepiece.bpe.model"], r"of sentencepiece\.bpe\.model: python"),
        (["config.json"], "make a vocabulary with `clozeline vocab`"),
    ],
)
def test_the_tokenizer_of_an_older_release_is_converted_and_not_replaced(
    tmp_path: Path, files: list[str], message: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=message):
        read_vocabulary(str(tmp_path))


def test_the_file_in_place_of_its_folder_is_an_error_that_names_the_folder(vocab: Path) -> None:
    with pytest.raises(DataError, match=rf"is a file\. Give its folder, {vocab}\."):
        read_vocabulary(str(vocab / "tokenizer.json"))
