"""The files of a vocabulary folder, as `tokenizers` and transformers load them: a function for each kind.

tokenizer.json          the whole tokenizer: normalization, word rules, tokens, special tokens
tokenizer_config.json   which class transformers' AutoTokenizer makes of it
vocab.txt               WordPiece: one token per line
vocab.json, merges.txt  byte-level BPE

A Unigram vocabulary has no files besides the first two: transformers reads tokens and scores from tokenizer.json.
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, processors

from pipeline.vocab.counted_words import UnigramRules
from pipeline.vocab.train import MAX_WORD_CHARACTERS, TrainedVocabulary
from pipeline.words import rules as words
from schemas.vocabulary_kinds import SENTENCEPIECE_SPACE


def wordpiece_files(trained: TrainedVocabulary, rules: UnigramRules) -> dict[str, bytes]:
    """Return the contents of each file by name: a tokenizer with BERT's rules and row format."""
    model = models.WordPiece(vocab=_ids(trained), unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARACTERS)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = words.normalizer(rules.lowercase, rules.keep_accents)
    tokenizer.pre_tokenizer = words.bert_pre_tokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = _rows(trained)
    tokenizer.add_special_tokens(list(trained.specials.all))

    config = {
        "do_lower_case": rules.lowercase,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    if rules.lowercase and rules.keep_accents:
        config["strip_accents"] = False
    return _files(tokenizer, trained, config, {"vocab.txt": "".join(f"{token}\n" for token in trained.tokens)})


def bytebpe_files(trained: TrainedVocabulary, _: UnigramRules) -> dict[str, bytes]:
    """Return the same with GPT-2's rules and RoBERTa's row format.

    Unlike RoBERTa's own, the tokenizer puts a space before the first word, so that a word has one form wherever it is.
    """
    vocab = _ids(trained)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=trained.merges))
    tokenizer.pre_tokenizer = words.gpt2_pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()

    sep = ("</s>", vocab["</s>"])
    cls = ("<s>", vocab["<s>"])
    roberta_rows = processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=True)
    tokenizer.post_processor = roberta_rows
    tokenizer.add_special_tokens(_with_wide_mask(trained))

    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_prefix_space": True,  # read by RobertaTokenizerFast
        "model_input_names": ["input_ids", "attention_mask"],
    }
    merges = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in trained.merges)
    lists = {"vocab.json": json.dumps(vocab, ensure_ascii=False), "merges.txt": merges}
    return _files(tokenizer, trained, config, lists)


def unigram_files(trained: TrainedVocabulary, rules: UnigramRules) -> dict[str, bytes]:
    """Return the same with sentencepiece's rules and the row format of ALBERT or XLNet.

    XLNet's rows are padded on the left.
    """
    scored = list(zip(trained.tokens, trained.scores, strict=True))
    tokenizer = Tokenizer(models.Unigram(scored, trained.tokens.index("<unk>"), byte_fallback=False))
    tokenizer.normalizer = words.unigram_normalizer(rules.lowercase, rules.keep_accents)
    tokenizer.pre_tokenizer = words.sentencepiece_pre_tokenizer()
    tokenizer.decoder = decoders.Metaspace(SENTENCEPIECE_SPACE, prepend_scheme="always")
    tokenizer.post_processor = _rows(trained)
    tokenizer.add_special_tokens(_with_wide_mask(trained))

    config: dict[str, Any] = {
        "do_lower_case": rules.lowercase,
        "keep_accents": rules.keep_accents,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    if rules.family == "xlnet":
        config |= {"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<eop>", "<eod>"]}
        config["padding_side"] = "left"
    else:
        config |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    return _files(tokenizer, trained, config, {})


def _ids(trained: TrainedVocabulary) -> dict[str, int]:
    return {token: i for i, token in enumerate(trained.tokens)}


def _rows(trained: TrainedVocabulary) -> processors.TemplateProcessing:
    """Return the row format of BERT and ALBERT, or XLNet's, whose <cls> is last and a third kind of segment."""
    cls = trained.specials.by_role["cls"]
    sep = trained.specials.by_role["sep"]
    is_xlnet = trained.specials.family == "xlnet"
    return processors.TemplateProcessing(
        single=f"$A {sep} {cls}:2" if is_xlnet else f"{cls} $A {sep}",
        pair=f"$A {sep} $B:1 {sep}:1 {cls}:2" if is_xlnet else f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, trained.tokens.index(token)) for token in (cls, sep)],
    )


def _with_wide_mask(trained: TrainedVocabulary) -> list[str | AddedToken]:
    """Return the special tokens. The mask includes the space before it, as published ones do.

    "the <mask> sat" then masks " cat", not a space and "cat".
    """
    mask = trained.specials.by_role["mask"]
    wide = AddedToken(mask, lstrip=True, special=True)
    return [wide if token == mask else token for token in trained.specials.all]


def _files(
    tokenizer: Tokenizer, trained: TrainedVocabulary, config: dict[str, Any], lists: dict[str, str]
) -> dict[str, bytes]:
    """Return all files. config: what tokenizer_config.json has for this kind alone. lists: further files.

    PreTrainedTokenizerFast uses tokenizer.json unchanged. BertTokenizerFast and RobertaTokenizerFast replace some of
    its rules with their own and still give the same ids, except for a few ideographs that BertTokenizerFast does not
    separate from the characters around them. AlbertTokenizer and XLNetTokenizer also give the same ids, for text
    without control characters, unusual white space and Hangul, which their rules leave as NFKD makes it.
    """
    special = {f"{role}_token": token for role, token in trained.specials.by_role.items()}
    content = {"tokenizer_class": "PreTrainedTokenizerFast", **config, **special}
    files = {
        **lists,
        "tokenizer.json": tokenizer.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(content, indent=1, ensure_ascii=False) + "\n",
    }
    return {name: text.encode() for name, text in files.items()}
