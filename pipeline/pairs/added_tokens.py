"""The added tokens of a published tokenizer, which it finds in the text before its rules cut words.

transformers writes such tokens: `tokenizer.add_tokens(["covid19"])`, or the user-defined symbols of a SentencePiece
model. Each may look at the characters around it (`single_word`), take white space with it (`lstrip`, `rstrip`), and be
searched before or after normalization (`normalized`), so only the tokenizer itself can say where one is. A search that
may find too much, but never too little, picks the sentences that are left to it.

Added tokens marked as special are not searched for: spelled out in a corpus, they are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from pipeline.pairs.encoded import EncodedStrings, JoinedWords
from schemas.ragged import offsets_of
from schemas.vocabulary import Model

AT_ONCE = 1024  # sentences that are Python strings at once, which take many times their size


class AddedTokens:
    """The added tokens of one tokenizer that are not special."""

    def __init__(self, tokenizer_json: bytes, model: Model, joined_words: JoinedWords | None):
        self._tokenizer = literal_tokenizer(tokenizer_json)
        self._prefix_spaces = model == "bytebpe" and not _adds_prefix_space(self._tokenizer)
        self._joined_words = joined_words

        added = self._tokenizer.get_added_tokens_decoder()
        self._ids = {i for i, token in added.items() if not token.special}
        tokens = [added[i] for i in sorted(self._ids)]
        self._find = _search(token.content for token in tokens if not token.normalized)
        self._find_normalized = _search(self._normalize(token.content) for token in tokens if token.normalized)

    def may_occur_in(self, sentences: pa.Array) -> NDArray[np.bool_]:
        """Return (N,) true for each sentence that holds the characters of an added token."""
        if self._find is None and self._find_normalized is None:
            return np.zeros(len(sentences), dtype=bool)
        strings = chain.from_iterable(_lots(sentences))
        return np.fromiter(map(self._may_occur, strings), bool, len(sentences))

    def encode(self, sentences: pa.Array) -> EncodedStrings:
        """Return the ids of N sentences as the tokenizer itself finds them."""
        ids = [np.zeros(0, dtype=np.int32)]
        joined: list[bool] = []
        for lot in _lots(sentences):
            texts = self._with_prefix_spaces(lot) if self._prefix_spaces else lot
            for text, encoding in zip(texts, self._encode_batch(texts), strict=True):
                ids.append(np.array(encoding.ids, dtype=np.int32))
                if self._joined_words is not None:
                    joined += _joined_tokens(encoding, text, self._joined_words)

        lengths_N = np.fromiter(map(len, ids[1:]), np.int64, len(ids) - 1)
        joined_T = None if self._joined_words is None else np.array(joined, dtype=bool)
        return EncodedStrings(np.concatenate(ids), offsets_of(lengths_N), joined_T)

    def _may_occur(self, sentence: str) -> bool:
        if self._find is not None and self._find(sentence):
            return True
        return self._find_normalized is not None and bool(self._find_normalized(self._normalize(sentence)))

    def _normalize(self, text: str) -> str:
        normalizer: Any = self._tokenizer.normalizer
        return normalizer.normalize_str(text) if normalizer else text

    def _encode_batch(self, texts: list[str]) -> list[Encoding]:
        # The fast one does not record which characters a token is of.
        fast = self._joined_words is None
        encode_batch = self._tokenizer.encode_batch_fast if fast else self._tokenizer.encode_batch
        return encode_batch(texts, add_special_tokens=False)

    def _with_prefix_spaces(self, sentences: list[str]) -> list[str]:
        """Return the sentences with a space before the first word, unless they begin with an added token.

        Every sentence begins a word here, so that a word has one form wherever it is; RoBERTa's published tokenizer
        leaves the first word of a text without its space.
        """
        texts = []
        for sentence, encoding in zip(sentences, self._encode_batch(sentences), strict=True):
            begins_with_added = bool(encoding.ids) and encoding.ids[0] in self._ids
            needs_space = not begins_with_added and not sentence.startswith(" ")
            texts.append(" " + sentence if needs_space else sentence)
        return texts


def literal_tokenizer(tokenizer_json: bytes) -> Tokenizer:
    """Return the tokenizer with special tokens read as text, and without the length limits that the file may state."""
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _adds_prefix_space(tokenizer: Any) -> bool:
    if tokenizer.pre_tokenizer is None:
        return False
    return tokenizer.pre_tokenizer.pre_tokenize_str("a") != [("a", (0, 1))]


def _search(contents: Iterable[str]) -> Any:
    """Return a function that finds any of the strings in a text, or None when there are no strings."""
    patterns = [re.escape(content) for content in contents]
    return re.compile("|".join(patterns)).search if patterns else None


def _lots(sentences: pa.Array) -> Iterator[list[str]]:
    for start in range(0, len(sentences), AT_ONCE):
        yield sentences.slice(start, AT_ONCE).to_pylist()


def _joined_tokens(encoding: Encoding, text: str, joined_words: JoinedWords) -> list[bool]:
    """Return for each token whether its word continues the one before; an added token is a word."""
    word_of_token = encoding.word_ids
    numbers = [number for number in dict.fromkeys(word_of_token) if number is not None]

    words = []
    for number in numbers:
        start, end = encoding.word_to_chars(number) or (0, 0)
        words.append(text[start:end])

    joined = dict(zip(numbers, joined_words(text, words), strict=True))
    return [number is not None and joined[number] for number in word_of_token]
