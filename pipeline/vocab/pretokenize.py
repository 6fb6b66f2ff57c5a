"""What a word is to a vocabulary: BERT's basic tokens, or GPT-2's pre-tokens over bytes.

The rules are `tokenizers`' own objects, which the finished tokenizer.json holds too, so counting and encoding can
never disagree. A published tokenizer's text is cut by the rules in its own file, whatever they are. Most runs of
non-spaces in most languages of Europe are plain ASCII, for which the same rules are one regular expression, several
times faster; a property test holds the two equal, and a published tokenizer for which they are not does without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from schemas.errors import DataError
from schemas.vocabulary import FILE, SPACE, Model

Cut = Callable[[str], list[str]]
_PROBES = ["It's", "Caf\u00e9,", "\u4e2d\u6587", "x\u00a03.14", "don't--stop_2", "two words"]
_PRINTABLE = [chr(code) for code in range(0x21, 0x7F)]
_ASCII_PAIRS = "".join(left + right for left in _PRINTABLE for right in _PRINTABLE)
"""Every pair of printable ASCII characters, one after the other: shows any difference between two sets of rules."""
RULES: dict[Model, str] = {"wordpiece": "BERT's", "bytebpe": "GPT-2's", "unigram": "ALBERT's"}
_BERT_ASCII = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]")
_GPT2_ASCII = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^ A-Za-z0-9]+")


def normalizer(lowercase: bool) -> normalizers.Normalizer:
    """BERT's: control characters out, CJK characters apart, accents stripped when lower-casing (arXiv:1810.04805)."""
    return normalizers.BertNormalizer(lowercase=lowercase)  # type: ignore[return-value]


def pre_tokenizer(model: Model) -> pre_tokenizers.PreTokenizer:
    """BERT's split at spaces and punctuation, or GPT-2's pattern over bytes; each word with the space before it."""
    if model == "wordpiece":
        # tokenizers' own list of ideographs begins this block 256 characters late; Google's begins here
        missed = pre_tokenizers.Split(Regex("[\U0002b820-\U0002b91f]"), "isolated")
        return pre_tokenizers.Sequence([missed, pre_tokenizers.BertPreTokenizer()])  # type: ignore[return-value]
    return pre_tokenizers.ByteLevel(add_prefix_space=True)  # type: ignore[return-value]


def word_cutter(model: Model, lowercase: bool) -> Cut:
    """A function from a run of non-spaces to its words. Example: `"It's"` -> `["it", "'", "s"]` in BERT."""
    return _cutter(_library_cutter(model, lowercase), _ascii_cutter(model, lowercase))


def cutter_of(tokenizer: Tokenizer, model: Model) -> Cut:
    """Return the cutter of a tokenizer, made here or published: its own rules, the faster way where both agree."""
    own = _own_cutter(tokenizer, model)
    if model == "unigram":
        return own

    lowercase = bool(getattr(tokenizer.normalizer, "lowercase", False))
    plain = _ascii_cutter(model, lowercase)
    return _cutter(own, plain) if plain(_ASCII_PAIRS) == own(_ASCII_PAIRS) else own


def _cutter(exact: Cut, plain: Cut) -> Cut:
    """Return a cutter that takes `plain` for printable ASCII without spaces, and `exact` for everything else."""
    return lambda run: plain(run) if run.isascii() and run.isprintable() and " " not in run else exact(run)


def _own_cutter(tokenizer: Any, model: Model) -> Cut:
    """Return a tokenizer's own rules. In byte-level BPE every run begins with a space, wherever it is in a text."""
    # Asked for once: each access to these properties makes another object.
    normalize = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
    split = tokenizer.pre_tokenizer.pre_tokenize_str if tokenizer.pre_tokenizer else lambda text: []

    def cut(run: str) -> list[str]:
        needs_space = model == "bytebpe" and run and not run.startswith(" ")
        text = " " + run if needs_space else run
        return [word for word, _ in split(normalize(text))]

    return cut


def check_rules(tokenizer_json: bytes, model: Model, path: str) -> None:
    """Raise DataError when a published tokenizer is damaged or cuts plain text by other rules than its model's.

    They are BERT's, GPT-2's or, in Unigram, the tokenizer's own, applied to each run of non-spaces alone.
    """
    try:
        tokenizer: Any = Tokenizer.from_str(tokenizer_json.decode())
    except Exception as error:  # the library raises nothing more special
        raise DataError(
            f"{path}: {FILE} is not one that the tokenizers library reads ({error}). Copy it again, or make a "
            "vocabulary with `python -m pipeline vocab`."
        ) from error

    if model == "unigram":
        cut = cutter_of(tokenizer, model)
    else:
        cut = word_cutter(model, bool(getattr(tokenizer.normalizer, "lowercase", False)))
    for runs in _PROBES:
        found = _words(tokenizer, f" {runs}" if model == "bytebpe" else runs)
        expected = [word for run in runs.split(" ") for word in cut(run)]
        if found != expected:
            raise DataError(
                f"{path}: {FILE} cuts {runs!r} into {found}, which are not {RULES[model]} words, {expected}. "
                "Use a vocabulary with BERT's, RoBERTa's or ALBERT's rules, or one of `python -m pipeline vocab`."
            )


def _words(tokenizer: Any, text: str) -> list[str]:
    """By the tokenizer's own rules."""
    normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)] if tokenizer.pre_tokenizer else []


def _library_cutter(model: Model, lowercase: bool) -> Cut:
    split = pre_tokenizer(model).pre_tokenize_str
    if model == "bytebpe":
        return lambda run: [word for word, _ in split(run)]
    normalize = normalizer(lowercase).normalize_str
    return lambda run: [word for word, _ in split(normalize(run))]


def _ascii_cutter(model: Model, lowercase: bool) -> Cut:
    """The same for printable ASCII without spaces."""
    if model == "bytebpe":
        find = _GPT2_ASCII.findall
        return lambda run: [word.replace(" ", SPACE) for word in find(" " + run)]
    find = _BERT_ASCII.findall
    return (lambda run: find(run.lower())) if lowercase else find
