"""The files of a vocabulary folder, as `tokenizers` and transformers load them.

tokenizer.json          everything: normalisation, words, tokens, special tokens
tokenizer_config.json   the class that transformers' AutoTokenizer makes of it
vocab.txt               WordPiece: one token a line   |   vocab.json, merges.txt   byte-level BPE
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, processors

from pipeline.vocab.pretokenize import normalizer, pre_tokenizer
from pipeline.vocab.train import MAX_WORD, TrainedVocabulary
from schemas.vocabulary import SPECIALS, Model

_CLASS = "PreTrainedTokenizerFast"


def vocabulary_files(learnt: TrainedVocabulary, model: Model, lowercase: bool) -> dict[str, bytes]:
    """File name -> contents."""
    tokenizer = wordpiece_tokenizer(learnt, lowercase) if model == "wordpiece" else bytebpe_tokenizer(learnt)
    files = {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(tokenizer_config(model, lowercase)),
    }
    if model == "wordpiece":
        return files | {"vocab.txt": "".join(token + "\n" for token in learnt.tokens).encode()}
    vocab = {token: i for i, token in enumerate(learnt.tokens)}
    merges = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in learnt.merges)
    return files | {"vocab.json": json.dumps(vocab, ensure_ascii=False).encode(), "merges.txt": merges.encode()}


def wordpiece_tokenizer(learnt: TrainedVocabulary, lowercase: bool) -> Tokenizer:
    vocab = {token: i for i, token in enumerate(learnt.tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD))
    tokenizer.normalizer = normalizer(lowercase)  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizer("wordpiece")  # type: ignore[assignment]
    tokenizer.decoder = decoders.WordPiece()  # type: ignore[assignment]
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(list(SPECIALS["wordpiece"].values()))
    return tokenizer


def bytebpe_tokenizer(learnt: TrainedVocabulary) -> Tokenizer:
    vocab = {token: i for i, token in enumerate(learnt.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=learnt.merges))
    # The prefix space gives a word one form wherever it stands in a sentence.
    tokenizer.pre_tokenizer = pre_tokenizer("bytebpe")  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.post_processor = processors.RobertaProcessing(  # type: ignore[assignment]
        ("</s>", vocab["</s>"]), ("<s>", vocab["<s>"]), trim_offsets=True, add_prefix_space=True
    )
    plain = ["<s>", "<pad>", "</s>", "<unk>"]
    # <mask> takes the space before it, as RoBERTa's does: "the <mask> sat" masks " cat", not a space and "cat".
    tokenizer.add_special_tokens([*plain, AddedToken("<mask>", lstrip=True, special=True)])
    return tokenizer


def tokenizer_config(model: Model, lowercase: bool) -> dict[str, Any]:
    """What transformers needs beside tokenizer.json.

    The class is the one that takes tokenizer.json as it is. BertTokenizerFast and RobertaTokenizerFast put their own
    rules in place of some of it and agree all the same, but for the ideographs that BertTokenizerFast leaves in words.
    """
    roles = {f"{role}_token": token for role, token in SPECIALS[model].items()}
    names = ["input_ids", "token_type_ids", "attention_mask"]
    if model == "wordpiece":
        return {"tokenizer_class": _CLASS, "do_lower_case": lowercase, "model_input_names": names, **roles}
    names.remove("token_type_ids")
    ends = {"bos_token": "<s>", "eos_token": "</s>", "add_prefix_space": True}  # RobertaTokenizerFast asks for the last
    return {"tokenizer_class": _CLASS, **ends, "model_input_names": names, **roles}


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
