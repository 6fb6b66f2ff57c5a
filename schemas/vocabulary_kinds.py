"""The kinds of vocabularies, one row each: what both halves know of them. Nothing here needs numpy or tokenizers.

A new kind is a name in Model, a row of VOCABULARY_KINDS here, and a row of MAKERS in pipeline/vocab/kinds.py with the
functions that count its words, learn its tokens and write its files, whose names are in `vocabulary.TOKENIZER_FILES`.
Other code names no kind, but asks its row.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Literal

Model = Literal["wordpiece", "bytebpe", "unigram"]
"""The models of BERT, of RoBERTa, and of ALBERT, XLNet and XLM-R."""

Family = Literal["bert", "roberta", "albert", "xlnet"]
"""The model whose special tokens a vocabulary has."""

SPACE = "\u0120"  # how byte-level BPE spells a space
SENTENCEPIECE_SPACE = "\u2581"

SPACE_SIGN = "\u2423"
"""Shown for a space of a byte-level token, where it would not be seen otherwise."""


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of GPT-2's byte-level alphabet stands for.

    Printable Latin-1 bytes are spelled as they are, all others as the characters from U+0100 up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_alphabet()


def bytes_of_token(token: str) -> bytes:
    """Return the bytes that a byte-level token stands for."""
    return bytes(BYTE_OF_CHARACTER[character] for character in token)


def _text_of_bytes(token: str) -> str:
    return bytes_of_token(token).decode(errors="backslashreplace")


def _show_bytes(spelled: str) -> str:
    """Return a byte-level token or word as text with its spaces as SPACE_SIGN. Bytes of no character are escaped.

    Examples: `"\u0120the"` -> `"\u2423the"`, `"\u00e0\u00b8"` -> `"\\\\xe0\\\\xb8"`.
    """
    if not all(character in BYTE_OF_CHARACTER for character in spelled):  # an added token, which is plain text
        return spelled
    return _text_of_bytes(spelled).replace(" ", SPACE_SIGN)


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens as published models have them.

    by_role: the tokens that rows are made of. first, last: all special tokens, by id, at the beginning and the end of
    the vocabulary. lowercase: whether such vocabularies ignore case by default; None if the text's language decides.
    separators: the number of separator tokens between two segments of a row.
    """

    family: Family
    by_role: dict[str, str]
    first: tuple[str, ...]
    last: tuple[str, ...] = ()
    lowercase: bool | None = False
    separators: int = 1

    @property
    def all(self) -> tuple[str, ...]:
        """All special tokens, by id."""
        return self.first + self.last


_BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
_ROBERTA_SPECIALS = SpecialTokens(
    "roberta", _ROBERTA, ("<s>", "<pad>", "</s>", "<unk>"), last=("<mask>",), separators=2
)
_ALBERT = _BERT | {"pad": "<pad>", "unk": "<unk>"}
_XLNET = {"pad": "<pad>", "unk": "<unk>", "cls": "<cls>", "sep": "<sep>", "mask": "<mask>"}
_XLNET_FIRST = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")


@dataclass(frozen=True, kw_only=True)
class VocabularyKind:
    """What distinguishes the vocabularies of one kind.

    library_type: the model's name in the `tokenizers` library, and so in tokenizer.json.
    specials: the special tokens that such a vocabulary may have, the default ones first.
    word_start: what tokens that begin a word begin with. inside_word: what all others begin with.
    is_byte_level: whether tokens and counted words are spelled in GPT-2's alphabet of bytes. A word then includes the
    space before it.
    has_scores: whether tokenizer.json lists tokens with scores, in the order of their ids, instead of naming each id.
    readable: returns a token as text, without the marks of its alphabet. shown: with them, and bytes as text.
    counted_as: the names of its words' counts, by whether the words are lowercased.
    rules_vary: whether tokenizers of this kind differ in more than case in what they make of words. Words are then
    counted with case and accents, and each tokenizer normalizes them later.
    flags: the flags of `vocab` for this kind alone. idle_flags: those without an effect, and why.
    accents_flag: the flag that decides on accents; empty if they are always kept.
    """

    library_type: str
    specials: tuple[SpecialTokens, ...]
    word_start: str = ""
    inside_word: str = ""
    is_byte_level: bool = False
    has_scores: bool = False
    readable: Callable[[str], str]
    shown: Callable[[str], str] = str
    counted_as: dict[bool, str]
    rules_vary: bool = False
    flags: tuple[str, ...] = ()
    idle_flags: dict[str, str]
    accents_flag: str = ""

    def specials_in(self, tokens: Container[str]) -> SpecialTokens:
        """Return the special tokens that a vocabulary with these tokens has."""
        found = (special for special in self.specials if special.by_role["cls"] in tokens)
        return next(found, self.specials[0])

    def specials_of(self, family: Family) -> SpecialTokens:
        """Return the special tokens of a family, or the only ones."""
        return next((special for special in self.specials if special.family == family), self.specials[0])


VOCABULARY_KINDS: dict[Model, VocabularyKind] = {
    "wordpiece": VocabularyKind(
        library_type="WordPiece",
        specials=(SpecialTokens("bert", _BERT, tuple(_BERT.values()), lowercase=None),),
        inside_word="##",
        readable=lambda token: token.removeprefix("##"),
        counted_as={True: "wordpiece_uncased", False: "wordpiece_cased"},
        flags=("keep_accents",),
        idle_flags={},
        accents_flag="lowercase",
    ),
    "bytebpe": VocabularyKind(
        library_type="BPE",
        specials=(_ROBERTA_SPECIALS,),
        word_start=SPACE,
        is_byte_level=True,
        readable=lambda token: _text_of_bytes(token).strip(" "),
        shown=_show_bytes,
        counted_as={False: "bytebpe"},
        idle_flags={"lowercase": "which keeps every byte"},
    ),
    "unigram": VocabularyKind(
        library_type="Unigram",
        specials=(
            SpecialTokens("albert", _ALBERT, ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"), lowercase=True),
            SpecialTokens("xlnet", _XLNET, _XLNET_FIRST),
            _ROBERTA_SPECIALS,  # XLM-R and CamemBERT: only published ones
        ),
        word_start=SENTENCEPIECE_SPACE,
        has_scores=True,
        readable=lambda token: token.replace(SENTENCEPIECE_SPACE, " ").strip(" "),
        counted_as={False: "unigram"},
        rules_vary=True,
        flags=("special_tokens", "keep_accents"),
        idle_flags={"min_frequency": "which merges no pairs"},
        accents_flag="keep_accents",
    ),
}

MODEL_BY_TYPE: dict[str, Model] = {kind.library_type: model for model, kind in VOCABULARY_KINDS.items()}


def kind_of(model: Model) -> VocabularyKind:
    """Return the kind of a model's vocabularies. Raises ValueError if there is none with this name."""
    if model not in VOCABULARY_KINDS:
        raise ValueError(f"{model!r} is no kind of vocabulary. There are {', '.join(VOCABULARY_KINDS)}.")
    return VOCABULARY_KINDS[model]


def flags_of_others(model: Model) -> dict[str, Model]:
    """Return the flags of `vocab` that are for other kinds alone, and for which."""
    own = kind_of(model).flags
    return {flag: other for other, kind in VOCABULARY_KINDS.items() for flag in kind.flags if flag not in own}
