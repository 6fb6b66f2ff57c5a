"""What counts as a word: BERT's basic tokens, GPT-2's pre-tokens over bytes, or sentencepiece's runs of non-spaces.

The rules are objects of the `tokenizers` library, and the finished tokenizer.json contains the same ones, so counting
and encoding cannot disagree. For a published tokenizer, text is cut by the rules in its file, whatever they are.

In most European languages, most runs of non-spaces are plain ASCII. For those, the same rules are one regular
expression, which is several times as fast. A property test checks that both agree. It is not used for a published
tokenizer whose rules differ from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from schemas.errors import DataError
from schemas.vocabulary import SENTENCEPIECE_SPACE, SPACE, TOKENIZER_FILE, Model

Cut = Callable[[str], list[str]]
"""A function from a run of non-spaces to its words."""

_PROBES = ["It's", "Caf\u00e9,", "\u4e2d\u6587", "x\u00a03.14", "don't--stop_2", "two words"]
_PRINTABLE = [chr(code) for code in range(0x21, 0x7F)]
_ASCII_PAIRS = "".join(left + right for left in _PRINTABLE for right in _PRINTABLE)
"""Every pair of printable ASCII characters, end to end. It shows any difference between two sets of rules."""

_RULES_OF: dict[Model, str] = {"wordpiece": "BERT's", "bytebpe": "GPT-2's", "unigram": "ALBERT's"}

_NMT_REMOVED = "[\u0001-\u0008\u000b\u000e-\u001f\u007f\u008f\u009f]"
_NMT_SPACES = "[\t\n\u000c\r\u1680\u200b\u200c\u200e\u200f\u2028\u2029\u2581\ufeff\ufffd]"
"""The characters that sentencepiece's nmt_nfkc removes, and those of which it makes spaces besides NFKC's."""

_BERT_ASCII = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]")
_GPT2_ASCII = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^ A-Za-z0-9]+")


def normalizer(lowercase: bool) -> normalizers.Normalizer:
    """Return BERT's normalizer (arXiv:1810.04805).

    It removes control characters, separates CJK characters by spaces and, when lowercasing, strips accents.
    """
    return normalizers.BertNormalizer(lowercase=lowercase)  # type: ignore[return-value]


def count_steps() -> list[normalizers.Normalizer]:
    """Return the steps that normalize text before Unigram's words are counted; `fold_steps` normalizes words later.

    This is sentencepiece's nmt_nfkc (control characters are removed, other white space becomes spaces, then NFKC),
    after replacing two kinds of quotation marks as ALBERT and XLNet do. tokenizers' `Nmt` is not used, because it makes
    a space of the zero width joiner, which joins letters of Sinhala and Malayalam and parts of emoji.
    """
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    removed = normalizers.Replace(Regex(_NMT_REMOVED), "")
    spaces = normalizers.Replace(Regex(_NMT_SPACES), " ")
    return [*quotes, removed, spaces, normalizers.NFKC()]  # type: ignore[list-item]


def fold_steps(lowercase: bool, keep_accents: bool) -> list[normalizers.Normalizer]:
    """Return the steps that remove case and accents from Unigram's text, as ALBERT does. The result is NFKC again."""
    steps: list[Any] = []
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    return [*steps, normalizers.NFKC()] if steps else []


def unigram_normalizer(lowercase: bool, keep_accents: bool) -> normalizers.Normalizer:
    """Return sentencepiece's normalization in the form that ALBERT and XLNet use."""
    steps: Any = [*count_steps(), *fold_steps(lowercase, keep_accents)]
    return normalizers.Sequence(steps)  # type: ignore[return-value]


def pre_tokenizer(model: Model) -> pre_tokenizers.PreTokenizer:
    """Return BERT's split at spaces and punctuation, GPT-2's pattern over bytes, or sentencepiece's split at spaces.

    A word in GPT-2's pattern includes the space before it; sentencepiece's begins with a mark for the space.
    """
    if model == "unigram":
        metaspace = pre_tokenizers.Metaspace(SENTENCEPIECE_SPACE, prepend_scheme="always", split=True)
        return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])  # type: ignore[return-value]
    if model == "wordpiece":
        # In tokenizers' list of ideographs, this block begins 256 characters later than in Google's.
        missed = pre_tokenizers.Split(Regex("[\U0002b820-\U0002b91f]"), "isolated")
        return pre_tokenizers.Sequence([missed, pre_tokenizers.BertPreTokenizer()])  # type: ignore[return-value]
    return pre_tokenizers.ByteLevel(add_prefix_space=True)  # type: ignore[return-value]


def word_cutter(model: Model, lowercase: bool) -> Cut:
    """Return a function from a run of non-spaces to its words. Example: `"It's"` -> `["it", "'", "s"]` in BERT."""
    if model == "unigram":
        return library_cutter(model, lowercase)
    return _with_fast_path(library_cutter(model, lowercase), _ascii_cutter(model, lowercase))


def cutter_of(tokenizer: Tokenizer, model: Model) -> Cut:
    """Return the cutter of a tokenizer, trained here or published.

    It follows the tokenizer's own rules, with the fast path for ASCII if that gives the same words.
    """
    own_rules = _own_cutter(tokenizer, model)
    if model == "unigram":
        return own_rules

    ascii_rules = _ascii_cutter(model, _lowercases(tokenizer))
    if ascii_rules(_ASCII_PAIRS) != own_rules(_ASCII_PAIRS):
        return own_rules
    return _with_fast_path(own_rules, ascii_rules)


def _with_fast_path(any_text: Cut, ascii_only: Cut) -> Cut:
    """Return a cutter that uses `ascii_only` for printable ASCII without spaces, and `any_text` for everything else."""

    def cut(run: str) -> list[str]:
        if run.isascii() and run.isprintable() and " " not in run:
            return ascii_only(run)
        return any_text(run)

    return cut


def _own_cutter(tokenizer: Any, model: Model) -> Cut:
    """Return a cutter that follows a tokenizer's own rules.

    In byte-level BPE, every run begins with a space, wherever it is in the text.
    """
    # Read only once, because each access to these properties makes a new object.
    normalize = _normalize_function(tokenizer)
    split = _split_function(tokenizer)

    def cut(run: str) -> list[str]:
        needs_space = model == "bytebpe" and run != "" and not run.startswith(" ")
        text = " " + run if needs_space else run
        return [word for word, _ in split(normalize(text))]

    return cut


def _normalize_function(tokenizer: Any) -> Callable[[str], str]:
    rules = tokenizer.normalizer
    return rules.normalize_str if rules else str


def _split_function(tokenizer: Any) -> Callable[[str], list[tuple[str, Any]]]:
    """Return a function from a text to (word, position) pairs; without a pre-tokenizer it returns no words."""
    rules = tokenizer.pre_tokenizer
    return rules.pre_tokenize_str if rules else lambda text: []


def _lowercases(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer.normalizer, "lowercase", False))


def check_rules(tokenizer_json: bytes, model: Model, path: str) -> None:
    """Raise DataError if a published tokenizer is damaged or cuts plain text by other rules than those of its model.

    The rules are BERT's or GPT-2's or, in Unigram, the tokenizer's own, applied to each run of non-spaces separately.
    """
    try:
        tokenizer: Any = Tokenizer.from_str(tokenizer_json.decode())
    except Exception as error:  # the library raises no narrower class
        raise DataError(
            f"{path}: the tokenizers library cannot read {TOKENIZER_FILE} ({error}). Copy it again, or make a "
            "vocabulary with `clozeline vocab`."
        ) from error

    cut = _expected_cutter(tokenizer, model)
    for probe in _PROBES:
        found = _words(tokenizer, f" {probe}" if model == "bytebpe" else probe)
        expected = [word for run in probe.split(" ") for word in cut(run)]
        if found != expected:
            raise DataError(
                f"{path}: {TOKENIZER_FILE} cuts {probe!r} into {found}, which are not "
                f"{_RULES_OF[model]} words, {expected}. "
                "Use a vocabulary with BERT's, RoBERTa's or ALBERT's rules, or make one with "
                "`clozeline vocab`."
            )


def _expected_cutter(tokenizer: Any, model: Model) -> Cut:
    if model == "unigram":
        return cutter_of(tokenizer, model)
    return word_cutter(model, _lowercases(tokenizer))


def _words(tokenizer: Any, text: str) -> list[str]:
    """Return the words of a text, which may contain spaces, by the tokenizer's own rules."""
    normalized = _normalize_function(tokenizer)(text)
    return [word for word, _ in _split_function(tokenizer)(normalized)]


def library_cutter(model: Model, lowercase: bool) -> Cut:
    """Return a cutter that follows the rules of vocabularies trained here, using the tokenizers library."""
    split = pre_tokenizer(model).pre_tokenize_str
    if model == "bytebpe":
        return lambda run: [word for word, _ in split(run)]

    rules: Any = normalizers.Sequence(count_steps()) if model == "unigram" else normalizer(lowercase)
    normalize = rules.normalize_str
    return lambda run: [word for word, _ in split(normalize(run))]


def _ascii_cutter(model: Model, lowercase: bool) -> Cut:
    """Return a cutter that follows the same rules for printable ASCII without spaces."""
    if model == "bytebpe":
        find_bytes = _GPT2_ASCII.findall
        return lambda run: [word.replace(" ", SPACE) for word in find_bytes(" " + run)]

    find = _BERT_ASCII.findall
    if lowercase:
        return lambda run: find(run.lower())
    return find
