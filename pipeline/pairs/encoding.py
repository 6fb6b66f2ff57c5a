"""Turns sentences into token ids, many times as fast as one call of the tokenizer per sentence.

A sentence is cut at spaces into pieces (" don't,"), and a piece into words ("don", "'", "t", ","). Text repeats itself
on both levels, so there is a cache for each:

    pieces  Arrow finds the distinct pieces of a chunk of text; only those that the cache lacks are cut into words
    words   only words that the cache lacks go through the tokenizer's model

The ids of a chunk are then one array operation over the cached pieces. No Python code runs per token or per occurrence
of a piece. Text is encoded in chunks of CHUNK_BYTES, so memory is a few times that size, however large the shard is.

The result equals `tokenizer.encode` on each sentence, because all supported tokenizers cut at spaces before anything
else. Added tokens may extend across spaces, so a sentence that may contain one goes to the tokenizer as a whole.
Special tokens that are spelled out in the text ("[SEP]") are text here, not special tokens.

Shape suffixes: N sentences, D distinct pieces of a chunk, P pieces, W words, T tokens. N1 has one element more than N.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from pipeline.pairs.added_tokens import AddedTokens
from pipeline.pairs.encoded import MISSING, EncodedStrings, EncodingCache, JoinedWords, concatenate, merge_encoded
from pipeline.pairs.pieces import WordCutter, cut_into_pieces
from pipeline.words.arrow import Ints, slices_of
from schemas.ragged import offsets_of
from schemas.vocabulary import Model

CHUNK_BYTES = 2 << 20

# Larger caches are cleared. Most shards have fewer distinct pieces, of six characters on average.
MAX_CACHED_PIECES = 1_000_000  # about 100 MB with their words
MAX_CACHED_BYTES = 64 << 20  # bytes of text and ids: in languages without spaces, pieces are long and few


class Encoder:
    """A tokenizer with caches for pieces and words. Not thread-safe; see `EncoderPool`."""

    def __init__(self, tokenizer_json: bytes, model: Model, joined_words: JoinedWords | None = None):
        """Load a tokenizer.json.

        `joined_words` tells which words of a run continue the word before them, for scripts without spaces.
        """
        tokenizer = Tokenizer.from_str(tokenizer_json.decode())
        self._cutter = WordCutter(tokenizer, model)
        self._model: Any = tokenizer.model  # without the normalizer and the pre-tokenizer
        self._added_tokens = AddedTokens(tokenizer_json, model, joined_words)
        self._joined_words = joined_words

        # `joined_words` must see whole runs.
        self._isolates_ideographs = joined_words is None and _isolates_ideographs(json.loads(tokenizer_json))
        self._keeps_white_space = model == "bytebpe"
        self._clear_caches()

    def encode(self, sentences: pa.Array) -> EncodedStrings:
        """Return the ids of N sentences, given as an Arrow array of strings."""
        return concatenate(list(self.encode_chunks(sentences)), with_joined=self._joined_words is not None)

    def encode_chunks(self, sentences: pa.Array) -> Iterator[EncodedStrings]:
        """Yield the ids of sentences, a chunk of about CHUNK_BYTES of text at a time."""
        for start, end in slices_of(sentences, CHUNK_BYTES):
            yield self._encode_chunk(sentences.slice(start, end - start))

    def _encode_chunk(self, sentences: pa.Array) -> EncodedStrings:
        may_have_added_N = self._added_tokens.may_occur_in(sentences)
        if not may_have_added_N.any():
            return self._encode_by_pieces(sentences)

        without_added = self._encode_by_pieces(sentences.filter(pa.array(~may_have_added_N)))
        with_added = self._added_tokens.encode(sentences.filter(pa.array(may_have_added_N)))
        return merge_encoded(without_added, with_added, may_have_added_N)

    def _encode_by_pieces(self, sentences: pa.Array) -> EncodedStrings:
        """Encode sentences that hold no added token."""
        pieces, offsets_N1 = cut_into_pieces(sentences, self._isolates_ideographs, self._keeps_white_space)
        numbered = pieces.dictionary_encode()
        numbers_D = self._numbers_of_pieces(numbered.dictionary)

        encoded_pieces = self._pieces.encoded.take(numbers_D[numbered.indices.to_numpy()])
        return encoded_pieces._replace(offsets_N1=encoded_pieces.offsets_N1[offsets_N1])

    def _clear_caches(self) -> None:
        self._pieces = EncodingCache(with_joined=self._joined_words is not None)
        self._words = EncodingCache()

    def _numbers_of_pieces(self, distinct: pa.Array) -> Ints:
        """Return (D,) the cache's numbers of distinct pieces, after encoding those that it lacks."""
        cached_bytes = self._pieces.bytes + self._words.bytes
        if len(self._pieces) > MAX_CACHED_PIECES or cached_bytes > MAX_CACHED_BYTES:
            self._clear_caches()

        numbers_D = self._pieces.find(distinct)
        missing = np.flatnonzero(numbers_D == MISSING)
        pieces = distinct.take(pa.array(missing))

        # `joined_words` takes one run at a time, so cutting many pieces at once would gain nothing.
        is_plain = self._cutter.is_plain(pieces) & (self._joined_words is None)
        if is_plain.any():
            numbers_D[missing[is_plain]] = self._add_plain_pieces(pieces.filter(pa.array(is_plain)))
        if not is_plain.all():
            numbers_D[missing[~is_plain]] = self._add_other_pieces(pieces.filter(pa.array(~is_plain)))
        return numbers_D

    def _add_plain_pieces(self, pieces: pa.Array) -> Ints:
        """Encode pieces of printable ASCII and return their numbers in the cache."""
        words, offsets_P1 = self._cutter.cut_plain(pieces)
        encoded_words = self._encode_words(words)
        return self._pieces.add(pieces, encoded_words._replace(offsets_N1=encoded_words.offsets_N1[offsets_P1]))

    def _add_other_pieces(self, pieces: pa.Array) -> Ints:
        """Encode pieces of any characters and return their numbers in the cache."""
        strings = pieces.to_pylist()
        words_of_piece = self._cutter.cut_any(strings)
        words = list(chain.from_iterable(words_of_piece))
        ids_T, offsets_W1, joined_T = self._encode_words(pa.array(words, pa.string()))

        if self._joined_words is not None:
            runs = self._cutter.runs_of(strings)
            joined = map(self._joined_words, runs, words_of_piece)
            joined_W = np.fromiter(chain.from_iterable(joined), bool, len(words))
            joined_T = np.repeat(joined_W, np.diff(offsets_W1))

        words_P = np.fromiter(map(len, words_of_piece), np.int64, len(pieces))
        return self._pieces.add(pieces, EncodedStrings(ids_T, offsets_W1[offsets_of(words_P)], joined_T))

    def _encode_words(self, words: pa.Array) -> EncodedStrings:
        numbered = words.dictionary_encode()
        numbers_D = self._words.find(numbered.dictionary)

        missing = np.flatnonzero(numbers_D == MISSING)
        unknown = numbered.dictionary.take(pa.array(missing))
        numbers_D[missing] = self._words.add(unknown, self._tokenize(unknown.to_pylist()))
        return self._words.encoded.take(numbers_D[numbered.indices.to_numpy()])

    def _tokenize(self, words: list[str]) -> EncodedStrings:
        """Return the ids of words, as the tokenizer's model alone encodes them."""
        # Calling the model takes half as long as `encode_batch_fast` of a tokenizer that consists of the model alone.
        tokenize = self._model.tokenize
        ids_of_word = [[token.id for token in tokenize(word)] for word in words]

        lengths_W = np.fromiter(map(len, ids_of_word), np.int64, len(ids_of_word))
        ids_T = np.fromiter(chain.from_iterable(ids_of_word), np.int32, int(lengths_W.sum()))
        return EncodedStrings(ids_T, offsets_of(lengths_W), None)


class EncoderPool:
    """The encoders of one worker process, each lent to one thread at a time.

    Beam runs several bundles in one process, each in a thread, and an encoder changes its caches while it encodes. A
    pool grows to the largest number of shards that were ever built at the same time. Thread-local encoders would be
    safe too, but Beam ends idle threads, and their caches would be lost.
    """

    def __init__(self, make: Callable[[], Encoder]):
        """Start without encoders; `make` is called when all are lent."""
        self._make = make
        self._idle: list[Encoder] = []

    @contextmanager
    def lend(self) -> Iterator[Encoder]:
        """Lend an encoder for the duration of a `with` block."""
        try:
            encoder = self._idle.pop()  # atomic, as `append` is
        except IndexError:
            encoder = self._make()

        yield encoder

        # Not reached after an exception: the caches of an encoder that was interrupted may be incomplete.
        self._idle.append(encoder)


def _isolates_ideographs(tokenizer: dict[str, Any]) -> bool:
    """Return whether a tokenizer.json has BERT's rules, which make every ideograph a word."""
    normalizer = tokenizer["normalizer"] or {}
    sets_apart = normalizer.get("type") == "BertNormalizer" and normalizer.get("handle_chinese_chars") is True

    pre_tokenizer = tokenizer["pre_tokenizer"] or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    cuts_at_spaces = steps[-1].get("type") == "BertPreTokenizer"
    return tokenizer["model"]["type"] == "WordPiece" and sets_apart and cuts_at_spaces
