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

Pieces are adjacent in the text, so cutting a sentence copies nothing. Two rules depend on the vocabulary:

    ideographs   BERT makes each one a word, so each can be a separate piece. Chinese text, which has no spaces and
                 hardly ever the same run twice, then has a few thousand distinct pieces
    white space  in byte-level BPE, white space other than single spaces between runs belongs to words. A sentence that
                 contains some is one piece

Shape suffixes: N sentences, D distinct pieces of a chunk, P pieces, W words, T tokens, B bytes. N1 has one element more
than N.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipeline.pairs.added_tokens import AddedTokens
from pipeline.pairs.encoding_cache import (
    MISSING,
    EncodedStrings,
    EncodingCache,
    MarkWords,
    concatenate,
    merge_encoded,
)
from pipeline.pairs.segmenters import ALL, word_marker
from pipeline.pairs.word_segmentation import KEPT
from pipeline.vocab.cut_words import are_plain, cut_plain
from pipeline.words.arrow import SPACE_BYTE, Bools, Ints, bytes_of, slices_of, strings_of
from pipeline.words.cut import CutStrings, cut_where, isolate_ideographs
from pipeline.words.rules import Rules, cutter_of
from schemas.ragged import offsets_of
from schemas.vocabulary_kinds import Model, kind_of

CHUNK_BYTES = 4 << 20

# Larger caches are cleared. Most shards have fewer distinct pieces, of six characters on average.
MAX_CACHED_PIECES = 1_000_000  # about 200 MB with their words
MAX_CACHED_BYTES = 64 << 20  # bytes of text and ids: in languages without spaces, pieces are long and few

_IRREGULAR = r"[\x00-\x1f]|  | $|[\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"
"""White space other than single spaces between runs. One at the start of a sentence is regular too, because the first
run would get one anyway."""

_PRINTABLE = [chr(code) for code in range(0x21, 0x7F)]


class Encoder:
    """A tokenizer with caches for pieces and words. Not thread-safe."""

    def __init__(self, tokenizer_json: bytes, model: Model, mark_words: MarkWords | None = None):
        """Load a tokenizer.json.

        `mark_words` tells where words begin in scripts without spaces; only for WordPiece.
        """
        tokenizer = Tokenizer.from_str(tokenizer_json.decode())
        self._cutter = WordCutter(tokenizer, model)
        self._model: Any = tokenizer.model  # without the normalizer and the pre-tokenizer
        self._added_tokens = AddedTokens(tokenizer_json, model, mark_words)
        self._mark_words = mark_words
        self._characters_V = _characters_of_tokens(tokenizer, kind_of(model).inside_word)

        # `mark_words` has to see whole runs.
        self._isolates_ideographs = mark_words is None and _isolates_ideographs(json.loads(tokenizer_json))
        self._keeps_white_space = kind_of(model).is_byte_level
        self._clear_caches()

    def encode(self, sentences: pa.Array) -> EncodedStrings:
        """Return the ids of N sentences, given as an Arrow array of strings."""
        return concatenate(list(self.encode_chunks(sentences)), with_marks=self._mark_words is not None)

    def encode_text(self, text: pa.Table) -> Iterator[EncodedStrings]:
        """Yield the ids of all sentences of a text shard, a chunk of text at a time."""
        for chunk in text["sentences"].chunks:
            yield from self.encode_chunks(chunk.flatten())

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
        self._pieces = EncodingCache(with_marks=self._mark_words is not None)
        self._words = EncodingCache()

    def _numbers_of_pieces(self, distinct: pa.Array) -> Ints:
        """Return (D,) the cache's numbers of distinct pieces, after encoding those that it lacks."""
        cached_bytes = self._pieces.bytes + self._words.bytes
        if len(self._pieces) > MAX_CACHED_PIECES or cached_bytes > MAX_CACHED_BYTES:
            self._clear_caches()

        numbers_D = self._pieces.find(distinct)
        missing = np.flatnonzero(numbers_D == MISSING)
        pieces = distinct.take(pa.array(missing))

        # `mark_words` has to see the words of all pieces.
        is_plain = self._cutter.is_plain(pieces) & (self._mark_words is None)
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
        ids_T, offsets_W1, marks_T = self._encode_words(pa.array(words, pa.string()))

        if self._mark_words is not None:
            runs = self._cutter.runs_of(strings)
            marks_C = self._mark_words(runs, words_of_piece)
            marks_T = marks_C[self._first_characters(words, ids_T, offsets_W1)]

        words_P = np.fromiter(map(len, words_of_piece), np.int64, len(pieces))
        return self._pieces.add(pieces, EncodedStrings(ids_T, offsets_W1[offsets_of(words_P)], marks_T))

    def _first_characters(self, words: list[str], ids_T: NDArray[np.int32], offsets_W1: Ints) -> Ints:
        """Return (T,) the place of each token's first character in the words, laid end to end.

        WordPiece's tokens spell their word; one that does not, [UNK], stands for a whole word.
        """
        starts_W1 = offsets_of(np.fromiter(map(len, words), np.int64, len(words)))
        tokens_W = np.diff(offsets_W1)

        before_T1 = offsets_of(self._characters_V[ids_T])
        first_T = np.repeat(starts_W1[:-1] - before_T1[offsets_W1[:-1]], tokens_W) + before_T1[:-1]
        return np.minimum(first_T, np.repeat(starts_W1[1:] - 1, tokens_W))

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


class EncoderByLanguage:
    """Encoders of one tokenizer that cut words by different languages. Not thread-safe."""

    def __init__(self, encoders: dict[str, Encoder], other: Encoder):
        """Take the encoder of each language, and that of all other languages. One at least marks words."""
        self._encoders = [*encoders.values(), other]
        self._languages = pa.array(list(encoders), pa.string())

    def encode_text(self, text: pa.Table) -> Iterator[EncodedStrings]:
        """Yield the ids of the sentences of a text shard with the column `language`, a chunk of text at a time."""
        for batch in text.select(["sentences", "language"]).to_batches():
            sentences, languages = batch["sentences"], batch["language"]
            number_D = pc.index_in(languages, self._languages).fill_null(len(self._languages))  # type: ignore[attr-defined]
            lengths_D = pc.list_value_length(sentences).to_numpy()  # type: ignore[attr-defined]
            number_N = np.repeat(number_D.to_numpy(), lengths_D).astype(np.int64)

            flat = sentences.flatten()
            for start, end in slices_of(flat, CHUNK_BYTES):
                yield self._encode_chunk(flat.slice(start, end - start), number_N[start:end])

    def _encode_chunk(self, sentences: pa.Array, number_N: Ints) -> EncodedStrings:
        """Encode sentences, each by the encoder with its number."""
        parts = []
        for number, encoder in enumerate(self._encoders):
            part = encoder.encode(sentences.filter(pa.array(number_N == number)))
            marks_T = np.full(len(part.ids_T), KEPT, np.int8) if part.marks_T is None else part.marks_T
            parts.append(part._replace(marks_T=marks_T))

        in_order = np.argsort(np.argsort(number_N, kind="stable"))
        return concatenate(parts, with_marks=True).take(in_order)


TextEncoder = Encoder | EncoderByLanguage


def new_encoder(tokenizer_json: bytes, model: Model, segmenters: tuple[tuple[str, str], ...]) -> TextEncoder:
    """Return an encoder that marks words by the segmenter of each language: pairs of `chosen_segmenters`."""
    by_language = {language: Encoder(tokenizer_json, model, word_marker(name)) for language, name in segmenters}
    if ALL in by_language:
        return by_language[ALL]
    other = Encoder(tokenizer_json, model)
    return EncoderByLanguage(by_language, other) if by_language else other


def _characters_of_tokens(tokenizer: Tokenizer, inside_word: str) -> Ints:
    """Return (V,) the number of characters of each token, without the mark of those inside a word."""
    tokens = tokenizer.get_vocab()
    characters_V = np.zeros(max(tokens.values(), default=-1) + 1, np.int64)
    for token, token_id in tokens.items():
        characters_V[token_id] = len(token.removeprefix(inside_word))
    return characters_V


def _isolates_ideographs(tokenizer: dict[str, Any]) -> bool:
    """Return whether a tokenizer.json has BERT's rules, which make every ideograph a word."""
    normalizer = tokenizer.get("normalizer") or {}
    sets_apart = normalizer.get("type") == "BertNormalizer" and normalizer.get("handle_chinese_chars") is True

    pre_tokenizer = tokenizer.get("pre_tokenizer") or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    cuts_at_spaces = steps[-1].get("type") == "BertPreTokenizer"
    return tokenizer["model"]["type"] == "WordPiece" and sets_apart and cuts_at_spaces


# Cutting


def cut_into_pieces(sentences: pa.Array, isolates_ideographs: bool, keeps_white_space: bool) -> CutStrings:
    """Cut N sentences, which may be a slice of a longer column. The two rules are those at the top of this file."""
    text, starts_N1 = bytes_of(sentences)
    begins_B = text == SPACE_BYTE
    if keeps_white_space:
        is_irregular_N = pc.match_substring_regex(sentences, _IRREGULAR)  # type: ignore[attr-defined]
        begins_B &= ~np.repeat(is_irregular_N.to_numpy(zero_copy_only=False), np.diff(starts_N1))
    if isolates_ideographs:
        isolate_ideographs(begins_B, text)
    return cut_where(begins_B, text, starts_N1)


class WordCutter:
    """Cuts pieces into words by the rules of one tokenizer.

    Pieces of printable ASCII, most of most European text, are cut by array operations (pipeline/words/cut.py), if these
    cut every pair of ASCII characters as the tokenizer does. All others go through its own rules one by one.
    """

    def __init__(self, tokenizer: Tokenizer, model: Model):
        self._cut = cutter_of(tokenizer, model)
        self._model: Model = model
        self._array_rules = self._find_array_rules()

    def is_plain(self, pieces: pa.Array) -> Bools:
        """Return (P,) bool: true for the pieces that `cut_plain` can cut. Pieces are not empty."""
        if self._array_rules is None:
            return np.zeros(len(pieces), dtype=bool)
        # A space inside a piece means that the piece is a whole sentence, whose white space belongs to words.
        return are_plain(_without_first_space(pieces), self._model, only_ascii=True)

    def cut_plain(self, pieces: pa.Array) -> CutStrings:
        """Cut plain pieces."""
        assert self._array_rules is not None
        return cut_plain(_without_first_space(pieces), self._array_rules)

    def cut_any(self, pieces: list[str]) -> list[list[str]]:
        """Cut pieces of any characters, one by one."""
        return [self._cut(run) for run in self.runs_of(pieces)]

    def runs_of(self, pieces: list[str]) -> list[str]:
        """Return the pieces without the spaces that do not belong to a word."""
        if kind_of(self._model).is_byte_level:
            return pieces
        return [piece.strip(" ") for piece in pieces]

    def _find_array_rules(self) -> Rules | None:
        """Return the rules with which array operations cut as the tokenizer does, if there are any."""
        # Every pair of printable ASCII characters, and contractions, show any difference between two sets of rules.
        # Array operations do not cut two equal quotation marks in a row where the rules vary.
        pairs = (left + right for left in _PRINTABLE for right in _PRINTABLE)
        tested = "".join(pair for pair in pairs if not kind_of(self._model).rules_vary or pair not in ("``", "''"))
        probes = [tested, "'s't're've'm'll'd", "a'sb'rec'lld'x"]
        expected = list(chain.from_iterable(map(self._cut, probes)))
        for rules in (Rules(self._model, lowercase=False), Rules(self._model, lowercase=True)):
            if cut_plain(pa.array(probes), rules).parts.to_pylist() == expected:
                return rules
        return None


def _without_first_space(pieces: pa.Array) -> pa.StringArray:
    """Return pieces, which are not empty, without the space that may begin each."""
    text, starts_P1 = bytes_of(pieces)
    starts_P = starts_P1[:-1]
    has_space_P = text[starts_P] == SPACE_BYTE

    is_kept_B = np.ones(len(text), dtype=bool)
    is_kept_B[starts_P[has_space_P]] = False
    return strings_of(text[is_kept_B], starts_P1 - offsets_of(has_space_P))
