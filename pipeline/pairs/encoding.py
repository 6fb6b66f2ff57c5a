"""Sentences to token ids, many times faster than asking the tokenizer for each one.

Text falls into runs of non-spaces, runs fall into words, and most of both recur. Arrow finds a shard's different runs;
only runs not seen before are cut into words, and only words not seen before go to the tokenizer's model. The result
equals `tokenizer.encode` on each sentence: all models cut at spaces before anything else. Special tokens spelt out in
the text ("[SEP]") are text here, not special tokens.

Letters: N sentences, R runs, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipeline.vocab.words import cutter_of
from schemas.ragged import offsets_of, take_ranges
from schemas.vocabulary import Model

MAX_REMEMBERED = 1_000_000  # runs; about 200 MB with their words, more than most shards have different ones
Ints = NDArray[np.int64]
JoinedWords = Callable[[str, list[str]], list[bool]]


class Encoded(NamedTuple):
    """N sentences end to end: sentence i is ids_T[offsets_N1[i] : offsets_N1[i + 1]].

    joined_T is true where a token goes on with the word before it by the encoder's `joined_words`, None without such.
    """

    ids_T: NDArray[np.int32]
    offsets_N1: Ints
    joined_T: NDArray[np.bool_] | None


class Remembered:
    """Different strings and what each became: string i is ids_T[begins[i] : begins[i + 1]]."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.ids_T = np.zeros(0, dtype=np.int32)
        self.begins = np.zeros(1, dtype=np.int64)

    def unknown(self, strings: Iterable[str]) -> list[str]:
        """Those not remembered yet, each once."""
        return [string for string in dict.fromkeys(strings) if string not in self.numbers]

    def add(self, strings: list[str], ids_T: NDArray[np.int32], lengths: Ints) -> None:
        first = len(self.numbers)
        self.numbers.update(zip(strings, range(first, first + len(strings)), strict=True))
        self.ids_T = np.concatenate([self.ids_T, ids_T])
        self.begins = np.concatenate([self.begins, self.begins[-1] + np.cumsum(lengths)])

    def numbers_of(self, strings: list[str]) -> Ints:
        return np.fromiter(map(self.numbers.__getitem__, strings), np.int64, len(strings))

    def look_up(self, numbers_R: Ints) -> tuple[NDArray[np.int32], Ints]:
        """(ids of the strings end to end, how many each has)."""
        starts_R = self.begins[numbers_R]
        lengths_R = self.begins[numbers_R + 1] - starts_R
        return take_ranges(self.ids_T, starts_R, lengths_R), lengths_R


class Encoder:
    """One tokenizer and what it made of runs and words so far."""

    def __init__(self, tokenizer_json: bytes, model: Model, joined_words: JoinedWords | None = None):
        """`joined_words` tells which words of a run go on with the word before, where a script does not show it."""
        tokenizer = Tokenizer.from_str(tokenizer_json.decode())
        self._cut = cutter_of(tokenizer, model)
        self._whole_words = Tokenizer(tokenizer.model)  # neither normalises nor cuts again
        self._spaces_matter = model == "bytebpe"
        self._joined_words = joined_words
        self._forget()

    def _forget(self) -> None:
        self._runs, self._words = Remembered(), Remembered()
        self._joined_T = np.zeros(0, dtype=bool)  # beside the ids of the runs

    def encode(self, sentences: pa.Array) -> Encoded:
        """The ids of all sentences."""
        parts = pc.split_pattern(sentences, " ")  # type: ignore[attr-defined]
        if self._spaces_matter and _irregular(sentences, parts):
            parts = pa.array([_runs(sentence) for sentence in sentences.to_pylist()], pa.list_(pa.string()))
        runs = parts.flatten().dictionary_encode()
        different = runs.dictionary.to_pylist()
        self._remember(different)
        numbers_R = self._runs.numbers_of(different)[runs.indices.to_numpy()]
        ids_T, lengths_R = self._runs.look_up(numbers_R)
        offsets_N1 = offsets_of(lengths_R)[parts.offsets.to_numpy() - parts.offsets[0].as_py()]
        if self._joined_words is None:
            return Encoded(ids_T, offsets_N1, None)
        return Encoded(ids_T, offsets_N1, take_ranges(self._joined_T, self._runs.begins[numbers_R], lengths_R))

    def _remember(self, runs: list[str]) -> None:
        if len(self._runs.numbers) > MAX_REMEMBERED:
            self._forget()
        new = self._runs.unknown(runs)
        cut = [self._cut(run) for run in new]
        words = list(chain.from_iterable(cut))
        self._remember_words(self._words.unknown(words))
        ids_T, lengths_W = self._words.look_up(self._words.numbers_of(words))
        words_of_run = offsets_of(np.fromiter(map(len, cut), np.int64, len(cut)))
        self._runs.add(new, ids_T, np.diff(offsets_of(lengths_W)[words_of_run]))
        if self._joined_words is not None:
            joined_W = [self._joined_words(run, words) for run, words in zip(new, cut, strict=True)]
            joined_T = np.repeat(np.fromiter(chain.from_iterable(joined_W), bool, len(words)), lengths_W)
            self._joined_T = np.concatenate([self._joined_T, joined_T])

    def _remember_words(self, words: list[str]) -> None:
        encoded = [e.ids for e in self._whole_words.encode_batch_fast(words, add_special_tokens=False)]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self._words.add(words, np.fromiter(chain.from_iterable(encoded), np.int32, int(lengths.sum())), lengths)


def _irregular(sentences: pa.Array, parts: pa.Array) -> bool:
    """Whether any sentence has white space other than single spaces between runs, which GPT-2's pattern looks at."""
    ends = pc.utf8_trim_whitespace(sentences)  # type: ignore[attr-defined]
    words = pc.list_value_length(pc.utf8_split_whitespace(ends))  # type: ignore[attr-defined]
    empty = pc.any(pc.equal(parts.flatten(), "")).as_py()  # type: ignore[attr-defined]
    return bool(empty or not words.equals(pc.list_value_length(parts)))  # type: ignore[attr-defined]


def _runs(sentence: str) -> list[str]:
    runs = sentence.split(" ")
    return runs if runs == sentence.split() else [sentence]
