"""Encodes sentences with the added tokens of a published tokenizer, which it matches before its rules cut words.

transformers writes them for `tokenizer.add_tokens(["covid19"])` and for the user-defined symbols of a SentencePiece
model. An added token may depend on the characters around it (`single_word`), include white space next to it (`lstrip`,
`rstrip`), and be matched before or after normalization (`normalized`), so only the tokenizer itself can say where one
is. A search that may match too much, but never too little, selects the sentences that are left to the tokenizer.

Added tokens that are marked as special are not searched for: spelled out in a corpus, they are ordinary text.

Shape suffixes: N sentences, T tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tokenizers import Encoding

from pipeline.pairs.encoding_cache import EncodedStrings, MarkWords
from pipeline.pairs.word_segmentation import KEPT
from pipeline.words.rules import literal_tokenizer
from schemas.ragged import offsets_of
from schemas.vocabulary_kinds import Model, kind_of

SENTENCES_AT_ONCE = 1024  # held as Python strings at the same time; these take many times the memory of Arrow's

Search = Callable[[str], object]
"""A function from a text to a true value if one of its strings occurs in the text."""


class AddedTokens:
    """The added tokens of one tokenizer that are not special."""

    def __init__(self, tokenizer_json: bytes, model: Model, mark_words: MarkWords | None):
        """Load a tokenizer.json. `mark_words` tells where words begin in scripts without spaces."""
        self._tokenizer = literal_tokenizer(tokenizer_json)
        self._needs_prefix_spaces = kind_of(model).is_byte_level and not _adds_prefix_space(self._tokenizer)
        self._mark_words = mark_words

        added = self._tokenizer.get_added_tokens_decoder()
        self._ids = {i for i, token in added.items() if not token.special}
        tokens = [added[i] for i in sorted(self._ids)]
        self._find = _search(token.content for token in tokens if not token.normalized)
        self._find_normalized = _search(self._normalize(token.content) for token in tokens if token.normalized)

    def may_occur_in(self, sentences: pa.Array) -> NDArray[np.bool_]:
        """Return (N,) bool: true for each sentence that contains the characters of an added token."""
        if self._find is None and self._find_normalized is None:
            return np.zeros(len(sentences), dtype=bool)

        strings = chain.from_iterable(_string_batches(sentences))
        return np.fromiter(map(self._may_occur, strings), bool, len(sentences))

    def encode(self, sentences: pa.Array) -> EncodedStrings:
        """Return the ids of N sentences, encoded by the tokenizer itself."""
        ids = [np.zeros(0, dtype=np.int32)]
        lengths: list[int] = []
        marks: list[int] = []

        for strings in _string_batches(sentences):
            texts = self._with_prefix_spaces(strings) if self._needs_prefix_spaces else strings
            for text, encoding in zip(texts, self._encode_batch(texts), strict=True):
                ids.append(np.array(encoding.ids, dtype=np.int32))
                lengths.append(len(encoding.ids))
                if self._mark_words is not None:
                    marks += self._marks_of(encoding, text, self._mark_words)

        offsets_N1 = offsets_of(np.array(lengths, dtype=np.int64))
        marks_T = None if self._mark_words is None else np.array(marks, dtype=np.int8)
        return EncodedStrings(np.concatenate(ids), offsets_N1, marks_T)

    def _may_occur(self, sentence: str) -> bool:
        if self._find is not None and self._find(sentence):
            return True
        return self._find_normalized is not None and bool(self._find_normalized(self._normalize(sentence)))

    def _normalize(self, text: str) -> str:
        normalizer: Any = self._tokenizer.normalizer
        return normalizer.normalize_str(text) if normalizer else text

    def _encode_batch(self, texts: list[str]) -> list[Encoding]:
        # encode_batch_fast does not record which characters a token came from.
        if self._mark_words is None:
            return self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return self._tokenizer.encode_batch(texts, add_special_tokens=False)

    def _marks_of(self, encoding: Encoding, text: str, mark_words: MarkWords) -> list[int]:
        """Return the mark of each token's first character. An added token of several characters is a word."""
        spans = {word: encoding.word_to_chars(word) or (0, 0) for word in encoding.word_ids if word is not None}
        marks_C = mark_words([text], [[text[start:end] for start, end in spans.values()]])

        marks_of_word: dict[int | None, dict[int, int]] = {}
        place = 0
        for word, (start, end) in spans.items():
            marks_of_word[word] = dict(
                zip(range(start, end), marks_C[place : place + end - start].tolist(), strict=True)
            )
            place += end - start

        marks = []
        for token_id, word, (first, _) in zip(encoding.ids, encoding.word_ids, encoding.offsets, strict=True):
            of_word = marks_of_word.get(word, {})
            is_long = token_id in self._ids and len(of_word) > 1
            marks.append(KEPT if is_long else of_word.get(first, KEPT))
        return marks

    def _with_prefix_spaces(self, sentences: list[str]) -> list[str]:
        """Return the sentences with a space before the first word, except where they begin with an added token.

        In pair shards every sentence begins with a space, so that a word has one form wherever it stands. RoBERTa's
        published tokenizer adds no space before the first word of a text.
        """
        texts = []
        for sentence, encoding in zip(sentences, self._encode_batch(sentences), strict=True):
            begins_with_added = len(encoding.ids) > 0 and encoding.ids[0] in self._ids
            needs_space = not begins_with_added and not sentence.startswith(" ")
            texts.append(" " + sentence if needs_space else sentence)
        return texts


def _adds_prefix_space(tokenizer: Any) -> bool:
    if tokenizer.pre_tokenizer is None:
        return False
    return tokenizer.pre_tokenizer.pre_tokenize_str("a") != [("a", (0, 1))]


def _search(contents: Iterable[str]) -> Search | None:
    """Return a function that searches a text for any of the strings, or None if there are no strings."""
    patterns = [re.escape(content) for content in contents]
    if not patterns:
        return None
    return re.compile("|".join(patterns)).search


def _string_batches(sentences: pa.Array) -> Iterator[list[str]]:
    for start in range(0, len(sentences), SENTENCES_AT_ONCE):
        yield sentences.slice(start, SENTENCES_AT_ONCE).to_pylist()
