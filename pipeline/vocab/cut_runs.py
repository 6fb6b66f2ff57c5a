"""Cuts many distinct runs into words at once, by the rules in `pretokenize`.

Most runs are cut by array operations (plain_runs.py). The tokenizers library cuts all others, one at a time. In Chinese
these would be whole clauses, which hardly ever repeat, and BERT's rules make every ideograph a word. So such runs are
cut at ideographs first, and the library gets each distinct piece once. A property test checks that all ways follow the
same rules.

Shape suffixes: R runs, P pieces of all runs, D distinct pieces, K words of all runs, B bytes of all runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.vocab.arrow_strings import bytes_of_strings, offsets_of_strings, strings_of
from pipeline.vocab.char_classes import ideographs_of
from pipeline.vocab.plain_runs import CutRuns, are_plain, cut_plain_runs
from pipeline.vocab.pretokenize import library_cutter
from schemas.ragged import offsets_of, places_of_ranges
from schemas.vocabulary import Model

BYTES_OF_IDEOGRAPH = 3  # in UTF-8


@dataclass(frozen=True)
class Rules:
    """What decides how text is cut into words. Vocabularies with equal rules can be learned from the same counts.

    Unigram's words are counted with case and accents, so that every Unigram vocabulary can use them (see fold_steps).
    """

    model: Model
    lowercase: bool

    @property
    def name(self) -> str:
        """The name of the rules in the names of count files."""
        if self.model != "wordpiece":
            return self.model
        return "wordpiece_uncased" if self.lowercase else "wordpiece_cased"


ALL_RULES = (
    Rules("wordpiece", lowercase=True),
    Rules("wordpiece", lowercase=False),
    Rules("bytebpe", lowercase=False),
    Rules("unigram", lowercase=False),
)


def rules_of(model: Model, lowercase: bool) -> Rules:
    """Return the rules for counting a vocabulary's words."""
    return Rules(model, lowercase and model == "wordpiece")


def cut_runs(runs: pa.StringArray, rules: Rules) -> CutRuns:
    """Cut runs into words. The runs must not be empty or contain spaces."""
    is_plain_R = are_plain(runs, rules.model)
    plain_runs = np.flatnonzero(is_plain_R)
    other_runs = np.flatnonzero(~is_plain_R)

    plain = cut_plain_runs(runs.take(pa.array(plain_runs)), rules.model, rules.lowercase)
    others = _cut_by_library(runs.take(pa.array(other_runs)), rules)

    # Both number the runs that they got, so map these numbers back.
    return CutRuns(
        words_K=pa.concat_arrays([plain.words_K, others.words_K]),
        run_K=np.concatenate([plain_runs[plain.run_K], other_runs[others.run_K]]),
    )


def _cut_by_library(runs: pa.StringArray, rules: Rules) -> CutRuns:
    if rules.model == "wordpiece":
        pieces = _cut_at_ideographs(runs)
    else:
        pieces = _Pieces(runs, np.arange(len(runs)))

    # Each distinct piece is cut once.
    encoded = pieces.pieces_P.dictionary_encode()
    cut = library_cutter(rules.model, rules.lowercase)
    words_of_piece = [cut(piece) for piece in encoded.dictionary.to_pylist()]
    words = pa.array(chain.from_iterable(words_of_piece), pa.string())

    num_words_D = np.fromiter(map(len, words_of_piece), np.int64, len(words_of_piece))
    first_word_D = offsets_of(num_words_D)[:-1]

    # Expand the words of distinct pieces to those of all pieces, in order.
    distinct_P = encoded.indices.to_numpy()
    num_words_P = num_words_D[distinct_P]
    places_K = places_of_ranges(first_word_D[distinct_P], num_words_P)
    return CutRuns(
        words_K=words.take(pa.array(places_K)),
        run_K=np.repeat(pieces.run_P, num_words_P),
    )


@dataclass(frozen=True)
class _Pieces:
    """`pieces_P[p]` is a piece of run `run_P[p]`."""

    pieces_P: pa.StringArray
    run_P: NDArray[np.int64]


def _cut_at_ideographs(runs: pa.StringArray) -> _Pieces:
    """Cut runs into pieces, so that each common ideograph is a separate piece.

    BERT's normalizer separates ideographs by spaces before it does anything that looks at neighbors.
    """
    text_B = bytes_of_strings(runs)
    lengths_R = np.diff(offsets_of_strings(runs))
    starts_R = offsets_of(lengths_R)[:-1]
    ideographs = ideographs_of(text_B)

    # A piece begins at the start of a run, at each ideograph, and right after each ideograph.
    begins_B1 = np.zeros(len(text_B) + 1, dtype=bool)
    begins_B1[starts_R] = True
    begins_B1[ideographs] = True
    begins_B1[ideographs + BYTES_OF_IDEOGRAPH] = True

    starts_P = np.flatnonzero(begins_B1[:-1])
    lengths_P = np.diff(starts_P, append=len(text_B))
    run_P = np.searchsorted(starts_R, starts_P, side="right") - 1
    return _Pieces(strings_of(text_B, lengths_P), run_P)
