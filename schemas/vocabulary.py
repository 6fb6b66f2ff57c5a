"""A vocabulary's identity: its tokens, its special tokens, where words begin, and one fingerprint for all of it.

In the folder that `clozeline vocab` writes, `tokenizer.json` alone defines the vocabulary, and
`extension.json` says what it was extended from. This module reads them as JSON, so that the trainer needs no tokenizer
to know what an id means.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from schemas import storage
from schemas.errors import DataError
from schemas.folder_kinds import TOKENIZER_FILE
from schemas.vocabulary_kinds import MODEL_BY_TYPE, Model, SpecialTokens, VocabularyKind, bytes_of_token, kind_of

EXTENSION_FILE = "extension.json"
"""What `vocab --extend` writes next to it: how each new token is built from old ones. It travels with the pairs."""

TOKENIZER_FILES = {
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    EXTENSION_FILE,
}
"""The files of a tokenizer's folder, made here or published."""

OLDER_FILES = ("vocab.txt", "vocab.json", "merges.txt")
"""What tokenizers were published in before tokenizer.json, besides SentencePiece's models."""

COUNTS_FILE = "word_counts.arrow"
"""File next to a vocabulary with the exact word counts that it was trained on."""

VOCABULARY_FOLDER = "vocabulary"
"""Folder inside a folder of pairs with a copy of the vocabulary of its ids, so that the folder can travel alone."""


@dataclass(frozen=True)
class Extension:
    """How a vocabulary extends a smaller one. Ids from `base_size` up are new.

    A model that starts from the smaller vocabulary's weights uses it to initialize the embeddings of the new tokens.

    base_fingerprint: the smaller vocabulary's fingerprint.
    rows: for each new id, the old ids whose mean embedding initializes it.
    """

    base_size: int
    base_fingerprint: str
    rows: Mapping[int, tuple[int, ...]]

    def to_json(self, tokens: Sequence[str]) -> bytes:
        """Return the bytes of EXTENSION_FILE for the extended vocabulary, whose tokens it names by their hash."""
        content = {
            "base_size": self.base_size,
            "base_fingerprint": self.base_fingerprint,
            "tokens_fingerprint": _hash_of_tokens(tokens),
            "rows": {str(new): list(old) for new, old in self.rows.items()},
        }
        return (json.dumps(content, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, tokens: Sequence[str], url: str) -> Extension:
        """Parse EXTENSION_FILE of a vocabulary with these tokens.

        Raises DataError naming `url` if it is invalid or belongs to a vocabulary with other tokens.
        """
        try:
            content = json.loads(data)
            rows = {int(new): tuple(map(int, old)) for new, old in content["rows"].items()}
            extension = cls(int(content["base_size"]), str(content["base_fingerprint"]), rows)
            fingerprint = content["tokens_fingerprint"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{url} is not the JSON of an extension ({error!r}). Copy the vocabulary again.") from error

        if fingerprint != _hash_of_tokens(tokens):
            raise DataError(
                f"{url} belongs to another vocabulary than the tokenizer.json next to it, so it would start new tokens "
                "from wrong ones. Copy the vocabulary again, or remove this file if the vocabulary extends no other."
            )

        are_new = sorted(rows) == list(range(extension.base_size, len(tokens)))
        are_old = all(old and min(old) >= 0 and max(old) < extension.base_size for old in rows.values())
        if not are_new or not are_old:
            raise DataError(
                f"{url} must give old ids below {extension.base_size} for each id from there to {len(tokens) - 1}, the "
                "last of the vocabulary next to it. Copy the vocabulary again."
            )
        return extension


def _hash_of_tokens(tokens: Sequence[str]) -> str:
    """Return a hash of the tokens in the order of their ids. An export changes other rules of a vocabulary."""
    return hashlib.blake2b(json.dumps(list(tokens)).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary: `tokens[i]` is the token with id i.

    fingerprint: a hash of tokens, ids and normalization rules together.
    added: ids of the non-special tokens that a published tokenizer matches in the text before it cuts words.
    extension: set if the vocabulary extends another one.
    """

    model: Model
    tokens: tuple[str, ...]
    fingerprint: str
    added: frozenset[int] = frozenset()
    extension: Extension | None = None

    @property
    def size(self) -> int:
        """The number of tokens, special ones included."""
        return len(self.tokens)

    def special_id(self, role: Literal["pad", "unk", "cls", "sep", "mask"]) -> int:
        """Return the id of a special token by its role, however the vocabulary spells it."""
        return self._special_by_role[role]

    @property
    def kind(self) -> VocabularyKind:
        """What all vocabularies of this model have in common."""
        return kind_of(self.model)

    @cached_property
    def _specials(self) -> SpecialTokens:
        return self.kind.specials_in(self.tokens)

    @cached_property
    def _special_by_role(self) -> dict[str, int]:
        return {role: self.tokens.index(token) for role, token in self._specials.by_role.items()}

    def readable(self, token_id: int) -> str:
        """Return a token as text, without the marks of its alphabet. Example: 2075 (`##ing`) -> `"ing"`."""
        token = self.tokens[token_id]
        return token if self._is_plain(token_id) else self.kind.readable(token)

    def _is_plain(self, token_id: int) -> bool:
        """Whether a token is text as it is, and not spelled as the model spells its tokens."""
        return token_id in self.special_ids or token_id in self.added

    def readable_row(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of a row as `readable` does, but decoded as a whole.

        Byte-level tokens may end inside a character; it is then part of the token that completes it.
        """
        if not self.kind.is_byte_level:
            return [self.readable(token_id) for token_id in ids]

        decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")
        texts: list[str] = []
        for token_id in ids:
            if self._is_plain(token_id):
                self._end_bytes(decoder, texts)
                texts.append(self.tokens[token_id])
            else:
                texts.append(decoder.decode(bytes_of_token(self.tokens[token_id])).strip(" "))

        self._end_bytes(decoder, texts)
        return texts

    @staticmethod
    def _end_bytes(decoder: codecs.IncrementalDecoder, texts: list[str]) -> None:
        """Add the bytes of a character that is never completed to the last token's text."""
        rest = decoder.decode(b"", final=True)
        if rest:
            texts[-1] += rest

    def shown(self, token_id: int) -> str:
        """Return a token as a list of tokens shows it: with the marks of its alphabet, and bytes as text."""
        return self.kind.shown(self.tokens[token_id])

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """The ids that are never masked and never replace a masked token."""
        return tuple(sorted(self.tokens.index(token) for token in self._specials.all if token in self.tokens))

    @property
    def is_xlnet(self) -> bool:
        """Whether the special tokens are XLNet's."""
        return self._specials.family == "xlnet"

    @cached_property
    def ordinary_ids(self) -> NDArray[np.int64]:
        """All other ids, int64, ascending: random tokens are drawn from these."""
        return _constant(np.flatnonzero(~self.is_special_V))

    @cached_property
    def is_special_V(self) -> NDArray[np.bool_]:
        """(V,) bool, true at the special ids. [UNK] is one: predicting an unknown word teaches nothing."""
        return _constant(np.isin(np.arange(self.size), self.special_ids))

    @cached_property
    def starts_word_V(self) -> NDArray[np.bool_]:
        """(V,) bool, true for tokens that begin a word.

        These are tokens without `##` in WordPiece, tokens with a leading space in the other models, and added tokens.
        """
        start, inside = self.kind.word_start, self.kind.inside_word
        starts_V = np.array([token.startswith(start) for token in self.tokens])
        if inside:
            starts_V &= np.array([not token.startswith(inside) for token in self.tokens])
        starts_V[list(self.added)] = True
        return _constant(starts_V)

    @property
    def separators(self) -> int:
        """The number of separator tokens between two segments: two in RoBERTa's and XLM-R's rows, one in all others."""
        return self._specials.separators


def read_vocabulary(folder: str) -> Vocabulary:
    """Return the vocabulary in a folder.

    Raises DataError if it is missing, damaged or lacks a special token, or if its extension is that of another one.
    """
    url = tokenizer_url(folder)
    vocabulary = parse_vocabulary(storage.read(url), url)

    extension_url = storage.join(folder, EXTENSION_FILE)
    if not storage.exists(extension_url):
        return vocabulary
    extension = Extension.from_json(storage.read(extension_url), vocabulary.tokens, extension_url)
    return replace(vocabulary, extension=extension)


def tokenizer_url(folder: str) -> str:
    """Return the path of a folder's tokenizer.json. Raises DataError that says how to get one if there is none."""
    url = storage.join(folder, TOKENIZER_FILE)
    if storage.exists(url):
        return url

    shown = storage.printable(folder)
    parent, _, name = shown.rpartition("/")
    if name == TOKENIZER_FILE and storage.exists(folder):
        raise DataError(f"{shown} is a file. Give its folder, {parent or '.'}.")

    names = storage.names(folder)
    older = [file for file in names if file in OLDER_FILES or file.endswith(".model")]
    remedy = "Give the folder of a published tokenizer, or make a vocabulary with `clozeline vocab`."
    if older:
        load = f"AutoTokenizer.from_pretrained({shown!r})"
        cased = " (a cased model: with do_lower_case=False, which no file says)"
        remedy = (
            f"A published model needs its own, which transformers makes of {', '.join(older)}"
            f"{cased if 'vocab.txt' in older and 'tokenizer_config.json' not in names else ''}: "
            f'python -c "from transformers import AutoTokenizer; {load}.save_pretrained({shown!r})"'
        )
    raise DataError(f"{shown} holds no vocabulary: {TOKENIZER_FILE} is missing. {remedy}")


def parse_vocabulary(data: bytes, url: str) -> Vocabulary:
    """Parse the bytes of a tokenizer.json. Raises DataError naming `url` and what is wrong."""
    try:
        content = json.loads(data)
        model = MODEL_BY_TYPE[content["model"]["type"]]
        vocab = _ids(kind_of(model), content["model"]["vocab"])
        vocab |= {added["content"]: added["id"] for added in content["added_tokens"]}
        found_in_text = frozenset(added["id"] for added in content["added_tokens"] if not added["special"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{url} is not a WordPiece, byte-level BPE or Unigram tokenizer.json ({error!r}).") from error

    for token, number in vocab.items():
        if type(number) is not int:
            raise DataError(f"{url} gives the token {token!r} the id {number!r}. Expected a whole number.")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise DataError(f"{url} numbers its {len(vocab)} tokens with gaps or twice; ids must be 0 to {len(vocab) - 1}.")

    missing = [token for token in kind_of(model).specials_in(vocab).by_role.values() if token not in vocab]
    if missing:
        families = " or ".join(special.family for special in kind_of(model).specials)
        raise DataError(
            f"{url} lacks the special tokens {', '.join(missing)}: those of a {model} vocabulary must be the ones of "
            f"{families}. Pretraining cannot continue with this one; `clozeline finetune` takes it."
        )

    tokens = tuple(sorted(vocab, key=vocab.__getitem__))
    return Vocabulary(model, tokens, _fingerprint(content), found_in_text)


def _constant(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only. The threads of a process share a vocabulary and the arrays it caches."""
    array.setflags(write=False)
    return array


def _ids(kind: VocabularyKind, vocab: Any) -> dict[str, int]:
    return {token: i for i, (token, _) in enumerate(vocab)} if kind.has_scores else dict(vocab)


def _fingerprint(content: dict[str, Any]) -> str:
    """Return a hash of everything in a tokenizer.json that decides which ids a text gets."""
    # Truncation and padding are settings of a call, not of the vocabulary; transformers writes them into the file.
    kept = {name: value for name, value in content.items() if name not in ("truncation", "padding", "version")}
    canonical = json.dumps(kept, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()
