"""Sentences to token ids, many times faster than asking the tokenizer for each one.

Text falls into runs of non-spaces and most runs recur, so each different run is encoded once and remembered; a shard
then becomes ids by table look-up. The result equals `tokenizer.encode` on each sentence: both models cut at spaces
before anything else. Special tokens spelt out in the text ("[SEP]") are text here, not special tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from schemas.ragged import offsets_of, take_ranges
from schemas.vocabulary import Model

MAX_REMEMBERED = 2_000_000  # runs; about 300 MB, more than the distinct words of most shards


class Encoder:
    """Remembers what each run of non-spaces becomes: run i is ids[begins[i] : begins[i + 1]]."""

    def __init__(self, tokenizer_json: bytes, model: Model):
        self._tokenizer = Tokenizer.from_str(tokenizer_json.decode())
        self._tokenizer.encode_special_tokens = True
        self._model = model
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._ids = np.zeros(0, dtype=np.int64)
        self._begins = np.zeros(1, dtype=np.int64)

    def encode(self, sentences: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(ids_T, offsets_N1): the ids of all N sentences end to end; sentence i is offsets[i] : offsets[i + 1]."""
        runs_of = self._runs if self._model == "bytebpe" else _words
        parts = [runs_of(sentence) for sentence in sentences]
        runs = list(chain.from_iterable(parts))
        self._remember(runs)
        numbers_R = np.fromiter(map(self._numbers.__getitem__, runs), np.int64, len(runs))
        starts_R, lengths_R = self._begins[numbers_R], np.diff(self._begins)[numbers_R]
        runs_N1 = offsets_of(np.fromiter(map(len, parts), np.int64, len(parts)))
        return take_ranges(self._ids, starts_R, lengths_R), offsets_of(lengths_R)[runs_N1]

    @staticmethod
    def _runs(sentence: str) -> list[str]:
        # GPT-2's pattern looks at white space around a word, so a sentence with any but single spaces stays whole.
        runs = sentence.split(" ")
        return runs if runs == sentence.split() else [sentence]

    def _remember(self, runs: list[str]) -> None:
        if len(self._numbers) > MAX_REMEMBERED:
            self._forget()
        new = [run for run in dict.fromkeys(runs) if run not in self._numbers]
        self._numbers.update(zip(new, range(len(self._numbers), len(self._numbers) + len(new)), strict=True))
        encoded = [e.ids for e in self._tokenizer.encode_batch_fast(new, add_special_tokens=False)]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        ids = np.fromiter(chain.from_iterable(encoded), np.int64, int(lengths.sum()))
        self._begins = np.concatenate([self._begins, self._begins[-1] + np.cumsum(lengths)])
        self._ids = np.concatenate([self._ids, ids])


def _words(sentence: str) -> list[str]:
    return sentence.split(" ")
