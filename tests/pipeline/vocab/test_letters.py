"""The vocabulary of one-letter tokens: ESM-2's ids, read by the pipeline and by transformers alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from pipeline.vocab.letters import main, protein_tokens
from schemas.vocabulary import read_vocabulary

ESM_IDS = {"[CLS]": 0, "[PAD]": 1, "[SEP]": 2, "[UNK]": 3, "L": 4, "A": 5, "C": 23, "X": 24, "-": 30, "[MASK]": 32}
"""As in the tokenizer that was published with ESM-2, whose names are <cls>, <pad>, <eos>, <unk> and <mask>."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert main([str(tmp_path / "vocab")]) == 0
    return tmp_path / "vocab"


def test_ids_are_those_of_esm_2(folder: Path) -> None:
    vocabulary = read_vocabulary(str(folder))
    assert vocabulary.size == 33 and len(set(vocabulary.tokens)) == 33
    assert {token: vocabulary.tokens.index(token) for token in ESM_IDS} == ESM_IDS
    assert vocabulary.starts_word_V.all()


def test_each_letter_is_a_token(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    protein = "MKTAYIAKQRQ" * 500
    expected = ["[CLS]", *protein, "[SEP]"]
    assert tokenizer.convert_ids_to_tokens(tokenizer(protein)["input_ids"]) == expected
    assert tokenizer.tokenize("MK-T.") == list("MK-T.")
    assert tokenizer.tokenize("MJK") == ["[UNK]"]


def test_another_vocabulary_is_not_overwritten(vocab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (vocab / "tokenizer.json").read_bytes()
    assert main([str(vocab)]) == 2
    assert "is another vocabulary" in capsys.readouterr().err
    assert (vocab / "tokenizer.json").read_bytes() == before


def test_writing_twice_changes_nothing(folder: Path) -> None:
    before = (folder / "tokenizer.json").read_bytes()
    assert main([str(folder)]) == 0
    assert (folder / "tokenizer.json").read_bytes() == before
    assert len(protein_tokens()) == 33
