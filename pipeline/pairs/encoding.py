"""Sentences to token ids, many times as fast as a call of the tokenizer for each sentence.

A sentence is split at spaces into runs ("don't,"), and a run is cut into words ("don", "'", "t", ","). Text repeats
itself on both levels, so there is a cache for each:

    runs    Arrow finds the distinct runs of a shard; only those that the cache lacks are cut into words
    words   only words that the cache lacks go through the tokenizer's model

The ids of a shard are then one array operation over the cached runs. No Python code runs per token or per occurrence of
a run.

The result equals `tokenizer.encode` on each sentence, because all supported tokenizers cut at spaces before anything
else. Added tokens do not respect these limits, so a sentence that may hold one goes to the tokenizer as a whole.
Special tokens that are spelled out in the text ("[SEP]") are text here, not special tokens.

Shape suffixes: N sentences, R runs, W words, T tokens. N1 has one element more than N.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from pipeline.pairs.added_tokens import AddedTokens
from pipeline.pairs.encoded import EncodedStrings, JoinedWords, merge_encoded
from pipeline.pairs.encoding_cache import EncodingCache
from pipeline.vocab.pretokenize import cutter_of
from schemas.ragged import offsets_of
from schemas.vocabulary import Model

MAX_CACHED_RUNS = 1_000_000  # about 200 MB with their words; most shards have fewer distinct runs


class Encoder:
    """A tokenizer with caches for runs and words. It serves one thread at a time; see `EncoderPool`."""

    def __init__(self, tokenizer_json: bytes, model: Model, joined_words: JoinedWords | None = None):
        """Load a tokenizer.json.

        `joined_words` says which words of a run continue the word before them, for scripts without spaces.
        """
        tokenizer = Tokenizer.from_str(tokenizer_json.decode())
        self._cut = cutter_of(tokenizer, model)
        self._model_alone = Tokenizer(tokenizer.model)  # without normalizer and pre-tokenizer
        self._added_tokens = AddedTokens(tokenizer_json, model, joined_words)
        self._white_space_matters = model == "bytebpe"
        self._joined_words = joined_words
        self._clear_caches()

    def encode(self, sentences: pa.Array) -> EncodedStrings:
        """Return the ids of N sentences, given as an Arrow array of strings."""
        may_have_added_N = self._added_tokens.may_occur_in(sentences)
        if not may_have_added_N.any():
            return self._encode_by_runs(sentences)

        without_added = self._encode_by_runs(sentences.filter(pa.array(~may_have_added_N)))
        with_added = self._added_tokens.encode(sentences.filter(pa.array(may_have_added_N)))
        return merge_encoded(without_added, with_added, may_have_added_N)

    def _encode_by_runs(self, sentences: pa.Array) -> EncodedStrings:
        """Encode sentences that hold no added token."""
        runs_of_sentence = self._split_into_runs(sentences)
        runs = runs_of_sentence.flatten().dictionary_encode()

        distinct_runs = runs.dictionary.to_pylist()
        self._encode_missing_runs(distinct_runs)
        numbers_R = self._runs.numbers_of(distinct_runs)[runs.indices.to_numpy()]
        encoded_runs = self._runs.look_up(numbers_R)

        # From offsets of runs to offsets of sentences. In a sliced Arrow array the first offset is not 0.
        first_offset = runs_of_sentence.offsets[0].as_py()
        runs_N1 = runs_of_sentence.offsets.to_numpy() - first_offset
        return encoded_runs._replace(offsets_N1=encoded_runs.offsets_N1[runs_N1])

    def _split_into_runs(self, sentences: pa.Array) -> pa.Array:
        """Return (N,) lists of runs."""
        runs_of_sentence = pc.split_pattern(sentences, " ")  # type: ignore[attr-defined]
        if self._white_space_matters and _has_other_white_space(sentences, runs_of_sentence):
            lists = [_split_if_regular(sentence) for sentence in sentences.to_pylist()]
            return pa.array(lists, pa.list_(pa.string()))
        return runs_of_sentence

    def _clear_caches(self) -> None:
        self._runs = EncodingCache(with_joined=self._joined_words is not None)
        self._words = EncodingCache()

    def _encode_missing_runs(self, distinct_runs: list[str]) -> None:
        """Encode the runs that the cache does not hold: a run is the concatenation of its words."""
        if len(self._runs.numbers) > MAX_CACHED_RUNS:
            self._clear_caches()

        runs = self._runs.missing(distinct_runs)
        words_of_run = [self._cut(run) for run in runs]
        words = list(chain.from_iterable(words_of_run))
        self._encode_missing_words(words)
        encoded_words = self._words.look_up(self._words.numbers_of(words))

        # From offsets of words to offsets of runs.
        words_per_run_R = np.fromiter(map(len, words_of_run), np.int64, len(words_of_run))
        offsets_R1 = encoded_words.offsets_N1[offsets_of(words_per_run_R)]

        joined_T = None
        if self._joined_words is not None:
            joined = [self._joined_words(run, words) for run, words in zip(runs, words_of_run, strict=True)]
            joined_W = np.fromiter(chain.from_iterable(joined), bool, len(words))
            tokens_per_word_W = np.diff(encoded_words.offsets_N1)
            joined_T = np.repeat(joined_W, tokens_per_word_W)

        self._runs.add(runs, EncodedStrings(encoded_words.ids_T, offsets_R1, joined_T))

    def _encode_missing_words(self, words: list[str]) -> None:
        missing = self._words.missing(words)
        self._words.add(missing, self._tokenize(missing))

    def _tokenize(self, words: list[str]) -> EncodedStrings:
        """Return the ids that the tokenizer's model gives words."""
        encodings = self._model_alone.encode_batch_fast(words, add_special_tokens=False)
        ids_of_word = [encoding.ids for encoding in encodings]

        lengths_W = np.fromiter(map(len, ids_of_word), np.int64, len(ids_of_word))
        ids_T = np.fromiter(chain.from_iterable(ids_of_word), np.int32, int(lengths_W.sum()))
        return EncodedStrings(ids_T, offsets_of(lengths_W), None)


class EncoderPool:
    """The encoders of one worker process, each lent to one thread at a time.

    Beam runs several bundles in one process, each in a thread, and an encoder changes its caches while it encodes. A
    pool holds as many encoders as shards were ever built at the same time. Thread-local encoders would be safe too, but
    Beam ends idle threads, and their caches would be lost.
    """

    def __init__(self, make: Callable[[], Encoder]):
        """Start with no encoder; `make` is called when all are lent."""
        self._make = make
        self._idle: list[Encoder] = []
        self._lock = threading.Lock()

    @contextmanager
    def lend(self) -> Iterator[Encoder]:
        """Lend an encoder for the length of a `with` block."""
        encoder = self._take_idle()
        if encoder is None:
            encoder = self._make()  # takes long, and so not while the lock is held

        yield encoder

        # Not reached after an exception: the caches of an encoder that was interrupted may be incomplete.
        with self._lock:
            self._idle.append(encoder)

    def _take_idle(self) -> Encoder | None:
        with self._lock:
            return self._idle.pop() if self._idle else None


def _has_other_white_space(sentences: pa.Array, runs_of_sentence: pa.Array) -> bool:
    """Return whether any sentence has white space other than single spaces between runs.

    GPT-2's pattern makes words of such white space, so it must not be removed.
    """
    has_empty_run = pc.any(pc.equal(runs_of_sentence.flatten(), "")).as_py()  # type: ignore[attr-defined]
    if has_empty_run:
        return True

    trimmed = pc.utf8_trim_whitespace(sentences)  # type: ignore[attr-defined]
    words_of_sentence = pc.utf8_split_whitespace(trimmed)  # type: ignore[attr-defined]
    words_N = pc.list_value_length(words_of_sentence)  # type: ignore[attr-defined]
    runs_N = pc.list_value_length(runs_of_sentence)  # type: ignore[attr-defined]
    return not words_N.equals(runs_N)


def _split_if_regular(sentence: str) -> list[str]:
    """Return the runs of a sentence, or the sentence as one run if it has other white space than single spaces."""
    runs = sentence.split(" ")
    if runs == sentence.split():
        return runs
    return [sentence]
