"""The shipped vocabulary of one-letter tokens: ESM-2's ids, read by the pipeline and by transformers alike."""

from __future__ import annotations

from transformers import AutoTokenizer

from schemas.vocabulary import read_vocabulary
from tests.conftest import ESM2_VOCABULARY

ESM_IDS = {"[CLS]": 0, "[PAD]": 1, "[SEP]": 2, "[UNK]": 3, "L": 4, "A": 5, "C": 23, "X": 24, "-": 30, "[MASK]": 32}
"""As in the tokenizer that was published with ESM-2, whose names are <cls>, <pad>, <eos>, <unk> and <mask>."""


def test_ids_are_those_of_esm_2() -> None:
    vocabulary = read_vocabulary(str(ESM2_VOCABULARY))
    assert vocabulary.size == 33 and len(set(vocabulary.tokens)) == 33
    assert {token: vocabulary.tokens.index(token) for token in ESM_IDS} == ESM_IDS
    assert vocabulary.starts_word_V.all()


def test_each_letter_is_a_token() -> None:
    tokenizer = AutoTokenizer.from_pretrained(ESM2_VOCABULARY)
    protein = "MKTAYIAKQRQ" * 500
    expected = ["[CLS]", *protein, "[SEP]"]
    assert tokenizer.convert_ids_to_tokens(tokenizer(protein)["input_ids"]) == expected
    assert tokenizer.tokenize("MK-T.") == list("MK-T.")
    assert tokenizer.tokenize("MJK") == ["[UNK]"]
