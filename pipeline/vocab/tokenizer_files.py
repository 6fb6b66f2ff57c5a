"""The files of a vocabulary folder, as `tokenizers` and transformers load them.

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
from pipeline.vocab.train import MAX_WORD_CHARACTERS, UNIGRAM_FIRST, TrainedVocabulary
from pipeline.words.rules import normalizer, pre_tokenizer, unigram_normalizer
from schemas.vocabulary import SENTENCEPIECE_SPACE, SPECIALS, XLNET_SPECIALS, Model, specials_of

_TOKENIZER_CLASS = "PreTrainedTokenizerFast"


def vocabulary_files(trained: TrainedVocabulary, model: Model, rules: UnigramRules) -> dict[str, bytes]:
    """Return the contents of each file by name. Models other than Unigram use only the case of `rules`."""
    files: dict[str, str] = {}
    if model == "wordpiece":
        tokenizer = wordpiece_tokenizer(trained, rules.lowercase)
        files["vocab.txt"] = "".join(f"{token}\n" for token in trained.tokens)
    elif model == "unigram":
        tokenizer = unigram_tokenizer(trained, rules)
    else:
        tokenizer = bytebpe_tokenizer(trained)
        files["vocab.json"] = json.dumps(_ids(trained), ensure_ascii=False)
        files["merges.txt"] = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in trained.merges)

    files["tokenizer.json"] = tokenizer.to_str(pretty=True)
    files["tokenizer_config.json"] = json.dumps(tokenizer_config(model, rules), indent=1, ensure_ascii=False) + "\n"
    return {name: content.encode() for name, content in files.items()}


def _ids(trained: TrainedVocabulary) -> dict[str, int]:
    return {token: i for i, token in enumerate(trained.tokens)}


def wordpiece_tokenizer(trained: TrainedVocabulary, lowercase: bool) -> Tokenizer:
    """Return a tokenizer with BERT's rules and row format."""
    vocab = _ids(trained)
    tokenizer = Tokenizer(
        models.WordPiece(vocab=vocab, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARACTERS)
    )
    tokenizer.normalizer = normalizer(lowercase)
    tokenizer.pre_tokenizer = pre_tokenizer("wordpiece")
    tokenizer.decoder = decoders.WordPiece()

    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    tokenizer.add_special_tokens(list(SPECIALS["wordpiece"].values()))
    return tokenizer


def bytebpe_tokenizer(trained: TrainedVocabulary) -> Tokenizer:
    """Return a tokenizer with GPT-2's rules and RoBERTa's row format.

    Unlike RoBERTa's own, it puts a space before the first word, so that a word has one form wherever it is.
    """
    vocab = _ids(trained)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=trained.merges))
    tokenizer.pre_tokenizer = pre_tokenizer("bytebpe")
    tokenizer.decoder = decoders.ByteLevel()

    sep = ("</s>", vocab["</s>"])
    cls = ("<s>", vocab["<s>"])
    roberta_rows = processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=True)
    tokenizer.post_processor = roberta_rows

    # <mask> includes the space before it, as RoBERTa's does: "the <mask> sat" masks " cat", not a space and "cat".
    mask = AddedToken("<mask>", lstrip=True, special=True)
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", mask])
    return tokenizer


def unigram_tokenizer(trained: TrainedVocabulary, rules: UnigramRules) -> Tokenizer:
    """Return a tokenizer with sentencepiece's rules and the row format of ALBERT or XLNet."""
    scored = list(zip(trained.tokens, trained.scores, strict=True))
    unk_id = trained.tokens.index("<unk>")
    tokenizer = Tokenizer(models.Unigram(scored, unk_id, byte_fallback=False))
    tokenizer.normalizer = unigram_normalizer(rules.lowercase, rules.keep_accents)
    tokenizer.pre_tokenizer = pre_tokenizer("unigram")
    tokenizer.decoder = decoders.Metaspace(SENTENCEPIECE_SPACE, prepend_scheme="always")

    special = specials_of("unigram", trained.tokens)
    cls = special["cls"]
    sep = special["sep"]
    single = f"{cls} $A {sep}"
    pair = f"{cls} $A {sep} $B:1 {sep}:1"
    if rules.family == "xlnet":  # XLNet's <cls> is a third kind of segment
        single = f"$A {sep} {cls}:2"
        pair = f"$A {sep} $B:1 {sep}:1 {cls}:2"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[(token, trained.tokens.index(token)) for token in (cls, sep)],
    )

    # The mask includes the space before it, as the published ones do.
    tokens: list[str | AddedToken] = list(UNIGRAM_FIRST[rules.family])
    tokens[tokens.index(special["mask"])] = AddedToken(special["mask"], lstrip=True, special=True)
    tokenizer.add_special_tokens(tokens)
    return tokenizer


def tokenizer_config(model: Model, rules: UnigramRules) -> dict[str, Any]:
    """Return what transformers needs in addition to tokenizer.json.

    PreTrainedTokenizerFast uses tokenizer.json unchanged. BertTokenizerFast and RobertaTokenizerFast replace some of
    its rules with their own and still give the same ids, except for a few ideographs that BertTokenizerFast does not
    separate from the characters around them. AlbertTokenizer and XLNetTokenizer also give the same ids, for text
    without control characters, unusual white space and Hangul, which their rules leave as NFKD makes it.
    """
    config: dict[str, Any] = {"tokenizer_class": _TOKENIZER_CLASS}
    if model == "wordpiece":
        config["do_lower_case"] = rules.lowercase
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    elif model == "unigram":
        config |= _unigram_config(rules)
    else:
        config["bos_token"] = "<s>"
        config["eos_token"] = "</s>"
        config["add_prefix_space"] = True  # read by RobertaTokenizerFast
        config["model_input_names"] = ["input_ids", "attention_mask"]

    for role, token in (XLNET_SPECIALS if rules.family == "xlnet" else SPECIALS[model]).items():
        config[f"{role}_token"] = token
    return config


def _unigram_config(rules: UnigramRules) -> dict[str, Any]:
    """Return what AlbertTokenizer and XLNetTokenizer read. XLNet's rows are padded on the left."""
    config: dict[str, Any] = {
        "do_lower_case": rules.lowercase,
        "keep_accents": rules.keep_accents,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    if rules.family == "xlnet":
        tokens = {"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<eop>", "<eod>"]}
        return config | tokens | {"padding_side": "left"}
    return config | {"bos_token": "[CLS]", "eos_token": "[SEP]"}
