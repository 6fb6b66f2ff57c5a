"""What counts as a word: BERT's basic tokens, GPT-2's pre-tokens over bytes, or sentencepiece's runs of non-spaces.

The rules are objects of the `tokenizers` library, and the finished tokenizer.json contains the same ones, so counting
and encoding cannot disagree. For a published tokenizer, text is cut by the rules in its file, whatever they are. cut.py
has array operations that follow the same rules for most text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from schemas.vocabulary_kinds import SENTENCEPIECE_SPACE, VOCABULARY_KINDS, Model, kind_of

Cut = Callable[[str], list[str]]
"""A function from a run of non-spaces to its words."""

_NMT_REMOVED = "[\u0001-\u0008\u000b\u000e-\u001f\u007f\u008f\u009f]"
_NMT_SPACES = "[\t\n\u000c\r\u1680\u200b\u200c\u200e\u200f\u2028\u2029\u2581\ufeff\ufffd]"
"""The characters that sentencepiece's nmt_nfkc removes, and those of which it makes spaces besides NFKC's."""


@dataclass(frozen=True)
class Rules:
    """What decides how text is cut into words. Vocabularies with equal rules can be learned from the same counts.

    Unigram's words are counted with case and accents, so that every Unigram vocabulary can use them (see fold_steps).
    """

    model: Model
    lowercase: bool

    @property
    def name(self) -> str:
        """The name of the rules in the names of count files."""
        return kind_of(self.model).counted_as[self.lowercase]


ALL_RULES = tuple(Rules(model, lowercase) for model, kind in VOCABULARY_KINDS.items() for lowercase in kind.counted_as)


def rules_of(model: Model, lowercase: bool, keep_accents: bool = False) -> Rules:
    """Return the rules of a vocabulary's counts. Case that goes without the accents is removed later."""
    return Rules(model, lowercase and not keep_accents and True in kind_of(model).counted_as)


def normalizer(lowercase: bool, keep_accents: bool = False) -> normalizers.Normalizer:
    """Return BERT's normalizer (arXiv:1810.04805).

    It removes control characters, separates CJK characters by spaces and, when lowercasing, strips accents unless they
    are kept.
    """
    return normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False if lowercase and keep_accents else None)


def case_of(tokenizer: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether a tokenizer.json with BERT's rules lowercases text, and whether it then keeps accents."""
    normalizer = tokenizer.get("normalizer") or {}
    return bool(normalizer.get("lowercase")), normalizer.get("strip_accents") is False


def count_steps() -> list[normalizers.Normalizer]:
    """Return the steps that normalize text before Unigram's words are counted; `fold_steps` normalizes words later.

    This is sentencepiece's nmt_nfkc (control characters are removed, other white space becomes spaces, then NFKC),
    after replacing two kinds of quotation marks as ALBERT and XLNet do. tokenizers' `Nmt` is not used, because it makes
    a space of the zero width joiner, which joins letters of Sinhala and Malayalam and parts of emoji.
    """
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    removed = normalizers.Replace(Regex(_NMT_REMOVED), "")
    spaces = normalizers.Replace(Regex(_NMT_SPACES), " ")
    return [*quotes, removed, spaces, normalizers.NFKC()]


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
    return normalizers.Sequence(steps)


def bert_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Return BERT's split at spaces and punctuation."""
    # In tokenizers' list of ideographs, this block begins 256 characters later than in Google's.
    missed = pre_tokenizers.Split(Regex("[\U0002b820-\U0002b91f]"), "isolated")
    return pre_tokenizers.Sequence([missed, pre_tokenizers.BertPreTokenizer()])


def gpt2_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Return GPT-2's pattern over bytes. A word includes the space before it."""
    return pre_tokenizers.ByteLevel(add_prefix_space=True)


def sentencepiece_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Return sentencepiece's split at spaces. A word begins with a mark for the space."""
    metaspace = pre_tokenizers.Metaspace(SENTENCEPIECE_SPACE, prepend_scheme="always", split=True)
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])


def literal_tokenizer(tokenizer_json: bytes) -> Tokenizer:
    """Return a tokenizer that reads special tokens as text and ignores the length limits that its file may state."""
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def cutter_of(tokenizer: Tokenizer, model: Model) -> Cut:
    """Return a cutter that follows the rules of a tokenizer, trained here or published.

    In byte-level BPE, every run begins with a space, wherever it is in the text.
    """
    cut_text = text_cutter(tokenizer)
    if not kind_of(model).is_byte_level:
        return cut_text
    return lambda run: cut_text(run if run.startswith(" ") or run == "" else " " + run)


def text_cutter(tokenizer: Any) -> Cut:
    """Return a function from a text, which may contain spaces, to its words. Without a pre-tokenizer it has none."""
    # Read only once, because each access to these properties makes a new object.
    normalizer = tokenizer.normalizer
    pre_tokenizer = tokenizer.pre_tokenizer
    normalize = normalizer.normalize_str if normalizer else str
    split = pre_tokenizer.pre_tokenize_str if pre_tokenizer else lambda text: []
    return lambda text: [word for word, _ in split(normalize(text))]
