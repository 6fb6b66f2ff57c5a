"""Sentences to token ids, many times faster than asking the tokenizer for each one.

Text falls into runs of non-spaces, runs fall into words, and most of both recur. Arrow finds a shard's different runs;
only runs not seen before are cut into words, and only words not seen before go to the tokenizer's model. The result
equals `tokenizer.encode` on each sentence: all models cut at spaces before anything else. A sentence in which the
tokenizer may find one of its added tokens, which know no such limits, goes to the tokenizer whole. Special tokens
spelled out in the text ("[SEP]") are text here, not special tokens.

Letters: N sentences, R runs, W words, T tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipeline.pairs.added_tokens import AddedTokens
from pipeline.pairs.encoded import EncodedStrings, Ints, JoinedWords, interleave
from pipeline.vocab.pretokenize import cutter_of
from schemas.ragged import offsets_of, take_ranges
from schemas.vocabulary import Model

MAX_REMEMBERED = 1_000_000  # runs; about 200 MB with their words, more than most shards have different ones


class EncodingCache:
    """Different strings and what each became: string i is ids_T[begins[i] : begins[i + 1]].

    Not for several threads: `add` writes its three parts one after the other.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.ids_T = np.zeros(0, dtype=np.int32)
        self.begins = np.zeros(1, dtype=np.int64)

    def unknown(self, strings: Iterable[str]) -> list[str]:
        """Return the strings not remembered yet, each once."""
        return [string for string in dict.fromkeys(strings) if string not in self.numbers]

    def add(self, strings: list[str], ids_T: NDArray[np.int32], lengths: Ints) -> None:
        """Remember new strings: their ids end to end, and how many each has."""
        first = len(self.numbers)
        self.numbers.update(zip(strings, range(first, first + len(strings)), strict=True))
        self.ids_T = np.concatenate([self.ids_T, ids_T])
        self.begins = np.concatenate([self.begins, self.begins[-1] + np.cumsum(lengths)])

    def numbers_of(self, strings: list[str]) -> Ints:
        """Return the numbers of remembered strings."""
        return np.fromiter(map(self.numbers.__getitem__, strings), np.int64, len(strings))

    def look_up(self, numbers_R: Ints) -> tuple[NDArray[np.int32], Ints]:
        """Return (ids of the strings end to end, how many each has)."""
        starts_R = self.begins[numbers_R]
        lengths_R = self.begins[numbers_R + 1] - starts_R
        return take_ranges(self.ids_T, starts_R, lengths_R), lengths_R


class Encoder:
    """One tokenizer and what it made of runs and words so far. It serves one thread at a time; see `EncoderPool`."""

    def __init__(self, tokenizer_json: bytes, model: Model, joined_words: JoinedWords | None = None):
        """Load a tokenizer.json.

        `joined_words` says which words of a run continue the word before, where a script does not show it.
        """
        tokenizer = Tokenizer.from_str(tokenizer_json.decode())
        self._cut = cutter_of(tokenizer, model)
        self._whole_words = Tokenizer(tokenizer.model)  # neither normalizes nor cuts again
        self._added_tokens = AddedTokens(tokenizer_json, model, joined_words)
        self._spaces_matter = model == "bytebpe"
        self._joined_words = joined_words
        self._forget()

    def encode(self, sentences: pa.Array) -> EncodedStrings:
        """Return the ids of N sentences, given as an Arrow array of strings."""
        with_added_N = self._added_tokens.may_occur_in(sentences)
        if not with_added_N.any():
            return self._encode_runs(sentences)

        others = self._encode_runs(sentences.filter(pa.array(~with_added_N)))
        whole = self._added_tokens.encode(sentences.filter(pa.array(with_added_N)))
        return interleave(others, whole, with_added_N)

    def _encode_runs(self, sentences: pa.Array) -> EncodedStrings:
        """Encode sentences without added tokens, run by run."""
        parts = pc.split_pattern(sentences, " ")  # type: ignore[attr-defined]
        if self._spaces_matter and _irregular(sentences, parts):
            parts = pa.array([_runs(sentence) for sentence in sentences.to_pylist()], pa.list_(pa.string()))
        runs = parts.flatten().dictionary_encode()

        different = runs.dictionary.to_pylist()
        self._remember(different)
        numbers_R = self._runs.numbers_of(different)[runs.indices.to_numpy()]
        ids_T, lengths_R = self._runs.look_up(numbers_R)

        # From tokens per run to tokens per sentence. The first offset of a sliced array is not 0.
        runs_N1 = parts.offsets.to_numpy() - parts.offsets[0].as_py()
        offsets_N1 = offsets_of(lengths_R)[runs_N1]
        if self._joined_words is None:
            return EncodedStrings(ids_T, offsets_N1, None)
        return EncodedStrings(ids_T, offsets_N1, take_ranges(self._joined_T, self._runs.begins[numbers_R], lengths_R))

    def _forget(self) -> None:
        self._runs = EncodingCache()
        self._words = EncodingCache()
        self._joined_T = np.zeros(0, dtype=bool)  # parallel to the ids of the runs

    def _remember(self, runs: list[str]) -> None:
        """Encode the runs that are not remembered yet.

        A run ("don't,") is cut into words ("don", "'", "t", ","). Words recur far more often than runs do, so each
        different word goes through the model once, and a run is its words end to end.
        """
        if len(self._runs.numbers) > MAX_REMEMBERED:
            self._forget()
        new = self._runs.unknown(runs)
        words_of_run = [self._cut(run) for run in new]
        words = list(chain.from_iterable(words_of_run))

        self._remember_words(self._words.unknown(words))
        ids_T, lengths_W = self._words.look_up(self._words.numbers_of(words))

        # From tokens per word to tokens per run.
        word_counts_R = np.fromiter(map(len, words_of_run), np.int64, len(words_of_run))
        begins_R1 = offsets_of(lengths_W)[offsets_of(word_counts_R)]
        self._runs.add(new, ids_T, np.diff(begins_R1))

        if self._joined_words is not None:
            joined = [self._joined_words(run, words) for run, words in zip(new, words_of_run, strict=True)]
            joined_W = np.fromiter(chain.from_iterable(joined), bool, len(words))
            self._joined_T = np.concatenate([self._joined_T, np.repeat(joined_W, lengths_W)])

    def _remember_words(self, words: list[str]) -> None:
        encoded = [e.ids for e in self._whole_words.encode_batch_fast(words, add_special_tokens=False)]
        lengths_W = np.fromiter(map(len, encoded), np.int64, len(encoded))
        ids_T = np.fromiter(chain.from_iterable(encoded), np.int32, int(lengths_W.sum()))
        self._words.add(words, ids_T, lengths_W)


class EncoderPool:
    """The encoders of one worker process, each lent to one thread at a time.

    Engines run several bundles in one process, each in a thread, and an encoder writes to its memory while it encodes.
    A pool holds as many encoders as shards were ever built at once. A thread-local encoder would be right too, but
    engines end their idle threads, and what the encoder remembered would be lost with each.
    """

    def __init__(self, make: Callable[[], Encoder]):
        self._make = make
        self._idle: list[Encoder] = []
        self._lock = threading.Lock()

    @contextmanager
    def lend(self) -> Iterator[Encoder]:
        """Lend an encoder for the length of a `with` block."""
        with self._lock:
            encoder = self._idle.pop() if self._idle else None
        if encoder is None:
            encoder = self._make()

        yield encoder

        # Not reached after an exception: the memory of an encoder that was interrupted may be incomplete.
        with self._lock:
            self._idle.append(encoder)


def _irregular(sentences: pa.Array, parts: pa.Array) -> bool:
    """Whether any sentence has white space other than single spaces between runs, which GPT-2's pattern looks at."""
    ends = pc.utf8_trim_whitespace(sentences)  # type: ignore[attr-defined]
    words = pc.list_value_length(pc.utf8_split_whitespace(ends))  # type: ignore[attr-defined]
    empty = pc.any(pc.equal(parts.flatten(), "")).as_py()  # type: ignore[attr-defined]
    return bool(empty or not words.equals(pc.list_value_length(parts)))  # type: ignore[attr-defined]


def _runs(sentence: str) -> list[str]:
    runs = sentence.split(" ")
    return runs if runs == sentence.split() else [sentence]
